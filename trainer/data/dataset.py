"""From the plan to batches: what a rank trains on, step by step, decoded ahead of need.

The rank's own process sends tasks (paths, windows, captions) and gets uint8 batches; it holds the
manifest, the workers hold nothing. `workers` = N are torch DataLoader workers, started by forkserver
so that none is forked from a process with threads; 0 is one thread of the rank instead. Either way
PyAV runs only in decoding processes with a deadline for each clip (decode.py).
"""

# B clips · C channels · T frames · H,W pixels

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from trainer.data.buckets import Bucket
from trainer.data.chance import bits
from trainer.data.decode import IMAGE_FPS, Decoder, Reply, Window, die_with_parent
from trainer.data.plan import Cursor, DataPlan, DataStateError, Microbatch
from trainer.errors import TooManyBadSamples, TrainerError

Batch = dict[str, Any]
_WINDOW = 3  # word that keeps this draw apart from the plan's
_SPARES = 8  # substitutes beyond one for each clip


class LoaderError(TrainerError):
    """Batches cannot be made; the message says which process ended and why."""


@dataclass(frozen=True)
class LoaderOptions:
    """How clips are read."""

    clip_timeout_s: float = 30.0  # after that a clip is bad and its decoding process replaced
    batch_timeout_s: float = 600.0  # after that the run stops
    cache_decoded_mb: int = 0  # decoded clips each worker keeps; for small data sets
    prefetch_factor: int | None = None  # batches ahead per worker; default 2

    @classmethod
    def of(cls, config: Any) -> LoaderOptions:
        """From a training configuration, which may also be None or options already."""
        if config is None:
            return cls()
        if isinstance(config, cls):
            return config
        return cls(
            config.dataset.clip_timeout_s,
            config.dataset.batch_timeout_s,
            config.dataset.cache_decoded_mb,
            config.prefetch_factor,
        )


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
    """One microbatch: its clips and, in order, what stands in for those that cannot be read."""

    bucket: Bucket
    interval: int
    clips: tuple[Clip, ...]
    spares: tuple[Clip, ...]


def make_task(plan: DataPlan, epoch: int, index: int) -> Task:
    """Microbatch `index` of an epoch; the same for every rank, worker and moment."""
    epoch_plan = plan.epoch(epoch)
    batch: Microbatch = epoch_plan.microbatches[index]
    bucket, interval, manifest = plan.bucket(batch), plan.frame_interval, plan.manifest

    spares = epoch_plan.substitutes(index, len(batch.rows) + _SPARES)
    rows = np.concatenate([batch.rows, spares])
    lengths = manifest.num_frames[rows].astype(np.int64)
    # upstream's choice of starts: it never takes the last possible one
    choices = np.maximum(1, lengths - bucket.frames * interval).astype(np.uint64)
    starts = bits(rows, plan.seed, epoch, _WINDOW) % choices
    columns = (rows, starts, lengths, manifest.fps[rows])
    clips = [
        Clip(row, manifest.locate(row), manifest.texts[row], start, length, fps)
        for row, start, length, fps in zip(*(column.tolist() for column in columns), strict=True)
    ]
    count = len(batch.rows)
    return Task(bucket, interval, tuple(clips[:count]), tuple(clips[count:]))


class ClipDataset(Dataset[Batch]):
    """Turns a task into a batch; lives in each worker with a decoding process of its own."""

    def __init__(self, options: LoaderOptions, role: str) -> None:
        self.options, self._role = options, role
        self._decoder: Decoder | None = None

    def __getitem__(self, task: Task) -> Batch:
        if self._decoder is None:
            worker = get_worker_info()
            self._decoder = Decoder(
                self.options.clip_timeout_s,
                self.options.cache_decoded_mb << 20,
                self._role if worker is None else f"{self._role}.{worker.id}",
            )
        return assemble(task, self._decoder, self.options.batch_timeout_s)

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None


def assemble(task: Task, decoder: Decoder, timeout_s: float) -> Batch:
    """Decode a task. Clips that fail are replaced from the spares, in their order.

    A batch that cannot be filled has "failed" set to a sentence: an exception would come out of the
    worker as a page of traceback.
    """
    bucket = task.bucket
    shape = (3, bucket.frames, bucket.height, bucket.width)
    video = torch.empty((len(task.clips), *shape), dtype=torch.uint8)
    chosen: list[Clip | None] = [None] * len(task.clips)
    rates = np.zeros(len(task.clips), np.float32)
    bad: list[tuple[int, str, str]] = []
    spares = deque(task.spares)
    began, decode_s = time.monotonic(), 0.0
    places = list(range(len(task.clips)))
    clips = list(task.clips)
    while places:
        windows = [
            Window(c.start, bucket.frames, task.interval, bucket.height, bucket.width, c.expected)
            for c in clips
        ]
        asked = [(clip.path, window) for clip, window in zip(clips, windows, strict=True)]
        pixels, replies = decoder.decode(asked, shape)
        failed: list[int] = []
        for nth, (place, clip, reply) in enumerate(zip(places, clips, replies, strict=True)):
            decode_s += reply.cpu_s
            rate = _rate(clip, reply, task)
            if reply.error or not rate:
                bad.append((clip.row, clip.path, reply.error or "frame rate unknown"))
                failed.append(place)
                continue
            video[place] = torch.from_numpy(pixels[nth])
            chosen[place], rates[place] = clip, rate
        if time.monotonic() - began > timeout_s:
            return {"failed": f"a batch took more than {timeout_s:g} s", "bad": bad}
        if len(failed) > len(spares):
            return {"failed": f"no clip of bucket {bucket.name} is left to stand in", "bad": bad}
        places, clips = failed, [spares.popleft() for _ in failed]
    done = [clip for clip in chosen if clip is not None]
    count = len(done)
    return {
        "video": video,
        "text": [clip.text for clip in done],
        "fps": torch.from_numpy(rates),
        "height": torch.full((count,), float(bucket.height)),
        "width": torch.full((count,), float(bucket.width)),
        "num_frames": torch.full((count,), float(bucket.frames)),
        "rows": [clip.row for clip in done],
        "bucket": bucket.name,
        "decode_s": decode_s,
        "bad": bad,
    }


def _rate(clip: Clip, reply: Reply, task: Task) -> float:
    """Frames a second as the model sees them; 0 when neither manifest nor file knows."""
    if task.bucket.frames == 1:
        return IMAGE_FPS
    fps = clip.fps if clip.fps > 0 else reply.fps
    return fps / task.interval


class Loader:
    """Batches of one rank. Iterating gives the rest of the cursor's epoch; again, the next epoch.

    Workers and what they decoded ahead live on between epochs. `cursor` stands after the last batch
    given out: prefetched ones do not count. `len()` is the number of steps left in the epoch.
    """

    def __init__(
        self,
        plan: DataPlan,
        cursor: Cursor,
        rank: int,
        world: int,
        workers: int,
        options: LoaderOptions,
    ) -> None:
        if not 0 <= rank < world:
            raise LoaderError(f"rank {rank} of {world}")
        self.plan, self.cursor, self.rank, self.world = plan, cursor, rank, world
        self._workers, self._options = workers, options
        self._steps = plan.steps(cursor, world)
        self._dataset = ClipDataset(options, f"loader {rank}")
        self._batches: Iterator[Batch] | None = None

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            self._batches = self._start()
        while self._steps:
            try:
                batch = next(self._batches)
            except RuntimeError as error:  # torch's words for a worker that died or is late
                self.close()
                raise LoaderError(f"rank {self.rank}: {error}") from None
            if "failed" in batch:
                self.close()
                raise TooManyBadSamples(_complaint(batch))
            self.cursor = self.cursor.after_step(self.world)
            self._steps -= 1
            yield batch
        self.cursor = self.cursor.next_epoch()
        self._steps = self.plan.steps(self.cursor, self.world)

    def close(self) -> None:
        """End the workers; iterating again starts new ones at the cursor."""
        batches, self._batches = self._batches, None
        if batches is not None and hasattr(batches, "close"):
            batches.close()
        del batches  # torch's iterator ends its workers when it goes
        self._dataset.close()

    def _tasks(self) -> Iterator[Task]:
        """This rank's tasks from the cursor on, epoch after epoch without end."""
        cursor = self.cursor
        while True:
            steps = self.plan.steps(cursor, self.world)
            if not steps and cursor.consumed == 0:
                return  # no epoch of this size has a step; __init__'s caller sees len() == 0
            for step in range(steps):
                index = cursor.consumed + step * self.world + self.rank
                yield make_task(self.plan, cursor.epoch, index)
            cursor = cursor.next_epoch()

    def _start(self) -> Iterator[Batch]:
        ahead = self._options.prefetch_factor or 2
        if self._workers == 0:
            return _on_thread(self._dataset, self._tasks(), ahead, self._options.batch_timeout_s)
        context = multiprocessing.get_context("forkserver")
        # torch is imported once, in the server; each worker is a fork of it (shared memory)
        context.set_forkserver_preload([__name__])
        loader: DataLoader[Batch] = DataLoader(
            self._dataset,
            batch_size=None,
            sampler=_Endless(self._tasks()),
            num_workers=self._workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]  # one sample, not a list
            # the worker's own limit speaks first: it can name the clips
            timeout=self._options.batch_timeout_s + 2 * self._options.clip_timeout_s,
            worker_init_fn=_begin_worker,
            multiprocessing_context=context,
            prefetch_factor=ahead,
            pin_memory=torch.cuda.is_available(),
        )
        with _without_main(), _environment(CLUSTERCTL_ROLE=f"loader {self.rank}"):
            return iter(loader)


def build_loader(
    plan: DataPlan, cursor: Cursor, rank: int, world: int, workers: int, config: Any = None
) -> Loader:
    """Batches for one rank from `cursor` on; one for each step, none short, none skipped.

    A batch has "video" uint8 [B, 3, T, H, W], "text", "fps", "height", "width", "num_frames" (float32
    [B]; the bucket's size), "rows", "bucket", "decode_s" (CPU seconds of decoding) and "bad": (row,
    path, reason) of clips that another stood in for. `config` is a training configuration or
    `LoaderOptions`. Raises DataStateError when not even one step fits into an epoch.
    """
    loader = Loader(plan, cursor, rank, world, workers, LoaderOptions.of(config))
    if not len(loader) and cursor.consumed == 0:
        count = len(plan.epoch(cursor.epoch))
        raise DataStateError(
            f"epoch {cursor.epoch} has {count} microbatches, {world} ranks need {world} for a step",
            hint="smaller batch sizes in bucket_config, fewer ranks, or more clips",
        )
    return loader


class _Endless:
    """A sampler that gives tasks as they are asked for."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks

    def __iter__(self) -> Iterator[Task]:
        return self._tasks


def _on_thread(
    dataset: ClipDataset, tasks: Iterator[Task], ahead: int, timeout_s: float
) -> Iterator[Batch]:
    """Batches made on one thread, `ahead` of need; it mostly waits for the decoding process."""
    with ThreadPoolExecutor(1, thread_name_prefix="loader") as thread:
        waiting: deque[Any] = deque()
        try:
            for task in tasks:
                waiting.append(thread.submit(dataset.__getitem__, task))
                if len(waiting) > ahead:
                    yield waiting.popleft().result(timeout_s * 2)
        finally:
            for future in waiting:
                future.cancel()


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _begin_worker(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the rank, which ends its workers
    die_with_parent(name=f"loader {worker}")
    os.environ["CLUSTERCTL_ROLE"] = f"loader {worker}"


def _complaint(batch: Batch) -> str:
    bad = batch["bad"]
    shown = "".join(f"\n  {path}: {reason}" for _, path, reason in bad[:10])
    more = f"\n  and {len(bad) - 10} more" if len(bad) > 10 else ""
    return f"{batch['failed']}{shown}{more}"


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep workers from importing the program's main module, and with it the engine (10 s each)."""
    main = sys.modules["__main__"]
    names = [name for name in ("__spec__", "__file__") if name in vars(main)]
    kept: dict[str, Any] = {name: vars(main).pop(name) for name in names}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
