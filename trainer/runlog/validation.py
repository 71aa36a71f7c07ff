"""The event `validation`: losses of clips never trained on, by bucket and by time. Pure.

The training writes it into its telemetry; `clusterctl serve --validate` writes those that it
measures of checkpoints into a file of its own, `FILE`, whose events are as old as their checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from trainer.runlog import units
from trainer.runlog.json_file import number, whole
from trainer.runlog.telemetry import Event, Record

NAME = "validation"
FILE = "validation.jsonl"  # of a run directory, beside telemetry.jsonl
LOSSES = "losses.json"  # of a checkpoint, in the place of its videos
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

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figures:
        """Raises KeyError and TypeError for anything else."""
        buckets = {name: OfBucket(**one) for name, one in found["buckets"].items()}
        return cls(found["clips"], found["loss"], found["times"], buckets)

    def tracked(self, weights: str) -> dict[str, float]:
        """`loss`, and of each bucket its loss and those by time, as trackers name those of
        `weights` (model or ema)."""
        found = {"loss": self.loss}
        for name, one in self.buckets.items():
            found[f"{name}/loss"] = one.loss
            bands = zip(self.times, one.bands, strict=True)
            found |= {f"{name}/t{time:g}": loss for time, loss in bands}
        return {f"{NAME}/{weights}/{name}": loss for name, loss in found.items()}


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


def event_of(
    step: int, model: Figures, ema: Figures | None, seconds: float, time_s: float, **more: Any
) -> Event:
    """Of a model's weights and of their average."""
    of_average = f" (averaged weights {ema.loss:.4f})" if ema is not None else ""
    count = f"{model.clips} clips at {len(model.times)} times"
    text = f"loss {model.loss:.4f}{of_average}, {count}, {units.duration(seconds)}"
    sets = {"model": model} | ({"ema": ema} if ema is not None else {})
    data = {name: one.to_json() for name, one in sets.items()}
    return Event(NAME, text, {**more, "seconds": seconds, **data}, step, time_s)


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
    sets = (event.data.get(name) for name in ("model", "ema"))
    model, ema = (number(one.get("loss") if isinstance(one, dict) else None) for one in sets)
    if model is None:
        return None
    return Point(event.step, model, ema, whole(event.data["model"].get("clips")) or 0)


def is_of_checkpoint(event: Event) -> bool:
    """Measured beside the training: it comes later than its step, in any order."""
    return "checkpoint" in event.data


def is_superseded(point: Point, sealed_s: float, starts: Iterable[tuple[int, float]]) -> bool:
    """Whether a run went back behind a point's checkpoint, which was sealed at that time, by one of
    its starts: (step after which it goes on, unix time)."""
    return any(step < point.step and sealed_s < at_s for step, at_s in starts)


class Points:
    """Those that count, by step: what comes after the step at which a run starts again does not."""

    def __init__(self) -> None:
        self._own: dict[int, Point] = {}
        self._beside: list[tuple[Point, float]] = []  # with the time of their checkpoint
        self._starts: list[tuple[int, float]] = []  # step and time

    def take(self, event: Event) -> None:
        """Events of one file in their order."""
        if (point := point_of(event)) is not None:
            if is_of_checkpoint(event):
                self._beside.append((point, event.time_s))
            else:
                self._own[point.step] = point
        elif event.name == "start" and type(event.step) is int:
            self._starts.append((event.step, event.time_s))
            self._own = {step: one for step, one in self._own.items() if step <= event.step}

    def final(self) -> dict[int, Point]:
        """By step, rising. The training's own come before others of the same step."""
        found = {}
        for point, sealed_s in self._beside:
            if not is_superseded(point, sealed_s, self._starts):
                found[point.step] = point
        found |= self._own
        return {step: found[step] for step in sorted(found)}


def final_points(records: Iterable[Record]) -> list[Point]:
    """Of the events of a run's files, in the order of each."""
    points = Points()
    for record in records:
        if isinstance(record, Event):
            points.take(record)
    return list(points.final().values())
