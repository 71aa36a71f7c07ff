"""What is done to one rank of a job, and who has to be named for it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.hangs.rig import WORLD, Job

Begin = Callable[[Job, int], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """`begin(job, rank)` is a context manager; one that `ends_the_job` is the last of its job.

    `roles` of the suspect that are right. `only_rank` None: any rank can have it.
    """

    name: str
    begin: Begin
    roles: tuple[str, ...] = ("trainer", "loader")
    ends_the_job: bool = False
    only_rank: int | None = None
    needs_workers: bool = False
    hangs: bool = True
    kind: str = ""  # of a verdict that is right although it names nobody

    def rank(self, draw: random.Random) -> int:
        return draw.randrange(WORLD) if self.only_rank is None else self.only_rank


@contextmanager
def nothing(job: Job, _: int) -> Iterator[None]:
    yield


@contextmanager
def blocked(job: Job, rank: int) -> Iterator[None]:
    """The dataset's file is a pipe that nobody writes to."""
    job.read_from(rank, job.data(rank) / "stream")
    try:
        yield
    finally:
        job.read_from(rank, job.site.folder / f"mount-{rank}" / "clip.bin")
        feed(job, rank)


def feed(job: Job, rank: int) -> None:
    """Write to the pipe until nobody reads it any more."""

    def is_free() -> bool:
        with contextlib.suppress(OSError):
            pipe = os.open(job.data(rank) / "stream", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, bytes(8))
            os.close(pipe)
            return False
        return True

    job.until("readers of the pipe", is_free, 30)


@contextmanager
def storage(job: Job, rank: int) -> Iterator[None]:
    """The file system of the clips answers no read."""
    with job.site.mounts[rank].hanging():
        yield


@contextmanager
def asleep(job: Job, rank: int) -> Iterator[None]:
    """The user's own function waits for something."""
    busy = job.data(rank) / "busy"
    busy.touch()
    try:
        yield
    finally:
        busy.unlink()


@contextmanager
def stopped(job: Job, pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def stopped_worker(job: Job, rank: int) -> AbstractContextManager[None]:
    return stopped(job, job.workers(rank)[:1])


def stopped_rank(job: Job, rank: int) -> AbstractContextManager[None]:
    return stopped(job, [job.rank_pid(rank)])


@contextmanager
def long_save(job: Job, _: int) -> Iterator[None]:
    """The disk of the checkpoints takes nothing more: its writers sleep in the kernel."""
    with job.site.frozen_disk():
        yield


@contextmanager
def left_early(job: Job, rank: int) -> Iterator[None]:
    job.may_end.add(rank)
    (job.data(rank) / "enough").touch()
    yield


@contextmanager
def dead(job: Job, rank: int) -> Iterator[None]:
    """Its worker lives on and holds the sockets, so that no peer is told."""
    job.may_end.add(rank)
    os.kill(job.workers(rank)[0], signal.SIGSTOP)
    os.kill(job.rank_pid(rank), signal.SIGKILL)
    yield


FAULTS = {
    one.name: one
    for one in (
        Fault("none", nothing, hangs=False),
        Fault("blocked in user code", blocked),
        Fault("storage stalled", storage),
        Fault("asleep in user code", asleep, ("trainer",)),
        Fault("worker stopped", stopped_worker, ("loader",), needs_workers=True),
        Fault("rank stopped", stopped_rank, ("trainer",)),
        Fault("long save", long_save, only_rank=0, kind="waiting"),
        Fault("left early", left_early, ("trainer",), ends_the_job=True),
        Fault("dead", dead, ends_the_job=True, needs_workers=True),
    )
}
