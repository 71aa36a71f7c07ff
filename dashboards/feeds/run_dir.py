"""Samples of a run directory that grows; several feeds as one.

`ssh.py` watches nodes, `replay.py` plays recordings, `simulation/cluster.py` simulates a cluster.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterctl.runs.find import EVENTS_FILE as JOURNAL
from clusterctl.runs.find import INCIDENTS_FILE as INCIDENTS
from clusterctl.runs.find import PLAN_FILE, runs_by_time
from clusterctl.runs.journal import incident_event, launcher_event, planned_nodes
from dashboards.model import units
from dashboards.model.samples import (
    READING,
    Clock,
    EventSample,
    Feed,
    RunOpened,
    RunRead,
    Sample,
    StepSample,
)
from dashboards.recording.validation import is_sound
from trainer.runlog import run_files
from trainer.runlog.telemetry import FILE, Event, Record, StepRecord, Tail, decode
from trainer.runlog.validation import FILE as VALIDATION


def steady_clock() -> Clock:
    """Unix time that never jumps: read once, then advanced by the clock that counts from boot.

    That clock also counts while the machine sleeps, which the monotonic clock of Linux does not.
    """
    which = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset = time.time() - time.clock_gettime(which)
    return lambda: time.clock_gettime(which) + offset


class Together:
    """Several feeds as one; the first one's clock counts."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = list(feeds)
        self.nodes = tuple(dict.fromkeys(name for feed in feeds for name in feed.nodes))
        self.source = " + ".join(feed.source for feed in feeds if feed.source)

    def start(self) -> None:
        for feed in self._feeds:
            feed.start()

    def drain(self) -> list[Sample]:
        return [sample for feed in self._feeds for sample in feed.drain()]

    def now(self) -> float:
        return self._feeds[0].now()

    def settled(self) -> bool:
        return all(feed.settled() for feed in self._feeds)

    def reads(self) -> bool:
        return any(feed.reads() for feed in self._feeds)

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()


def newest_run(outputs: Path) -> Path | None:
    """The run directory under `outputs` that was written to last; None when there is none."""
    return next(iter(runs_by_time(outputs)), None)


def opened(run_dir: Path, at_s: float) -> RunOpened:
    """The run's name and, where the launcher's plan.json has them, its nodes and their ranks."""
    plan: Any = None
    with contextlib.suppress(OSError, ValueError):
        plan = run_files.read_object(run_dir, PLAN_FILE)
    planned = planned_nodes(plan)
    names, ranks = tuple(name for name, _ in planned), tuple(count for _, count in planned)
    return RunOpened(str(run_dir), run_dir.resolve().name, at_s, names, ranks)


def telemetry_record(line: bytes | str) -> Record | None:
    """A line of the trainer's telemetry; None for one that is torn or holds what no record can."""
    record = decode(line)
    return record if record is not None and is_sound(record) else None


def journal_event(line: bytes | str) -> Event | None:
    """A line of the launcher's journal as an event; None for one that is torn or something else."""
    event = launcher_event(line)
    return event if event is not None and is_sound(event) else None


def incident(line: bytes | str) -> Event | None:
    """A line of incidents.jsonl as an event; None for one that is torn or something else."""
    event = incident_event(line)
    return event if event is not None and is_sound(event) else None


FILES: tuple[tuple[str, str, Callable[[bytes], Record | None]], ...] = (
    (FILE, "telemetry", telemetry_record),
    (VALIDATION, "telemetry", telemetry_record),
    (JOURNAL, "journal", journal_event),
    (INCIDENTS, "incidents", incident),
)
"""(name, source of its samples, reader of a line) of the files of a run."""


class RunDirFeed:
    """Follows a run directory; given the folder of all runs, always the one written to last.

    Reads in a thread: the folder may lie on a network mount that hangs. That it does, or fails, is
    a sample, too.
    """

    POLLS_AT_ONCE = 50_000  # records waiting to be drained; the rest stays in the file
    HUNG_S = 30.0  # without a record or the end of a look

    def __init__(
        self, path: Path, *, clock: Clock, interval_s: float = 1.0, newest_below: bool = False
    ) -> None:
        self._path, self.now, self._interval_s = path, clock, interval_s
        self._newest_below = newest_below
        self._samples: queue.Queue[Sample] = queue.Queue(self.POLLS_AT_ONCE)
        self._stop = threading.Event()
        self._was_read = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="run-dir", daemon=True)
        self._open: Path | None = None
        self._why_not = ""  # of the last RunRead
        self._is_broken = False  # by an error of our own: some of its records are lost
        self._age_s = 0.0  # of records that lay there
        self._alive_s = time.monotonic()
        self._tails: list[tuple[Tail, str]] = []
        self.nodes: tuple[str, ...] = ()
        self.source = "" if newest_below else str(path)

    def start(self) -> None:
        self._alive_s = time.monotonic()
        if not self._newest_below:  # else "no run is watched" until the first look
            for sample in self._unread(READING):
                self._samples.put(sample)
        self._thread.start()

    def settled(self) -> bool:
        return self._was_read.is_set()

    def reads(self) -> bool:
        return not self.settled() and time.monotonic() - self._alive_s < self.HUNG_S

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)  # a hung mount keeps the thread; it is a daemon

    def drain(self) -> list[Sample]:
        found = [self._samples.get_nowait() for _ in range(self._samples.qsize())]
        silent_s = time.monotonic() - self._alive_s
        if not found and silent_s > self.HUNG_S + self._interval_s:
            where = self._open or self._path
            found += self._unread(
                f"no answer from the file system for {units.duration(self.HUNG_S)}: {where}"
            )
        return found

    def _follow(self) -> None:
        while not self._stop.is_set():
            for sample in self._new():
                while not self._stop.is_set():
                    self._alive_s = time.monotonic()
                    try:
                        self._samples.put(sample, timeout=0.2)
                        break
                    except queue.Full:
                        pass
            self._was_read.set()
            self._alive_s = time.monotonic()
            self._stop.wait(self._interval_s)

    def poll(self) -> list[Sample]:
        """What is new in the directory now; reads files, so not for the app's own thread."""
        return list(self._new())

    def _new(self) -> Iterator[Sample]:
        """What is new, and then whether that is all."""
        try:
            yield from self._records()
        except OSError as error:
            yield from self._unread(f"{error.filename or self._path}: {error.strerror or error}")
            return
        except Exception as error:  # noqa: BLE001 - thread boundary: said, never the end of it
            self._is_broken = True
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            where = self._open or self._path
            yield from self._unread(f"{where}: clusterctl failed while it read it ({what})")
            return
        if self._why_not and not self._is_broken:
            self._why_not = ""
            yield RunRead(self.now())

    def _unread(self, why: str) -> Iterator[Sample]:
        if self._why_not == why:
            return
        self._why_not = why
        if self._open is None:  # not "no run"
            yield RunOpened(str(self._path), self._path.name, self.now())
        yield RunRead(self.now(), why)

    def _records(self) -> Iterator[Sample]:
        run_dir = newest_run(self._path) if self._newest_below else self._path
        if run_dir is None:
            return
        now_s = self.now()
        if run_dir != self._open:
            self._open = run_dir
            self._tails = [(Tail(run_dir / name, read), source) for name, source, read in FILES]
            self._why_not, self._is_broken = "", False  # of what was known before it was opened
            yield opened(run_dir, now_s)
            yield from self._unread(READING)
            # Existing records are as old as their file, new ones as this poll.
            self._age_s = _age_s(run_dir / FILE)
        if self._is_broken:
            return
        at_s = now_s - self._age_s
        for tail, source in self._tails:  # not by time: clocks of rank 0's node and the head differ
            yield from (as_sample(record, at_s, source) for record in tail.records())
        self._age_s = 0.0


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


def as_sample(record: Record, at_s: float, source: str = "telemetry") -> Sample:
    if isinstance(record, StepRecord):
        return StepSample(record, at_s)
    return EventSample(record, at_s, source)


def timed_records(run_dir: Path) -> list[tuple[float, Record, str]]:
    """(time, record, file) of telemetry and journal in order of time.

    A file in which nothing has a time begins when the other one does.
    """
    found: list[tuple[list[Record], str]] = []
    for name, source, read in FILES:
        path = run_dir / name
        with contextlib.suppress(FileNotFoundError):  # one that failed before its first step
            records = [record for line in run_files.lines(path) if (record := read(line))]
            found.append((records, source))
    known = [record.time_s for records, _ in found for record in records if record.time_s > 0]
    begin_s = min(known, default=0.0)
    timed = [
        (at_s, record, source)
        for records, source in found
        for at_s, record in zip(_times(records, begin_s), records, strict=True)
    ]
    return sorted(timed, key=lambda item: item[0])


def _times(records: Sequence[Record], begin_s: float) -> list[float]:
    """When each record of a file was written.

    One without a time is its step's duration after the one before; those before the first time of
    the file are counted back from it.
    """
    times: list[float] = []
    at_s, is_known = begin_s, False
    for record in records:
        at_s += record.step_s if isinstance(record, StepRecord) else 0.0
        if record.time_s > 0 and not is_known:
            times = [record.time_s - at_s + early_s for early_s in times]
            at_s, is_known = record.time_s, True
        elif record.time_s > 0:
            at_s = max(times[-1], record.time_s)
        times.append(at_s)
    return times
