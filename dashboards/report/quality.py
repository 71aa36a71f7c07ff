"""How good a run became: its validation losses, and its training loss by bands of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dashboards.model.samples import EventSample, Sample, StepSample
from dashboards.report.curves import curves, smoothed
from trainer.runlog.telemetry import Record, final_steps
from trainer.runlog.validation import Point, final_points


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
    if picture := curves([pair for pair in named if len(pair[1]) > 1], "steps"):
        note = "Loss of clips that are never trained on; with the averaged weights (EMA) dashed."
        yield "Validation loss", note, picture
    bands = [(band, smoothed(*columns)) for band, columns in quality.by_time.items()]
    if picture := curves([pair for pair in bands if len(pair[1]) > 1], "steps"):
        note = "Training loss by bands of the times trained on, from clean (0) to noise; means."
        yield "Loss by time", note, picture


def _begin(band: str) -> float:
    try:
        return float(band.split("-")[0])
    except ValueError:
        return math.inf
