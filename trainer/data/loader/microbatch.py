"""One microbatch: the batch that a worker makes of its task."""

# B clips · C channels · T frames · H,W pixels

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainer.data.loader.task import Clip, Task
from trainer.data.manifest.manifest import SUFFIXES
from trainer.data.plan.buckets import Bucket
from trainer.data.video.decode import IMAGE_FPS, Decoder, Window
from trainer.data.video.other_size import other_size
from trainer.data.video.outage import Outage
from trainer.errors import TooManyBadSamples
from trainer.runlog import units

NO_RATE = "frame rate unknown"
NOTHING: Mapping[str, str] = MappingProxyType({})
_NOT_TRIED = "not tried again"


class Bad(NamedTuple):
    """A clip that could not be read."""

    row: int
    path: str
    reason: str


@dataclass
class Failures:
    """What could not be read of a microbatch."""

    bad: list[Bad] = field(default_factory=list)  # each clip once
    # Path and reason of those that are bad in every epoch: neither in this window alone, nor
    # because their storage fails.
    lasting: dict[str, str] = field(default_factory=dict)
    # Read, and trained on: their manifest says another height and width.
    resized: list[Bad] = field(default_factory=list)


@dataclass
class Batch:
    """B clips of one bucket: pixels in `video`, or what a feature cache has in their place."""

    microbatch: tuple[int, int]  # epoch, index in its plan
    bucket: str
    rows: list[int]
    text: list[str]
    fps: Tensor  # float32 [B], as the three sizes of the bucket
    height: Tensor
    width: Tensor
    num_frames: Tensor
    video: Tensor | None = None  # [B, 3, T, H, W] uint8; with resize="torch" float32 from -1 to 1
    latents: Tensor | None = None  # [B, P, C, Z, h, w] as stored
    y: Tensor | None = None  # [B, 1, L, C] captions of a feature cache
    mask: Tensor | None = None  # int64 [B, L]
    failures: Failures = field(default_factory=Failures)
    decode_s: float = 0.0  # CPU seconds of decoding
    decoder_bytes: int = 0  # peak resident memory of the decoding process

    @property
    def bad(self) -> list[Bad]:
        """Clips that were replaced."""
        return self.failures.bad

    @classmethod
    def of(
        cls, bucket: Bucket, place: tuple[int, int], clips: Sequence[Clip], fps: Tensor, **more: Any
    ) -> Batch:
        """With the bucket's name and sizes for each clip."""
        sizes = (bucket.height, bucket.width, bucket.frames)
        height, width, frames = (torch.full((len(clips),), float(size)) for size in sizes)
        rows, text = [clip.row for clip in clips], [clip.text for clip in clips]
        return cls(place, bucket.name, rows, text, fps, height, width, frames, **more)


class Filled(NamedTuple):
    """What takes each place of a microbatch."""

    sources: list[int]  # for each place, the place whose clip it has: its own, or one that was read
    is_empty: bool  # no clip could be read


class Replacing:
    """Which clip takes each place of a task, as clips turn out to be bad: the next spare in order,
    the same whether a bad clip is tried or known to be bad. What could not be replaced gets a clip
    of the microbatch once more, so that its shape stays."""

    def __init__(self, task: Task, failures: Failures) -> None:
        self.chosen = list(task.clips)
        self._spares, self._used, self._failures = task.spares, 0, failures
        self._failed: set[int] = set()  # rows; a small bucket has a clip as its own spare
        self._open: set[int] = set()  # places without a clip

    def has_failed(self, place: int) -> bool:
        """Whether this clip was tried before, in another place."""
        return self.chosen[place].row in self._failed

    def replace(self, failed: Mapping[int, tuple[str, bool]]) -> list[int]:
        """Places with a spare that is to be tried, of those whose clips have failed and why."""
        again = []
        for place in sorted(failed):
            clip, (reason, is_lasting) = self.chosen[place], failed[place]
            if clip.row not in self._failed:
                self._failed.add(clip.row)
                self._failures.bad.append(Bad(clip.row, clip.path, reason))
                if is_lasting:
                    self._failures.lasting[clip.path] = reason
            if self._used < len(self._spares):
                self.chosen[place] = self._spares[self._used]
                self._used += 1
                again.append(place)
            else:
                self._open.add(place)
        return again

    def fill(self) -> Filled:
        good = [place for place in range(len(self.chosen)) if place not in self._open]
        if not good:
            return Filled([], is_empty=True)
        repeats = itertools.cycle(good)
        places = range(len(self.chosen))
        sources = [next(repeats) if place in self._open else place for place in places]
        self.chosen = [self.chosen[source] for source in sources]
        return Filled(sources, is_empty=False)


def assemble(
    task: Task,
    decoder: Decoder,
    timeout_s: float,
    known: Mapping[str, str] = NOTHING,
    pin: bool = False,
) -> Batch:
    """Decode a task, with `pin` into page-locked memory; clips that fail, and those of which it is
    `known` why they cannot be read, are replaced, those whose storage fails are tried again first
    (`Outage`). Raises TooManyBadSamples when no clip can be read or `timeout_s` is over, and
    DecoderBroken."""
    decoder.start()  # not part of a clip's time
    reading = _Reading(decoder, time.monotonic() + timeout_s, timeout_s, known, pin)
    return of_first_bucket(task, reading.read, reading.failures)


def of_first_bucket(task: Task, read: Callable[[Task], Batch | None], failures: Failures) -> Batch:
    """The batch of a task, or of the first of its `others` that has a clip which can be read."""
    tried = 0
    for one in itertools.chain([task], task.others()):
        tried += 1
        if (batch := read(one)) is not None:
            batch.microbatch, batch.failures = (task.epoch, task.index), failures
            return batch
    more = f" or of the {tried - 1} others" if tried > 1 else ""
    what = f"no clip of bucket {task.bucket.name}{more} is left as a replacement"
    raise _too_many(what, failures.bad, task.source)


class _Reading:
    """Of one microbatch, whatever buckets it tries."""

    def __init__(
        self,
        decoder: Decoder,
        deadline: float,
        timeout_s: float,
        known: Mapping[str, str],
        pin: bool,
    ) -> None:
        self._decoder, self._deadline, self._timeout_s = decoder, deadline, timeout_s
        self._known, self._pin = known, pin
        self._outage = Outage(deadline)
        self.failures = Failures()
        self._decode_s, self._decoder_bytes = 0.0, 0

    def read(self, task: Task) -> Batch | None:
        """None where no clip of the task or of its spares can be read."""
        bucket, count = task.bucket, len(task.clips)
        shape = (3, bucket.frames, bucket.height, bucket.width)
        size = (bucket.frames, task.interval, bucket.height, bucket.width)
        dtype = torch.float32 if task.resize == "torch" else torch.uint8
        video = torch.empty((count, *shape), dtype=dtype, pin_memory=self._pin)
        video_BCTHW = video.numpy()  # the same memory
        rates = np.zeros(count, np.float32)
        replacing, places = Replacing(task, self.failures), list(range(count))
        while places:
            failed: dict[int, tuple[str, bool]] = {}
            asked: list[int] = []
            for place in places:
                path = replacing.chosen[place].path
                if replacing.has_failed(place):
                    failed[place] = ("", False)  # it is in the list
                elif (why := self._known.get(path)) is not None:
                    failed[place] = (f"{_NOT_TRIED}: {why}", False)
                else:
                    asked.append(place)
            clips = [replacing.chosen[place] for place in asked]
            how = (task.resize, task.is_spread)
            windows = [Window(clip.start, *size, clip.expected, *how) for clip in clips]
            wanted = [(clip.path, window) for clip, window in zip(clips, windows, strict=True)]
            into = [video_BCTHW[place] for place in asked]
            _, replies = self._decoder.decode(wanted, shape, self._deadline, into)
            stuck = any(reply.storage_fails for reply in replies)
            waited = stuck and self._outage.lasts(any(not reply.error for reply in replies))
            again: list[int] = []
            for place, clip, reply in zip(asked, clips, replies, strict=True):
                self._decode_s += reply.cpu_s
                self._decoder_bytes = max(self._decoder_bytes, reply.memory_bytes)
                if waited and reply.storage_fails:
                    again.append(place)
                    continue
                if why := other_size(clip.size, reply.size):
                    self.failures.resized.append(Bad(clip.row, clip.path, why))
                rates[place] = rate = frame_rate(clip, reply.fps, task)
                if reply.error or not rate:
                    # A folder that is not on this node may be on the others.
                    is_lasting = not (reply.in_window or reply.storage_fails or reply.gone)
                    failed[place] = (reply.error or NO_RATE, is_lasting)
            spared = replacing.replace(failed)
            if failed and time.monotonic() > self._deadline:
                what = f"a batch took more than {units.duration(self._timeout_s)}"
                raise _too_many(what, self.failures.bad, task.source)
            places = sorted(again + spared)
        filled = replacing.fill()
        if filled.is_empty:
            return None
        for place, source in enumerate(filled.sources):
            if place != source:
                video[place], rates[place] = video[source], rates[source]
        more = {"decode_s": self._decode_s, "decoder_bytes": self._decoder_bytes}
        at, fps = (task.epoch, task.index), torch.from_numpy(rates)
        return Batch.of(bucket, at, replacing.chosen, fps, video=video, **more)


def frame_rate(clip: Clip, file_fps: float, task: Task) -> float:
    """Frames per second of the batch; 0 when neither manifest nor file knows."""
    if task.bucket.frames == 1:
        return IMAGE_FPS
    if not task.has_whole_fps:
        return (clip.fps if clip.fps > 0 else file_fps) / task.interval
    rate = file_fps if file_fps > 0 else clip.fps
    if not rate > 0:  # NaN, too
        return 0.0
    return rate // task.interval or rate / task.interval  # less than one a second is not nothing


def leave_out_bad(source: Path) -> str:
    """The commands that make a manifest without clips that cannot be read."""
    name = source.name if source.suffix in SUFFIXES else f"{source.stem}.csv"
    names = (source, source.with_name(f"checked-{name}"), source.with_name(f"good-{name}"))
    source_, checked, good = (shlex.quote(str(path)) for path in names)
    return (
        f"python -m trainer.data check {source_} {checked}; "
        f"python -m trainer.data filter {checked} {good} --checked"
    )


def _too_many(what: str, bad: list[Bad], source: Path | None) -> TooManyBadSamples:
    hint = "is the folder of the clips on this node? If they are bad, leave them out: "
    shown = "".join(f"\n  {clip.path}: {clip.reason}" for clip in bad[:10])
    more = f"\n  and {len(bad) - 10} more" if len(bad) > 10 else ""
    text = f"{what}{shown}{more}"
    error = TooManyBadSamples(text, hint=hint + leave_out_bad(source) if source else None)
    error.bad = bad
    return error
