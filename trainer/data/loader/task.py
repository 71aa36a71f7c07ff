"""What a worker is asked for: one microbatch of the plan, and what may take the place of clips that
cannot be read. All of it is a function of plan, epoch and index, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np

from trainer.config.keys import DatasetConfig
from trainer.data.plan.buckets import Bucket, Ints, bits
from trainer.data.plan.data_plan import DataPlan, EpochPlan

_WINDOW = 3  # keeps this draw apart from the plan's
_SPARES = 8  # substitutes beyond one for each clip


@dataclass(frozen=True, slots=True)
class Clip:
    """One row as a worker needs it."""

    row: int
    path: str
    text: str
    start: int  # first frame of the window
    expected: int  # frames the manifest says
    fps: float  # of the manifest, NaN: unknown
    size: tuple[int, ...] = ()  # height and width of the manifest; none: unknown


class Clips(Sequence[Clip]):
    """Clips of some rows. Path and caption are read when a clip is asked for, which is the worker's
    time: with memory_efficient each of them may lie in a row group of its own (for 475 images from
    300,000 rows 2 to 6 s a microbatch, when the training thread read them)."""

    def __init__(self, plan: DataPlan, epoch: int, bucket: Bucket, rows: Ints) -> None:
        self._manifest, self._rows = plan.manifest, rows
        self._lengths = plan.manifest.num_frames[rows].astype(np.int64)
        # upstream's choice of starts: it never takes the last possible one
        choices = np.maximum(1, self._lengths - bucket.frames * plan.frame_interval)
        drawn = bits(plan.keys(rows), plan.seed, epoch, _WINDOW)
        self._starts = drawn % choices.astype(np.uint64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Clip: ...
    @overload
    def __getitem__(self, index: slice) -> list[Clip]: ...
    def __getitem__(self, index: int | slice) -> Clip | list[Clip]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        row, manifest = int(self._rows[index]), self._manifest
        place = (int(self._starts[index]), int(self._lengths[index]), float(manifest.fps[row]))
        size = (int(manifest.height[row]), int(manifest.width[row]))
        return Clip(row, manifest.locate(row), manifest.texts[row], *place, size)

    def __iter__(self) -> Iterator[Clip]:
        """In their order; read in that of the manifest, so that a row group is read once."""
        found = {place: self[place] for place in np.argsort(self._rows, kind="stable").tolist()}
        return iter([found[place] for place in range(len(self))])


def _nothing() -> Iterator[Task]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Task:
    """One microbatch: its clips and, in order, substitutes for those that cannot be read."""

    epoch: int
    index: int  # in the epoch's plan
    bucket: Bucket
    interval: int
    resize: str
    clips: Sequence[Clip]
    spares: Sequence[Clip]
    source: Path | None = None  # the manifest, for what to do about bad clips
    # where no clip of the bucket can be read: of the other buckets, those of the nearest cost first
    others: Callable[[], Iterator[Task]] = field(default=_nothing, compare=False)
    # as upstream trained: see the keys dataset.frame_spacing and dataset.fps_condition
    is_spread: bool = True
    has_whole_fps: bool = True


def make_task(
    plan: DataPlan,
    epoch: int,
    index: int,
    data: DatasetConfig = DatasetConfig(),  # noqa: B008 - frozen
    *,
    elsewhere: bool = True,
) -> Task:
    """Microbatch `index` of an epoch: a pure function, equal on every rank and worker. Its clips
    may be those of another bucket where none of its own can be read, unless not `elsewhere`."""
    epoch_plan = plan.epoch(epoch)
    batch, manifest = epoch_plan[index], plan.manifest
    bucket = plan.buckets.cells[batch.cell]
    rows = epoch_plan.substitutes(index, len(batch.rows) + _SPARES)
    clips, spares = (Clips(plan, epoch, bucket, some) for some in (batch.rows, rows))

    def others() -> Iterator[Task]:
        for other in _nearest(plan, epoch_plan, index):
            yield make_task(plan, epoch, other, data, elsewhere=False)

    is_spread = data.frame_spacing == "upstream" and plan.frame_interval > 1
    more = (manifest.source, others if elsewhere else _nothing)
    ways = (is_spread, data.fps_condition == "upstream")
    size = (bucket, plan.frame_interval, data.resize)
    return Task(epoch, index, *size, clips, spares, *more, *ways)


def _nearest(plan: DataPlan, epoch_plan: EpochPlan, index: int) -> Iterator[int]:
    """Of each other bucket of this epoch the next microbatch behind `index`, cyclic."""
    own, buckets = int(epoch_plan.cells[index]), plan.buckets.cells

    def far(cell: int) -> tuple[float, int]:
        sizes = (_pixels(buckets[cell]), _pixels(buckets[own]))
        return abs(math.log(sizes[0] / sizes[1])), cell

    cells = set(np.unique(epoch_plan.cells).tolist()) - {own}
    for cell in sorted(cells, key=far):
        places = np.flatnonzero(epoch_plan.cells == cell)
        yield int(places[np.searchsorted(places, index) % len(places)])


def _pixels(bucket: Bucket) -> int:
    return bucket.batch_size * bucket.frames * bucket.height * bucket.width
