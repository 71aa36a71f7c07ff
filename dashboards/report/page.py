"""A page about a run: attempts over time, lost time, losses. One file that needs nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from clusterctl.errors import CouldNotFindOut
from clusterctl.nodes import fold
from clusterctl.runs.attempts import Attempt
from dashboards.feeds.run_dir import RunDirFeed
from dashboards.model import units
from dashboards.model.run_progress import Figures, accounted, figures
from dashboards.model.samples import EventSample, Sample, StepSample, Tick
from dashboards.model.state import RunState, initial_state
from dashboards.reduce import fold as fold_samples
from dashboards.report import curves, svg
from trainer.runlog.telemetry import Record, final_steps
from trainer.runlog.validation import Point, final_points

PAGE = Path(__file__).with_name("page.html")
Row = Sequence[tuple[str, str]]
"""(class of the cell, text) of each cell."""


def read_run(run_dir: Path, now_s: float) -> tuple[RunState, Quality]:
    """Raises `CouldNotFindOut` where the files cannot be read."""
    samples = RunDirFeed(run_dir, clock=lambda: now_s).poll()
    run = fold_samples(initial_state((), now_s=0.0), [*samples, Tick(now_s)]).run
    assert run is not None  # the feed opens it
    if run.unread:
        raise CouldNotFindOut(f"the run cannot be read: {run.unread}")
    return run, quality_of(samples)


def page(run: RunState, quality: Quality, now_s: float) -> str:
    """The page as HTML. `now_s` is when it is made; a run that has ended is shown up to its end."""
    now, known = figures(run, now_s), accounted(run)
    until_s = now_s if known.ended_s is None else known.ended_s
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        name=svg.safe(run.name),
        figures="".join(_figures(run, now)),
        sections="\n".join(_sections(run, now, until_s, quality)),
        made=svg.safe(f"made {_date(now_s)} from {run.directory}"),
    )


def _figures(run: RunState, now: Figures) -> Iterator[str]:
    steps = f"{now.step:,} of {now.steps_total:,}" if now.steps_total else f"{now.step:,}"
    pairs = [("state", now.status), ("step", steps), ("loss", units.number(now.smooth_loss))]
    pairs += [("effective training time", units.percent(now.ettr)), ("restarts", str(now.restarts))]
    if now.spares is not None:
        pairs.append(("spares left", str(now.spares)))
    if now.excluded:
        pairs.append(("excluded", fold(now.excluded)))
    if now.eta_s is not None:
        pairs.append(("time left", units.duration(now.eta_s)))
    for name, text in pairs:
        yield f"<div><dt>{name}</dt><dd>{svg.safe(text)}</dd></div>"


def _sections(run: RunState, now: Figures, until_s: float, quality: Quality) -> Iterator[str]:
    known = accounted(run)
    if known.attempts:
        yield f"<h2>Attempts</h2>\n{svg.timeline(known, until_s)}"
        if len(known.attempts) > svg.MOST_ROWS:
            yield f'<p class="dim">The newest {svg.MOST_ROWS} of {len(known.attempts)}.</p>'
    if now.lost_s:
        wall_s = max(1.0, until_s - (known.began_s or until_s))
        rows: list[Row] = [
            (("", cause), ("n", units.duration(seconds)), ("n", units.percent(seconds / wall_s)))
            for cause, seconds in now.lost_s
        ]
        heads = ("cause", "time lost", "of the wall time")
        note = "Repeated work and downtime, from the last step that counts to the next one."
        yield f'<h2>Lost time</h2>\n<p class="dim">{note}</p>\n{table(heads, rows)}'
    if picture := curves.attempts(run.curve.rows(), run.steps.first_steps):
        note = "Each step in grey, smoothed in green; dashed where another attempt went on."
        yield f'<h2>Loss</h2>\n<p class="dim">{note}</p>\n{picture}'
    for title, note, picture in sections(quality):
        yield f'<h2>{title}</h2>\n<p class="dim">{note}</p>\n{picture}'
    if known.attempts:
        columns = ("#", "began", "took", "nodes", "steps", "ended", "why")
        lines = [_attempt_row(one, until_s) for one in reversed(known.attempts)]
        yield f"<h2>All attempts</h2>\n{table(columns, lines)}"
    if known.excluded:
        rows = [(("", node), ("", why)) for node, why in known.excluded]
        yield f"<h2>Excluded nodes</h2>\n{table(('node', 'why'), rows)}"


def _attempt_row(one: Attempt, until_s: float) -> Row:
    took_s = max(0.0, (one.ended_s or until_s) - one.began_s)
    steps = f"{one.first:,} to {one.last:,}" if one.first is not None else "none"
    return (
        ("n", str(one.number)),
        ("", _date(one.began_s)),
        ("n", units.duration(took_s)),
        ("", fold(one.nodes) if one.nodes else units.UNKNOWN),
        ("n", steps),
        (svg.kind_of(one), svg.ending_of(one)),
        ("", one.text),
    )


def table(heads: Sequence[str], rows: Iterable[Row]) -> str:
    rows = list(rows)
    kinds = [kind if kind == "n" else "" for kind, _ in rows[0]]
    head = "".join(
        f'<th class="{kind}">{name}</th>' for kind, name in zip(kinds, heads, strict=True)
    )
    lines = (
        "".join(f'<td class="{kind}">{svg.safe(text)}</td>' for kind, text in row) for row in rows
    )
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _date(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


@dataclass(frozen=True)
class Quality:
    """Of the steps that count in the final history."""

    validations: list[Point] = field(default_factory=list)
    by_time: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)


def quality_of(samples: Iterable[Sample]) -> Quality:
    """Of what a `RunDirFeed` has read."""
    records = list(_of_telemetry(samples))
    by_time: dict[str, tuple[list[float], list[float]]] = {}
    for step, record in final_steps(records).items():
        for band, loss in record.loss_by_time.items():
            if math.isfinite(loss):
                steps, losses = by_time.setdefault(band, ([], []))
                steps.append(step)
                losses.append(loss)
    ordered = sorted(by_time.items(), key=lambda item: _begin(item[0]))
    return Quality(final_points(records), dict(ordered))


def _of_telemetry(samples: Iterable[Sample]) -> Iterator[Record]:
    for sample in samples:
        if isinstance(sample, StepSample):
            yield sample.record
        elif isinstance(sample, EventSample) and sample.source == "telemetry":
            yield sample.event


def sections(quality: Quality) -> Iterator[tuple[str, str, str]]:
    """Title, sentence and picture of each curve that has two points."""
    models = [(float(one.step), one.model) for one in quality.validations]
    averages = [(float(one.step), one.ema) for one in quality.validations if one.ema is not None]
    named = [("weights", models), ("EMA", averages)]
    if picture := curves.curves([pair for pair in named if len(pair[1]) > 1], "steps"):
        note = "Loss of clips that are never trained on; with the averaged weights (EMA) dashed."
        yield "Validation loss", note, picture
    bands = [(band, curves.smoothed(*columns)) for band, columns in quality.by_time.items()]
    if picture := curves.curves([pair for pair in bands if len(pair[1]) > 1], "steps"):
        note = "Training loss by bands of the times trained on, from clean (0) to noise; means."
        yield "Loss by time", note, picture


def _begin(band: str) -> float:
    try:
        return float(band.split("-")[0])
    except ValueError:
        return math.inf
