"""What a command without screens reads, and how it ends.

Nodes and a run, a simulated cluster, or a recording; until Ctrl-C, SIGTERM or a closed terminal.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.runs.find import find_run
from clusterctl.settings import Settings
from clusterctl.signal_handlers import handled_by
from clusterctl.transport.base import Limits
from dashboards.alerts.engine import HURRY_TICKS
from dashboards.feeds.run_dir import (
    RunDirFeed,
    Together,
    as_sample,
    newest_run,
    opened,
    steady_clock,
    timed_records,
)
from dashboards.model.samples import Feed, Restored, Sample, Tick
from dashboards.model.state import INTERRUPTED
from dashboards.recording.reader import Recorded
from dashboards.simulation.cluster import DemoFeed

OUTPUTS = Path("outputs")
MOST_ROUNDS = 1_000_000  # of a run that is played again: 11 days of seconds
GAP_ROUNDS = 500
NAP_S = 0.1  # how late a signal may be noticed

Batches = Iterator[list[Sample]]
"""Samples of one round after another; the last one of each is its Tick."""


def live_feed(
    settings: Settings, output: Output, *, run_dir: Path | None, demo: bool, interval_s: float
) -> Feed:
    """Nodes of the hostfile and the run directory, or the simulated cluster.

    Raises `HostfileError` when there is neither a hostfile nor a run, `UsageError` for a folder
    that holds no run.
    """
    clock = steady_clock()
    if demo:
        return DemoFeed(clock=clock)
    place, newest_below = (OUTPUTS, True) if run_dir is None else (find_run(str(run_dir)), False)
    run = RunDirFeed(place, clock=clock, interval_s=interval_s, newest_below=newest_below)
    has_run = run_dir is not None or newest_run(OUTPUTS) is not None
    if has_run and not (settings.hostfile.exists() or settings.only or settings.without):
        output.note(f"no hostfile {settings.hostfile}: only the run is watched")
        return Together([run])
    # Only here: paramiko takes a quarter of a second to import.
    from dashboards.feeds.ssh import SshFeed

    cluster, source = settings.cluster(output.sweep), str(settings.hostfile)
    nodes = SshFeed(cluster, clock=clock, interval_s=interval_s, source=source)
    return Together([nodes, run])


def patience_s(limits: Limits) -> float:
    """Seconds until the slowest node has answered or failed once."""
    return limits.deadline_s(5.0)


def live_batches(
    feed: Feed,
    *,
    interval_s: float,
    ending: Ending,
    limits: Limits,
    once: bool,
    for_s: float | None = None,
) -> Batches:
    """A round every `interval_s` until the ending is set.

    `once`: from when every source has answered or failed, only as many rounds as alerts need.
    """
    feed.start()
    try:
        begin = due = time.monotonic()
        end = begin + for_s if for_s is not None else math.inf
        rounds = HURRY_TICKS + 1
        while not ending.is_set():
            reads, settled = feed.reads(), feed.settled()  # in this order: see `once.collect`
            yield [*feed.drain(), Tick(feed.now())]
            now = time.monotonic()
            if once and (settled or (now - begin > patience_s(limits) and not reads)):
                rounds -= 1
                if rounds < 0:
                    return
            due = max(due + interval_s, now)
            while not ending.is_set() and (left_s := min(due, end) - time.monotonic()) > 0:
                time.sleep(min(NAP_S, left_s))
            if time.monotonic() >= end:
                return
    finally:
        feed.close()


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recording or a run directory in its own time, without waiting."""

    nodes: Sequence[str]
    batches: Batches
    damage: Callable[[], str] = str  # what could not be read so far, as a sentence


def replayed(path: Path) -> Replayed:
    """Raises `UsageError` when it cannot be read."""
    if path.is_dir() or not path.exists():
        return Replayed((), _rounds_of_run(find_run(str(path))))
    try:
        recorded = Recorded(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return Replayed(recorded.nodes, _rounds_of_recording(recorded), lambda: recorded.damage)


def _rounds_of_recording(recorded: Recorded) -> Batches:
    """All sessions of a file in its order; each begins with the state as it was then."""
    number, was_read = 0, False
    try:
        while number < recorded.key_count:
            found = recorded.at_key(number)
            if found is None:
                number += 1
                continue
            was_read = True
            state, place = found
            yield [Restored(state), Tick(state.now_s)]
            for at_s, samples in recorded.rounds(place):
                yield [*samples, Tick(at_s)]
            # By number, not by time: a session may have started before the one in front of it.
            number = recorded.key_behind(place)
    finally:
        recorded.close()
    if not was_read:
        raise UsageError(f"{recorded.path}: no part of it can be read")


def _rounds_of_run(run_dir: Path) -> Batches:
    """A round each second from the first record to the last.

    Where nothing was written for long the rounds are further apart, a 500th of that time: a week
    takes 4,000 rounds and not 600,000, and the durations in alerts are right to 0.2 %.
    """
    try:
        timed = timed_records(run_dir)
        opening = opened(run_dir, 0.0)
    except OSError as error:
        raise UsageError(f"{run_dir} cannot be read: {error}") from None

    if not timed:
        return
    now_s = last_s = timed[0][0]
    # Whatever times somebody wrote into the files.
    interval_s = max(1.0, (timed[-1][0] - now_s) / MOST_ROUNDS)
    batch: list[Sample] = [replace(opening, at_s=now_s)]
    for at_s, record, source in timed:
        while at_s > now_s:
            yield [*batch, Tick(now_s)]
            apart_s = max(interval_s, min((now_s - last_s) / GAP_ROUNDS, at_s - now_s))
            batch, now_s = [], now_s + apart_s
        batch.append(as_sample(record, at_s, source))
        last_s = at_s
    yield [*batch, Tick(now_s)]


class Ending:
    """Set by a signal. A plain attribute: an Event's lock must not be taken in a handler."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def is_set(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C; 0 for SIGTERM, which is how services are ended."""
        return INTERRUPTED if self.signal == signal.SIGINT else 0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """The first signal sets the ending; a second Ctrl-C interrupts whatever still waits."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending  # signals are the main thread's
        return

    def end(number: int, _frame: object) -> None:
        if ending.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        ending.signal = number

    with handled_by(end):
        yield ending
