"""A page about runs side by side: losses, where they part, times of steps, what differs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from string import Template

from clusterctl.compare.judge import Comparison
from clusterctl.compare.losses import BY_CLIPS
from clusterctl.compare.show import change_lines, loss_lines, table_rows, verdict_lines
from clusterctl.output import Cell
from dashboards.model import units
from dashboards.report import curves, svg
from dashboards.report.page import PAGE, Row, table

BUCKETS = 12


def page(found: Sequence[Comparison], letters: Sequence[str], now_s: float) -> str:
    """The page as HTML; `letters` name the runs, the first one all others are compared with."""
    first = found[0]
    runs = [first.a, *(one.b for one in found)]
    figures = [
        (
            f"{letter}: {run.name}",
            f"step {run.steps[-1]:,.0f}, effective training time {units.percent(run.ettr)}",
        )
        for letter, run in zip(letters, runs, strict=True)
    ]
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s))
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        name=svg.safe(" and ".join(run.name for run in runs)),
        figures="".join(
            f"<div><dt>{svg.safe(name)}</dt><dd>{svg.safe(text)}</dd></div>"
            for name, text in figures
        ),
        sections="\n".join(
            part
            for letter, one in zip(letters[1:], found, strict=True)
            for part in _sections(one, letter)
        ),
        made=svg.safe(f"made {made}"),
    )


def _sections(found: Comparison, letter: str) -> Iterator[str]:
    runs = (found.a, found.b)
    yield f"<h2>{letter} against A</h2>"
    said = [text for text, _ in (*verdict_lines(found, letter), *loss_lines(found, letter))]
    yield _lines(said)
    parts = [("steps", [run.steps for run in runs])]
    if found.judged.by == BY_CLIPS:
        seen = [list(itertools.accumulate(run.columns["samples"])) for run in runs]
        parts.append(("clips", seen))  # type: ignore[arg-type]
    for unit, places in parts:
        points = [
            curves.smoothed(at, run.columns["loss"]) for at, run in zip(places, runs, strict=True)
        ]
        if picture := curves.curves(list(zip(("A", letter), points, strict=True)), unit):
            note = f"Means over {curves.BINS} equal parts of each run; {letter} is dashed."
            yield f'<h2>Loss over {unit}</h2>\n<p class="dim">{note}</p>\n{picture}'
    judged = found.judged
    if picture := curves.differences(judged.windows, judged.by):
        note = f"{letter} minus A in windows, and two standard errors to each side."
        yield f'<h2>Difference over {judged.by}</h2>\n<p class="dim">{note}</p>\n{picture}'
    rows = list(found.speed.phases.items())
    rows += [(name, one) for name, one in list(found.speed.buckets.items())[:BUCKETS]]
    if picture := curves.bars(rows):
        yield f"<h2>Seconds of a step</h2>\n{picture}"
    cells: list[Row] = [
        [
            ("" if place == 0 else "n", one.text if isinstance(one, Cell) else one)
            for place, one in enumerate(row)
        ]
        for row in table_rows(found)
    ]
    yield f"<h2>Figures</h2>\n{table(('', 'A', letter, 'change'), cells)}"
    yield f"<h2>What differs</h2>\n{_lines([text for text, _ in change_lines(found)])}"


def _lines(said: Sequence[str]) -> str:
    return f"<pre>{svg.safe_lines(said)}</pre>"
