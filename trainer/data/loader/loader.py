"""From the plan to batches: what a rank trains on, step by step, decoded ahead of need.

A worker is a decoding process (decode.py) and a thread of the rank that waits for it and fills the
batch. torch's DataLoader is not used: its workers cost 190 MB of torch each, hand tensors over by a
socket without a deadline (a stopped worker hangs the rank, whatever `timeout` says), and as
children of a fork server outlive a killed rank. Here every wait has a deadline.
"""

# B clips · C channels · T frames · H,W pixels

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from trainer.config.keys import DatasetConfig
from trainer.data.loader.microbatch import Batch, assemble
from trainer.data.loader.task import Clip, Task, make_task
from trainer.data.plan.buckets import Bucket, Ints
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.data.video.decode import START_TIMEOUT_S, Decoder, DecoderBroken
from trainer.data.video.other_size import OtherSizes
from trainer.errors import ConfigError, TrainerError
from trainer.runlog import units

_EMPTY = 100  # epochs without a step, one after another: chance leaves out one, hardly so many


class LoaderError(TrainerError):
    """Batches cannot be made at all; the message says why."""


class TooFewClips(LoaderError):
    """No epoch holds a step of these ranks."""

    exit_code = 2


def longest_wait_s(data: DatasetConfig) -> float:
    """The limit of a batch and of its last clip; a worker that exceeds it is broken."""
    return data.batch_timeout_s + 2 * data.clip_timeout_s + START_TIMEOUT_S


def require_below(data: DatasetConfig, group_s: float) -> None:
    """Raise ConfigError when other ranks, which wait `group_s`, give up before a worker."""
    if (longest := longest_wait_s(data)) >= group_s:
        raise ConfigError(
            f"a rank may wait {units.duration(longest)} for a batch (dataset.batch_timeout_s = "
            f"{data.batch_timeout_s:g}, twice dataset.clip_timeout_s, "
            f"{units.duration(START_TIMEOUT_S)} to start), and the others wait for it only "
            f"process_group_timeout_s = {group_s:g}",
            hint=f"--process-group-timeout-s {longest + 60:g}, or shorter limits for data",
        )


class Worker:
    """Makes batches on a thread, in order: calls `make(task, pin=...)`, and `end()` as its last
    act. `abort()`, from another thread, makes a `make` that is under way return."""

    def __init__(
        self,
        options: DatasetConfig,
        role: str,
        make: Callable[..., Batch],
        end: Callable[[], None],
        abort: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._make, self._end, self._abort = options, make, end, abort
        self.asked: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._made: queue.Queue[Batch | BaseException] = queue.Queue()
        # A daemon: a thread that waits for a late clip must not hold up the end of the program.
        self._thread = threading.Thread(target=self._work, name=role, daemon=True)
        self._thread.start()
        # Python ends daemon threads on their way back from a torch operation, and C++ then calls
        # abort(): a finished rank would look killed. So the thread ends before the interpreter.
        atexit.register(self.close)

    def take(self) -> Batch:
        """The batch of the oldest task; raises what went wrong with it."""
        limit_s = longest_wait_s(self._options)
        made, until = None, time.monotonic() + limit_s
        while made is None:
            working = self._thread.is_alive()
            try:
                made = self._made.get(timeout=1.0 if working else 0.0)
            except queue.Empty:
                if not working:
                    raise LoaderError("the thread that makes batches has ended") from None
                if time.monotonic() > until:
                    raise LoaderError(f"no batch within {units.duration(limit_s)}") from None
        if isinstance(made, BaseException):
            raise made
        return made

    def close(self) -> None:
        """End thread and process, also in the middle of a batch."""
        atexit.unregister(self.close)
        self.asked.put(None)
        self._abort()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        pin = torch.cuda.is_available()
        for task in iter(self.asked.get, None):
            try:
                self._made.put(self._make(task, pin=pin))
            except BaseException as error:  # noqa: BLE001 - thread boundary: raised by take()
                self._made.put(error)
        self._end()


@dataclass(eq=False)
class Loader:
    """Batches of one rank. Iterating gives the rest of the cursor's epoch; again, the next epoch.
    `cursor` stands after the last batch given out; `len()` batches are left in its epoch."""

    plan: DataPlan
    cursor: Cursor
    rank: int
    world: int
    workers: int
    options: DatasetConfig
    each: int = 1  # batches of this rank in a step
    prefetch_factor: int | None = None  # batches ahead per worker; default 2
    # path and reason of clips that could not be read: they are replaced without being tried
    known_bad: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise LoaderError(f"rank {self.rank} of {self.world}")
        self._left = self._batches(self.cursor)
        self._other_sizes = OtherSizes(self.rank, "trained on")
        self._workers: list[Worker] = []
        self._turns: Iterator[Worker] = iter(())
        self._ahead: Iterator[Task] = iter(())

    def __len__(self) -> int:
        return self._left

    def _batches(self, cursor: Cursor) -> int:
        """This rank's batches in the rest of the cursor's epoch, whole steps only."""
        return self.plan.steps(cursor, self.world * self.each) * self.each

    def __iter__(self) -> Iterator[Batch]:
        if not self._workers:
            self._start()
        while self._left:
            worker = next(self._turns)
            try:
                batch = worker.take()
            except BaseException as error:
                self.close()
                if isinstance(error, DecoderBroken):
                    raise LoaderError(f"rank {self.rank}: {error}", hint=error.hint) from None
                raise
            self._ask(worker)
            for clip in batch.failures.resized:
                self._other_sizes.tell(clip.path, clip.reason)
            self.cursor = self.cursor.after_step(self.world)
            self._left -= 1
            yield batch
        self.cursor = self.next_place() or self.cursor
        self._left = self._batches(self.cursor)

    def next_place(self, epochs: int | None = None) -> Cursor | None:
        """Where the next step begins; None when no epoch before number `epochs` has one, by chance
        or with few microbatches left. Raises TooFewClips, on all ranks, when it is not chance."""
        cursor = self.cursor
        for _ in range(_EMPTY):
            if epochs is not None and cursor.epoch >= epochs:
                return None
            if self._left if cursor == self.cursor else self._batches(cursor):
                return cursor
            cursor = cursor.next_epoch()
        here, need = self.cursor, self.world * self.each
        count = max(0, len(self.plan.epoch(here.epoch)) - here.consumed)
        unplaced = self.plan.unplaced()
        error = TooFewClips(
            f"epoch {here.epoch} has {count} microbatches{' left' if here.consumed else ''}, "
            f"{self.world} ranks need {need} for a step, and none of the next {_EMPTY} epochs has "
            "as many" + (f": {unplaced}" if unplaced else ""),
            hint=("shorter or smaller buckets in bucket_config, " if unplaced else "")
            + "smaller batch sizes in bucket_config, fewer ranks or accumulation_steps, or more "
            "clips; python -m trainer.data stats MANIFEST CONFIG counts them",
        )
        error.on_all_ranks = True
        raise error

    def coming(self) -> tuple[tuple[int, int], Bucket] | None:
        """Epoch, index and bucket of the batch that is next, where it is of this epoch."""
        if not self._left:
            return None
        epoch, index = self.cursor.epoch, self.cursor.consumed + self.rank
        return (epoch, index), self.plan.buckets.cells[int(self.plan.epoch(epoch).cells[index])]

    def cells_of_step(self) -> Ints:
        """Buckets [world, each] of the step whose last batch was given out, of all ranks."""
        end, count = self.cursor.consumed, self.world * self.each
        cells = self.plan.epoch(self.cursor.epoch).cells[end - count : end]
        return cells.reshape(self.each, self.world).T

    def stand_in(self) -> Batch:
        """A batch of one black clip in the next batch's shape, for a rank without data."""
        cursor = self.next_place() or self.cursor
        cells = self.plan.epoch(cursor.epoch).cells
        index = min(cursor.consumed + self.rank, len(cells) - 1)
        bucket = self.plan.buckets.cells[int(cells[index])]
        shape = (1, 3, bucket.frames, bucket.height, bucket.width)
        video, fps = torch.zeros(shape, dtype=torch.uint8), torch.full((1,), 24.0)
        black = Clip(row=-1, path="", text="", start=0, expected=bucket.frames, fps=24.0)
        batch = Batch.of(bucket, (cursor.epoch, index), [black], fps, video=video)
        batch.rows = []  # it trains on none of the manifest
        return batch

    def close(self) -> None:
        """End the workers; iterating again starts new ones at the cursor."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()

    def _start(self) -> None:
        self._ahead = self._tasks()
        roles = [f"loader {self.rank}.{number}" for number in range(max(1, self.workers))]
        self._workers = [self._worker(role) for role in roles]
        self._turns = itertools.cycle(self._workers)
        for _ in range(self.prefetch_factor or 2):
            for worker in self._workers:
                self._ask(worker)

    def _worker(self, role: str) -> Worker:
        options = self.options
        cache_bytes, memory_bytes = options.cache_decoded_mb << 20, options.worker_memory_mb << 20
        decoder = Decoder(options.clip_timeout_s, cache_bytes, role, memory_bytes, options.resize)
        limits: Any = {"timeout_s": options.batch_timeout_s, "known": self.known_bad}
        make = partial(assemble, decoder=decoder, **limits)
        return Worker(options, role, make, decoder.close, decoder.abort)

    def _ask(self, worker: Worker) -> None:
        if (task := next(self._ahead, None)) is not None:
            worker.asked.put(task)

    def _tasks(self) -> Iterator[Task]:
        """This rank's tasks from the cursor on, epoch after epoch without end."""
        cursor, empty = self.cursor, 0
        while empty < _EMPTY:
            batches = self._batches(cursor)
            empty = 0 if batches else empty + 1
            for number in range(batches):
                index = cursor.consumed + number * self.world + self.rank
                yield make_task(self.plan, cursor.epoch, index, self.options)
            cursor = cursor.next_epoch()
