"""From the plan to batches: what a rank trains on, step by step, decoded ahead of need.

The rank's own process sends tasks (paths, windows, captions) and gets uint8 batches; it holds the
manifest, the workers hold nothing. `workers` = N are torch DataLoader workers, started by forkserver
so that none is forked from a process with threads; 0 is one thread of the rank instead. Either way
PyAV runs only in decoding processes with a deadline for each clip (decode.py).
"""

# B clips · C channels · T frames · H,W pixels

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from trainer.data.decode import Decoder, DecoderBroken, die_with_parent
from trainer.data.microbatch import Batch, Task, assemble, make_task
from trainer.data.plan import Cursor, DataPlan, DataStateError
from trainer.errors import TooManyBadSamples, TrainerError


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
        try:
            return assemble(task, self._decoder, self.options.batch_timeout_s)
        except DecoderBroken as error:
            return {"broken": str(error)}

    def abort(self) -> None:
        """End the decoding process, also from another thread in the middle of a batch."""
        decoder, self._decoder = self._decoder, None
        if decoder is not None:
            decoder.abort()


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
        self._dataset = ClipDataset(options, f"decode {rank}")
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
            if "broken" in batch:
                self.close()
                raise LoaderError(f"rank {self.rank}: {batch['broken']}")
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
        self._dataset.abort()
        batches, self._batches = self._batches, None
        if isinstance(batches, _ThreadBatches):
            batches.close()
        del batches  # torch's iterator ends its workers when it goes

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
        # the limit inside assemble speaks first: it can name the clips
        limit_s = self._options.batch_timeout_s + 2 * self._options.clip_timeout_s
        if self._workers == 0:
            return _ThreadBatches(self._dataset, self._tasks(), ahead, limit_s)
        context = multiprocessing.get_context("forkserver")
        # torch is imported once, in the server; each worker is a fork of it (shared memory)
        context.set_forkserver_preload([__name__])
        loader: DataLoader[Batch] = DataLoader(
            self._dataset,
            batch_size=None,
            sampler=_Endless(self._tasks()),
            num_workers=self._workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]  # one sample, not a list
            timeout=limit_s,
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


class _ThreadBatches(Iterator[Batch]):
    """Batches made on one thread, `ahead` of need; it mostly waits for the decoding process.

    A daemon thread: one that waits for a late clip must not hold up the end of the program.
    """

    def __init__(
        self, dataset: ClipDataset, tasks: Iterator[Task], ahead: int, limit_s: float
    ) -> None:
        self._dataset, self._tasks, self._limit_s = dataset, tasks, limit_s
        self._asked: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        for task in itertools.islice(tasks, ahead):
            self._asked.put(task)
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self._thread.start()

    def __next__(self) -> Batch:
        task = next(self._tasks, None)
        if task is not None:
            self._asked.put(task)
        try:
            made = self._made.get(timeout=self._limit_s)
        except queue.Empty:
            raise RuntimeError(f"no batch within {self._limit_s:g} s") from None
        if isinstance(made, BaseException):
            raise made
        return made

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(timeout=5)

    def _work(self) -> None:
        while True:
            task = self._asked.get()
            if task is None:
                return
            try:
                self._made.put(self._dataset[task])
            except BaseException as error:  # noqa: BLE001 - thread boundary: raised by __next__
                self._made.put(error)


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
