"""One microbatch: the task for a worker, and the batch that it makes."""

# B clips · C channels · T frames · H,W pixels

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.manifest.manifest import SUFFIXES
from trainer.data.plan.buckets import Bucket, bits
from trainer.data.plan.data_plan import DataPlan
from trainer.data.video.decode import IMAGE_FPS, Decoder, Window
from trainer.data.video.outage import Outage
from trainer.errors import TooManyBadSamples

Bad = tuple[int, str, str]  # row, path, reason
_WINDOW = 3  # keeps this draw apart from the plan's
NO_RATE = "frame rate unknown"
_SPARES = 8  # substitutes beyond one for each clip


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
    bad: list[Bad] = field(default_factory=list)  # clips that were replaced
    decode_s: float = 0.0  # CPU seconds of decoding
    decoder_bytes: int = 0  # peak resident memory of the decoding process

    @classmethod
    def of(
        cls, bucket: Bucket, place: tuple[int, int], clips: Sequence[Clip], fps: Tensor, **more: Any
    ) -> Batch:
        """With the bucket's name and sizes for each clip."""
        sizes = (bucket.height, bucket.width, bucket.frames)
        height, width, frames = (torch.full((len(clips),), float(size)) for size in sizes)
        rows, text = [clip.row for clip in clips], [clip.text for clip in clips]
        return cls(place, bucket.name, rows, text, fps, height, width, frames, **more)


@dataclass(frozen=True, slots=True)
class Clip:
    """One row as a worker needs it."""

    row: int
    path: str
    text: str
    start: int  # first frame of the window
    expected: int  # frames the manifest says
    fps: float  # of the manifest, NaN: unknown


@dataclass(frozen=True, slots=True)
class Task:
    """One microbatch: its clips and, in order, substitutes for those that cannot be read."""

    epoch: int
    index: int  # in the epoch's plan
    bucket: Bucket
    interval: int
    resize: str
    clips: tuple[Clip, ...]
    spares: tuple[Clip, ...]
    source: Path | None = None  # the manifest, for what to do about bad clips


def make_task(plan: DataPlan, epoch: int, index: int, resize: str = "bilinear") -> Task:
    """Microbatch `index` of an epoch: a pure function, equal on every rank and worker."""
    epoch_plan = plan.epoch(epoch)
    batch = epoch_plan[index]
    bucket, interval, manifest = plan.buckets.cells[batch.cell], plan.frame_interval, plan.manifest
    spares = epoch_plan.substitutes(index, len(batch.rows) + _SPARES)
    rows = np.concatenate([batch.rows, spares])
    lengths = manifest.num_frames[rows].astype(np.int64)
    # upstream's choice of starts: it never takes the last possible one
    choices = np.maximum(1, lengths - bucket.frames * interval).astype(np.uint64)
    starts = bits(plan.keys(rows), plan.seed, epoch, _WINDOW) % choices
    columns = (rows, starts, lengths, manifest.fps[rows])
    clips = [
        Clip(row, manifest.locate(row), manifest.texts[row], start, length, fps)
        for row, start, length, fps in zip(*(column.tolist() for column in columns), strict=True)
    ]
    count = len(batch.rows)
    wanted, spare = tuple(clips[:count]), tuple(clips[count:])
    return Task(epoch, index, bucket, interval, resize, wanted, spare, manifest.source)


def assemble(task: Task, decoder: Decoder, timeout_s: float, pin: bool = False) -> Batch:
    """Decode a task, with `pin` into page-locked memory; clips that fail are replaced from the
    spares, those whose storage fails are tried again first (`Outage`). Raises TooManyBadSamples
    when none is left or `timeout_s` is over, and DecoderBroken."""
    bucket = task.bucket
    shape = (3, bucket.frames, bucket.height, bucket.width)
    size = (bucket.frames, task.interval, bucket.height, bucket.width)
    dtype = torch.float32 if task.resize == "torch" else torch.uint8
    video = torch.empty((len(task.clips), *shape), dtype=dtype, pin_memory=pin)
    video_BCTHW = video.numpy()  # the same memory
    chosen = list(task.clips)
    rates = np.zeros(len(chosen), np.float32)
    bad: list[Bad] = []
    spares = deque(task.spares)
    decoder.start()  # not part of a clip's time
    deadline, decode_s, decoder_bytes = time.monotonic() + timeout_s, 0.0, 0
    outage = Outage(deadline)
    places = list(range(len(chosen)))
    while places:
        clips = [chosen[place] for place in places]
        windows = [Window(clip.start, *size, clip.expected, task.resize) for clip in clips]
        asked = [(clip.path, window) for clip, window in zip(clips, windows, strict=True)]
        into = [video_BCTHW[place] for place in places]
        _, replies = decoder.decode(asked, shape, deadline, into)
        again: list[int] = []
        failed: list[int] = []
        stuck = any(reply.storage_fails for reply in replies)
        waited = stuck and outage.lasts(any(not reply.error for reply in replies))
        for place, clip, reply in zip(places, clips, replies, strict=True):
            decode_s += reply.cpu_s
            decoder_bytes = max(decoder_bytes, reply.memory_bytes)
            if waited and reply.storage_fails:
                again.append(place)
                continue
            rates[place] = rate = frame_rate(clip, reply.fps, task)
            if reply.error or not rate:
                bad.append((clip.row, clip.path, reply.error or NO_RATE))
                failed.append(place)
        late = failed and time.monotonic() > deadline
        if late or len(failed) > len(spares):
            what = f"a batch took more than {timeout_s:g} s" if late else no_replacement(bucket)
            hint = "is the folder of the clips on this node? If they are bad, leave them out: "
            raise too_many(what, bad, hint + leave_out_bad(task.source) if task.source else None)
        places = sorted(again + failed)
        for place in failed:
            chosen[place] = spares.popleft()
    more = {"bad": bad, "decode_s": decode_s, "decoder_bytes": decoder_bytes}
    at, fps = (task.epoch, task.index), torch.from_numpy(rates)
    return Batch.of(bucket, at, chosen, fps, video=video, **more)


def frame_rate(clip: Clip, file_fps: float, task: Task) -> float:
    """Frames per second of the batch; 0 when neither manifest nor file knows."""
    if task.bucket.frames == 1:
        return IMAGE_FPS
    return (clip.fps if clip.fps > 0 else file_fps) / task.interval


def leave_out_bad(source: Path) -> str:
    """The commands that make a manifest without clips that cannot be read."""
    name = source.name if source.suffix in SUFFIXES else f"{source.stem}.csv"
    names = (source, source.with_name(f"checked-{name}"), source.with_name(f"good-{name}"))
    source_, checked, good = (shlex.quote(str(path)) for path in names)
    return (
        f"python -m trainer.data check {source_} {checked}; "
        f"python -m trainer.data filter {checked} {good} --checked"
    )


def no_replacement(bucket: Bucket) -> str:
    return f"no clip of bucket {bucket.name} is left as a replacement"


def too_many(what: str, bad: list[Bad], hint: str | None = None) -> TooManyBadSamples:
    shown = "".join(f"\n  {path}: {reason}" for _, path, reason in bad[:10])
    more = f"\n  and {len(bad) - 10} more" if len(bad) > 10 else ""
    error = TooManyBadSamples(f"{what}{shown}{more}", hint=hint)
    error.bad = bad
    return error
