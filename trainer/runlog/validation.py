"""The event `validation`: losses of clips never trained on, by bucket and by time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from trainer.runlog.telemetry import Event, Record

NAME = "validation"
Losses = dict[int, tuple[str, list[list[float]]]]  # by microbatch: bucket, [clip][time]


@dataclass(frozen=True, slots=True)
class OfBucket:
    """Mean losses over the clips of a bucket, in all and by time."""

    clips: int
    loss: float
    bands: list[float]


@dataclass(frozen=True, slots=True)
class Figures:
    """`loss` is the mean over all clips and times; NaN where no clip could be read."""

    clips: int
    loss: float
    times: list[float]
    buckets: dict[str, OfBucket]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def flat(self) -> dict[str, float]:
        """`loss`, and of each bucket its loss and those by time, under names for trackers."""
        found = {"loss": self.loss}
        for name, one in self.buckets.items():
            found[f"{name}/loss"] = one.loss
            bands = zip(self.times, one.bands, strict=True)
            found |= {f"{name}/t{time:g}": loss for time, loss in bands}
        return found


def figures_of(losses: Losses, times: list[float]) -> Figures:
    """Means of what all ranks found, added up in the order of the microbatches."""
    by_bucket: dict[str, list[list[float]]] = {}
    for _, (bucket, rows) in sorted(losses.items()):
        by_bucket.setdefault(bucket, []).extend(rows)
    buckets = {name: _mean(rows, len(times)) for name, rows in by_bucket.items() if rows}
    clips = sum(one.clips for one in buckets.values())
    total = math.fsum(one.loss * one.clips for one in buckets.values())
    return Figures(clips, total / clips if clips else math.nan, times, buckets)


def _mean(rows: list[list[float]], bands: int) -> OfBucket:
    means = [math.fsum(row[band] for row in rows) / len(rows) for band in range(bands)]
    return OfBucket(len(rows), math.fsum(means) / bands, means)


@dataclass(frozen=True, slots=True)
class Point:
    """Losses after a step, as others read them from a run's events."""

    step: int
    model: float
    ema: float | None  # of the averaged weights
    clips: int = 0


def point_of(event: Event) -> Point | None:
    """None for another event, and for one without finite losses."""
    if event.name != NAME or type(event.step) is not int:
        return None
    model, ema = (_loss(event.data.get(name)) for name in ("model", "ema"))
    if model is None:
        return None
    clips = event.data["model"].get("clips")
    return Point(event.step, model, ema, clips if type(clips) is int else 0)


def final_points(records: Iterable[Record]) -> list[Point]:
    """Those that count, by step: what comes after the step at which a run starts again does not."""
    found: dict[int, Point] = {}
    for record in records:
        if not isinstance(record, Event):
            continue
        if (point := point_of(record)) is not None:
            found[point.step] = point
        elif record.name == "start" and type(record.step) is int:
            found = {step: one for step, one in found.items() if step <= record.step}
    return [found[step] for step in sorted(found)]


def _loss(found: Any) -> float | None:
    value = found.get("loss") if isinstance(found, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
