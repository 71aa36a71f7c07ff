"""Which clips train together: buckets of one resolution, length and aspect ratio.

A configuration maps resolution -> {frames: (probability, batch size)}. In the semantics of
Open-Sora 1.2 resolutions are tried from large to small; a clip qualifies with at least 0.8 of the
area. Within one, lengths are tried from long to short; a clip must be STRICTLY longer than frames x
frame_interval. A probability is p, or (p, q): q is the chance to take this length (else a shorter
one is tried), p the chance to keep the clip here (else the next smaller resolution is tried). Clips
that find no place are left out of this epoch, so every epoch sees another choice.

Open-Sora 2's semantics look alike and mean the opposite: q is the chance to SKIP this length and
try a shorter one, and a clip of exactly `frames` frames is long enough.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.aspect import Resolution, resolution
from trainer.errors import ConfigError

AREA_SHARE = 0.8  # of a resolution's area that a clip must have
SEMANTICS = ("open-sora-1.2", "open-sora-2")
_BLOCK = 1 << 18  # rows placed at once: what a processor's cache holds
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1

Ints = NDArray[np.int64]
Keys = NDArray[np.int64] | NDArray[np.uint64]  # what a row's draws are made of
Cells = NDArray[np.int32]
Columns = tuple[Ints, Ints, Ints]  # length, height, width of rows
Numbers = tuple[NDArray[np.float64], NDArray[np.float64]]  # two from 0 to 1 for each row


class Bucket(NamedTuple):
    """Clips of one shape, `frames` x `height` x `width` pixels, `batch_size` per microbatch."""

    resolution: str
    frames: int
    ratio: str
    height: int
    width: int
    batch_size: int

    @property
    def name(self) -> str:
        """What logs and telemetry call it: 360p 51f 0.56."""
        return f"{self.resolution} {self.frames}f {self.ratio}"


@dataclass(frozen=True)
class Slot:
    """One line of the configuration: a resolution at one length."""

    resolution: Resolution
    frames: int
    keep: float  # p: chance to keep the clip
    take: float | None  # q: chance to take this length; None takes it always
    batch_size: int  # 0: no clip ever gets here (p is 0)
    first_cell: int  # of its ratios, in the order of the resolution's table


@dataclass(frozen=True)
class Buckets:
    """A parsed configuration. `cells[i]` is the bucket that `assign` calls i."""

    slots: tuple[Slot, ...]  # area falling, then frames falling: the order they are tried in
    cells: tuple[Bucket, ...]
    semantics: str = "open-sora-1.2"

    @classmethod
    def parse(cls, bucket_config: Mapping[Any, Any], semantics: str = "open-sora-1.2") -> Buckets:
        """Check a configuration. Raises ConfigError naming the resolution and length at fault."""
        if semantics not in SEMANTICS:
            raise ConfigError(f"bucket_semantics {semantics!r}: {' or '.join(SEMANTICS)}")
        if not isinstance(bucket_config, Mapping) or not bucket_config:
            raise ConfigError("bucket_config is empty: which resolutions and lengths to train on?")
        slots: list[Slot] = []
        cells: list[Bucket] = []
        shapes = [(resolution(str(name)), lengths) for name, lengths in bucket_config.items()]
        for shape, lengths in sorted(shapes, key=lambda item: -item[0].pixels):
            if not isinstance(lengths, Mapping) or not lengths:
                raise ConfigError(f"bucket_config[{shape.name!r}] is not {{frames: (p, batch)}}")
            by_frames = {_frames(shape.name, key): value for key, value in lengths.items()}
            if len(by_frames) < len(lengths):
                raise ConfigError(f"bucket_config[{shape.name!r}] states a length twice")
            for frames in sorted(by_frames, reverse=True):
                where = f"bucket_config[{shape.name!r}][{frames}]"
                keep, take, batch_size = _entry(where, by_frames[frames])
                slots.append(Slot(shape, frames, keep, take, batch_size, len(cells)))
                for ratio, (height, width) in shape.sizes.items():
                    cells.append(Bucket(shape.name, frames, ratio, height, width, batch_size))
        return cls(tuple(slots), tuple(cells), semantics)

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """The configuration as plain data, equal for equal meaning."""
        lines: dict[str, dict[str, list[float | None]]] = {}
        for slot in self.slots:
            line: list[float | None] = [slot.keep, slot.take, slot.batch_size]
            lines.setdefault(slot.resolution.name, {})[str(slot.frames)] = line
        return {"semantics": self.semantics, "draw": "hash", "slots": lines}

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.canonical, sort_keys=True).encode()).hexdigest()

    def assign(
        self,
        manifest: Manifest,
        seed: int,
        epoch: int,
        frame_interval: int = 1,
        keys: NDArray[np.uint64] | None = None,
    ) -> Cells:
        """Cell of each row [N], -1 for one that is left out: of its sizes, key, seed and epoch.
        The key of a row is its number, where `keys` are not given."""
        chosen = np.empty(len(manifest), np.int32)
        for start in range(0, len(manifest), _BLOCK):
            part = slice(start, min(start + _BLOCK, len(manifest)))
            own = np.arange(part.start, part.stop) if keys is None else keys[part]
            chosen[part] = self._place(_sizes(manifest, part), own, seed, epoch, frame_interval)
        return chosen

    def draw(self, keys: Keys, seed: int, epoch: int, slot: int) -> Numbers:
        """What decides for these rows at a slot; a counter-based hash, all rows at once."""
        return uniform(keys, seed, epoch, slot, 0), uniform(keys, seed, epoch, slot, 1)

    def reachable(self, manifest: Manifest, frame_interval: int = 1) -> tuple[Ints, Cells]:
        """(rows, cells) of every place that a clip may have in some epoch, under any seed."""
        length, height, width = _sizes(manifest, slice(None))
        area, unplaced = height * width, np.ones(len(length), bool)
        rows: list[Ints] = [np.empty(0, np.int64)]
        cells: list[Cells] = [np.empty(0, np.int32)]
        for shape, slots in self._by_resolution():
            here = unplaced & (area >= shape.pixels * AREA_SHARE)
            refused = np.zeros(len(length), bool)  # took a length and may not be kept
            for _, slot in slots:
                fits = here & self._is_long_enough(length, slot.frames, frame_interval)
                take = 1.0 if slot.take is None else slot.take
                if slot.take is not None and self.semantics == "open-sora-2":
                    take = 1 - slot.take
                if take <= 0:
                    continue
                if slot.keep > 0:
                    found = np.flatnonzero(fits)
                    rows.append(found)
                    cells.append(slot.first_cell + _ratio_index(height[found], width[found], shape))
                if slot.keep < 1:
                    refused |= fits
                if take >= 1:
                    here &= ~fits
            unplaced &= (area < shape.pixels * AREA_SHARE) | here | refused
        return np.concatenate(rows), np.concatenate(cells)

    def _place(
        self, columns: Columns, keys: Keys, seed: int, epoch: int, frame_interval: int
    ) -> Cells:
        length, height, width = columns
        rows, area, skips = len(length), height * width, self.semantics == "open-sora-2"
        chosen = np.full(rows, -1, np.int32)
        unplaced: Ints = np.arange(rows)
        for shape, slots in self._by_resolution():
            here = unplaced[area[unplaced] >= shape.pixels * AREA_SHARE]
            placed: list[Ints] = []
            for index, slot in slots:
                fits = here[self._is_long_enough(length[here], slot.frames, frame_interval)]
                if slot.take is None and slot.keep >= 1:
                    taken = kept = fits
                else:
                    one, two = self.draw(keys[fits], seed, epoch, index)
                    take: NDArray[np.bool_] = np.ones(len(one), bool)
                    if slot.take is None:
                        two = one
                    else:
                        take = one >= slot.take if skips else one <= slot.take
                    taken, kept = fits[take], fits[take & ((two < slot.keep) | (slot.keep >= 1))]
                chosen[kept] = slot.first_cell
                placed.append(kept)
                here = _without(here, taken, rows)
            found = np.concatenate(placed)
            chosen[found] += _ratio_index(height[found], width[found], shape)
            unplaced = _without(unplaced, found, rows)
        return chosen

    def frames_needed(self, frames: int, interval: int) -> int:
        """Frames that a clip must have for a bucket of more than one frame."""
        return frames * interval + (self.semantics != "open-sora-2")

    def _is_long_enough(self, length: Ints, frames: int, interval: int) -> NDArray[np.bool_]:
        if frames == 1:
            return length == 1
        return length >= self.frames_needed(frames, interval)

    def _by_resolution(self) -> list[tuple[Resolution, list[tuple[int, Slot]]]]:
        groups = itertools.groupby(enumerate(self.slots), key=lambda item: item[1].resolution.name)
        return [(slots[0][1].resolution, slots) for slots in (list(group) for _, group in groups)]


def _sizes(manifest: Manifest, part: slice) -> Columns:
    columns = (manifest.num_frames, manifest.height, manifest.width)
    length, height, width = (column[part].astype(np.int64) for column in columns)
    return length, height, width


def _ratio_index(height: Ints, width: Ints, shape: Resolution) -> Cells:
    """Place of the nearest ratio in the resolution's table; ties go to the first."""
    ratios = np.array([float(ratio) for ratio in shape.sizes])
    # Few clips have a size of their own, so each size is looked up once.
    sizes, place = np.unique(height << 32 | width, return_inverse=True)
    nearest = np.empty(len(sizes), np.int32)
    for start in range(0, len(sizes), 1 << 14):  # bounds the table of distances to 5 MB
        part = sizes[start : start + (1 << 14)]
        value = (part >> 32) / (part & 0xFFFFFFFF)
        nearest[start : start + len(part)] = np.abs(value[:, None] - ratios).argmin(1)
    return nearest[place]


def _without(rows: Ints, gone: Ints, total: int) -> Ints:
    if not len(gone):
        return rows
    mask = np.zeros(total, bool)
    mask[gone] = True
    return rows[~mask[rows]]


def _frames(name: str, key: Any) -> int:
    text = str(key)
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"bucket_config[{name!r}]: {key!r} is not a number of frames")
    return int(text)


def _entry(where: str, value: Any) -> tuple[float, float | None, int]:
    """(keep, take, batch size) of one entry."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ConfigError(f"{where} is {value!r}, not (probability, batch size)")
    chance, batch_size = value
    pair = list(chance) if isinstance(chance, (tuple, list)) else [chance, None]
    if len(pair) != 2:
        raise ConfigError(f"{where}: a probability is p or (p, q), not {chance!r}")
    keep, take = pair
    for number in (keep, 1 if take is None else take):
        if not isinstance(number, numbers.Real) or not 0 <= float(number) <= 1:
            raise ConfigError(f"{where}: probability {number!r} is not from 0 to 1")
    if batch_size is None and keep == 0:
        batch_size = 0
    elif not isinstance(batch_size, numbers.Integral) or isinstance(batch_size, bool):
        raise ConfigError(f"{where}: batch size {batch_size!r} is not a whole number")
    elif int(batch_size) < 1:
        raise ConfigError(f"{where}: batch size {batch_size} is below 1")
    return float(keep), None if take is None else float(take), int(batch_size)


# --- random numbers ---


def bits(rows: Keys, *key: int) -> NDArray[np.uint64]:
    """64 random bits for each row under this key; words of a key may be any integer.

    A function of what they are for, not of what was drawn before: the same in any order and
    process. SplitMix64's finaliser (Steele, Lea, Flood 2014) for every word of the key.
    """
    state = 0
    for word in key:  # the key is the same for all rows: mixed once, in Python's integers
        state = int(_mix(np.array([(state ^ (word & _WORD)) + _GOLDEN & _WORD], np.uint64))[0])
    with np.errstate(over="ignore"):  # wrapping is the arithmetic meant
        return _mix(rows.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(state))


def uniform(rows: Keys, *key: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, of 53 bits."""
    return (bits(rows, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
        return mixed
