"""Where samples come from. A feed gathers in threads of its own; the app drains it once a tick.

Here: what a feed is, a run directory that grows, a run directory played again, several together.
`ssh.py` watches nodes, `simulation/demo_feed.py` invents a cluster.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from dashboards.feeds.playback_clock import Player
from dashboards.model.samples import EventSample, RunOpened, Sample, StepSample
from dashboards.recording.fields import MOST_RANKS, is_sound
from trainer.runlog.telemetry import FILE, Event, Record, StepRecord, Tail, decode

Clock = Callable[[], float]
JOURNAL = "events.jsonl"  # the launcher's, beside the trainer's telemetry


def steady_clock() -> Clock:
    """Unix time that never jumps: read once, then carried by the clock that counts from boot.

    That one counts on while the machine sleeps, which Linux' monotonic clock does not.
    """
    which = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset = time.time() - time.clock_gettime(which)
    return lambda: time.clock_gettime(which) + offset


class Feed(Protocol):
    """What the app asks of a source of samples."""

    nodes: tuple[str, ...]  # known from the beginning, in the hostfile's order
    source: str  # for the header

    def start(self) -> None: ...

    def drain(self) -> list[Sample]:
        """What came since the last call, oldest first. Never waits."""

    def now(self) -> float:
        """The time that samples of this feed are to be compared with."""

    def settled(self) -> bool:
        """Whether all of its sources have answered or failed once: enough for one look."""

    def close(self) -> None:
        """End threads and connections; returns within seconds."""


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

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()


def newest_run(outputs: Path) -> Path | None:
    """The run directory under `outputs` that was written to last; None when there is none.

    The journal counts too: a run that has just been started has no telemetry yet.
    """
    newest: tuple[float, Path] | None = None
    for name in (FILE, JOURNAL):
        for path in outputs.glob(f"*/{name}"):
            try:
                found = (path.stat().st_mtime, path.parent)
            except OSError:
                continue  # removed just now
            newest = found if newest is None or found > newest else newest
    return newest[1] if newest else None


def opened(run_dir: Path, at_s: float) -> RunOpened:
    """The run's name and, where the launcher's plan.json says so, its nodes and their ranks."""
    nodes, ranks = [], []
    for entry in _planned(run_dir / "plan.json"):
        name, slots = entry.get("name"), entry.get("slots")
        if isinstance(name, str):
            nodes.append(name)
            ranks.append(slots if type(slots) is int and 0 <= slots <= MOST_RANKS else 0)
    return RunOpened(str(run_dir), run_dir.resolve().name, at_s, tuple(nodes), tuple(ranks))


def _planned(path: Path) -> list[dict[str, Any]]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    nodes = plan.get("nodes") if isinstance(plan, dict) else None
    return [entry for entry in nodes if isinstance(entry, dict)] if isinstance(nodes, list) else []


def telemetry_record(line: bytes | str) -> Record | None:
    """A line of the trainer's telemetry; None for one that is torn or holds what no record can."""
    record = decode(line)
    return record if record is not None and is_sound(record) else None


def journal_event(line: bytes | str) -> Event | None:
    """A line of the launcher's journal as an event; None for one that is torn or something else."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
        return None
    data = entry.get("data")
    data = dict(data) if isinstance(data, dict) else {}
    if isinstance(entry.get("node"), str):
        data["node"] = entry["node"]
    time_s, step = entry.get("time_s"), data.get("step")
    event = Event(
        name=entry["event"],
        text=str(entry.get("text") or ""),
        data=data,
        step=step if type(step) is int else None,
        time_s=time_s if isinstance(time_s, int | float) else 0.0,
    )
    return event if is_sound(event) else None


class RunDirFeed:
    """Follows a run directory; given the folder of all runs, always the one written to last.

    Reads in a thread: the folder may lie on a network mount that hangs.
    """

    POLLS_AT_ONCE = 50_000  # records waiting to be drained; the rest stays in the file

    def __init__(
        self, path: Path, *, clock: Clock, interval_s: float = 1.0, newest_below: bool = False
    ) -> None:
        self._path, self._clock, self._interval_s = path, clock, interval_s
        self._newest_below = newest_below
        self._samples: queue.Queue[Sample] = queue.Queue(self.POLLS_AT_ONCE)
        self._stop = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="run-dir", daemon=True)
        self._open: Path | None = None
        self._telemetry: Tail | None = None
        self._journal: Tail | None = None
        self.nodes: tuple[str, ...] = ()
        self.source = "" if newest_below else str(path)

    def start(self) -> None:
        self._thread.start()

    def now(self) -> float:
        return self._clock()

    def settled(self) -> bool:
        return self._looked.is_set()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)  # a hung mount keeps the thread; it is a daemon

    def drain(self) -> list[Sample]:
        samples: list[Sample] = []
        while True:
            try:
                samples.append(self._samples.get_nowait())
            except queue.Empty:
                return samples

    def _follow(self) -> None:
        while not self._stop.is_set():
            for sample in self.poll():
                while not self._stop.is_set():
                    try:
                        self._samples.put(sample, timeout=0.2)
                        break
                    except queue.Full:
                        pass
            self._looked.set()
            self._stop.wait(self._interval_s)

    def poll(self) -> list[Sample]:
        """What is new in the directory now; reads files, so not for the app's own thread."""
        run_dir = newest_run(self._path) if self._newest_below else self._path
        samples: list[Sample] = []
        if run_dir is None:
            return samples
        first = run_dir != self._open
        if first:
            self._open = run_dir
            self._telemetry = Tail(run_dir / FILE, telemetry_record)
            self._journal = Tail(run_dir / JOURNAL, journal_event)
            samples.append(opened(run_dir, self._clock()))
        assert self._telemetry is not None
        assert self._journal is not None
        # What lies there already is as old as the file; new lines are as old as this look.
        at_s = self._clock() - (_age_s(run_dir / FILE) if first else 0.0)
        samples += [as_sample(record, at_s) for record in self._telemetry.poll()]
        samples += [as_sample(event, at_s, "journal") for event in self._journal.poll()]
        return samples


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


def as_sample(record: Record, at_s: float, source: str = "telemetry") -> Sample:
    if isinstance(record, StepRecord):
        return StepSample(record, at_s)
    return EventSample(record, at_s, source)


class ReplayFeed(Player):
    """Plays a run directory again with its own times; pause, speed and position can be changed."""

    def __init__(self, run_dir: Path, *, clock: Clock, speed: float = 10.0) -> None:
        """Reads the whole directory. Raises `OSError` when it cannot."""
        self._timed = timed_records(run_dir)
        self._next = 0
        self._opened = False
        # A hair before the first record, so that the first look is an empty run.
        first_s, last_s = (
            (self._timed[0][0] - 0.001, self._timed[-1][0]) if self._timed else (0.0, 0.0)
        )
        super().__init__(first_s, last_s, clock=clock, speed=speed)
        self._opening = opened(run_dir, 0.0)
        self.nodes: tuple[str, ...] = ()  # a run directory holds no readings of nodes
        self.source = "replay"

    def drain(self) -> list[Sample]:
        now = self.now()
        samples: list[Sample] = []
        if not self._opened:
            self._opened = True
            samples.append(replace(self._opening, at_s=self.first_s))
        while self._next < len(self._timed) and self._timed[self._next][0] <= now:
            at_s, record, source = self._timed[self._next]
            samples.append(as_sample(record, at_s, source))
            self._next += 1
        return samples

    def _rewind(self) -> None:
        self._next, self._opened = 0, False

    def close(self) -> None:
        """Nothing is held open."""


def timed_records(run_dir: Path) -> list[tuple[float, Record, str]]:
    """(time, record, file) of telemetry and journal in order of time.

    A file in which nothing has a time begins when the other one does.
    """
    files: tuple[tuple[str, str, Callable[[bytes], Record | None]], ...] = (
        (FILE, "telemetry", telemetry_record),
        (JOURNAL, "journal", journal_event),
    )
    found: list[tuple[list[Record], str]] = []
    for name, source, decoder in files:
        path = run_dir / name
        if not path.exists():
            continue  # a run that failed before its first step has no telemetry
        with path.open("rb") as file:
            found.append(
                ([record for line in file if (record := decoder(line)) is not None], source)
            )
    known = [record.time_s for records, _ in found for record in records if record.time_s > 0]
    begin_s = min(known, default=0.0)
    timed = [
        (at_s, record, source)
        for records, source in found
        for at_s, record in zip(_times(records, begin_s), records, strict=True)
    ]
    timed.sort(key=lambda item: item[0])
    return timed


def _times(records: Sequence[Record], begin_s: float) -> list[float]:
    """When each record of a file was written.

    One without a time stands its step's duration behind its forerunner; those before the first time
    of the file stand in front of it as far as they lasted.
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
