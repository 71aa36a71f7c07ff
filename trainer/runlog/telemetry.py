"""What a run writes about itself and how to read it back. Standard library only.

A run directory's `telemetry.jsonl` holds one JSON object a line, in the order written: `StepRecord`
of trainer.runlog.figures (`"kind": "step"`, one per optimizer step) and `Event` (`"kind":
"event"`). Heartbeats are small node-local files, one per rank, rewritten by the step loop itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trainer.runlog import run_files
from trainer.runlog.atomic_file import swap
from trainer.runlog.figures import StepRecord as StepRecord
from trainer.runlog.json_file import decoded

FILE = "telemetry.jsonl"
LARGEST = 1 << 53  # a step, and a time in seconds
PHASES = ("data", "encode", "forward", "backward", "optimizer", "checkpoint")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run: start, checkpoint, sample, score, resume, stop."""

    name: str
    text: str = ""  # one sentence for people
    data: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    time_s: float = 0.0

    @property
    def line(self) -> str:
        """For people, with its name once: "note: …", but "stopped at step 46"."""
        return self.text if self.text.startswith(f"{self.name} ") else f"{self.name}: {self.text}"


Record = StepRecord | Event
_KINDS: dict[str, type[Record]] = {"step": StepRecord, "event": Event}
_FIELDS = {kind: frozenset(one.name for one in fields(kind)) for kind in _KINDS.values()}


def encode(record: Record) -> str:
    """One line of JSON without newline."""
    kind = "step" if isinstance(record, StepRecord) else "event"
    return json.dumps({"kind": kind, **asdict(record)}, separators=(",", ":"))


def decode(line: str | bytes) -> Record | None:
    """The record of a line; None for a torn line or a kind that this version does not know."""
    try:
        data = decoded(line)
        kind = _KINDS[data.pop("kind")]
        if not data.keys() <= (known := _FIELDS[kind]):  # of a later version
            data = {key: value for key, value in data.items() if key in known}
        record = kind(**data)
        return record if _is_possible(record) else None
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return None


def _is_possible(record: Record) -> bool:
    """Whether what every reader uses is of its type: anybody may have written the line."""
    if isinstance(record, StepRecord):
        return (
            type(record.step) is int
            and abs(record.step) < LARGEST
            and type(record.step_s) in (float, int)
            and 0 <= record.step_s < LARGEST
            and type(record.time_s) in (float, int)
            and not abs(record.time_s) >= LARGEST
        )
    step = record.step
    return (
        type(record.name) is str
        and type(record.text) is str
        and type(record.data) is dict
        and (step is None or (type(step) is int and abs(step) < LARGEST))
        and type(record.time_s) in (float, int)
        and not abs(record.time_s) >= LARGEST
    )


class Writer:
    """Appends records, each line whole; a full disk costs lines: `lost` is their number."""

    def __init__(self, run_dir: Path) -> None:
        self._fd = os.open(run_dir / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._is_torn = False
        self.lost, self.why = 0, ""

    def write(self, record: Record) -> None:
        if self.lost:
            text = f"{self.lost} lines before this one could not be written: {self.why}"
            if self._append(Event("lost", text, {"lines": self.lost}, None, time.time())):
                self.lost = 0
        if not self._append(record):
            self.lost += 1

    def _append(self, record: Record) -> bool:
        begin = b"\n" if self._is_torn else b""  # what is left of a line becomes a line of its own
        data = begin + encode(record).encode() + b"\n"
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self.why = error.strerror or str(error)
            return False
        if written < len(data):
            self.why, self._is_torn = "the disk became full", True
            return False
        self._is_torn = False
        return True

    def close(self) -> None:
        os.close(self._fd)


class Tail:
    """Reads what was appended since the last call; `decoder` is for other files' lines."""

    def __init__(self, path: Path, decoder: Callable[[bytes], Record | None] = decode) -> None:
        self._path, self._lines = path, run_files.Lines()
        self._decode = decoder

    def poll(self) -> list[Record]:
        """New whole records since the last call; none when the file is not there yet."""
        return list(self.records())

    def records(self) -> Iterator[Record]:
        """As `poll`, read piece by piece; to be taken to its end. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError), run_files.opened(self._path) as (fd, found):
            self._lines.follow(found)
            for lines in self._lines.pieces(fd):
                yield from (one for one in map(self._decode, lines) if one is not None)


def read(run_dir: Path, name: str = FILE) -> Iterator[Record]:
    """All records of a file of a run directory."""
    yield from Tail(run_dir / name).records()


STEP_MARK = b'{"kind":"step",'  # what the line of a step begins with


def event_mark(name: str) -> bytes:
    """What a line begins with that holds an event of this name: to find it without reading JSON."""
    return b'{"kind":"event","name":"%s",' % name.encode()


def starts(run_dir: Path) -> int:
    """How often the trainer has started in a run directory; a pass over bytes, not over JSON."""
    mark = b'"kind":"event","name":"start"'
    try:
        return sum(mark in line[:100] for line in run_files.lines(run_dir / FILE))
    except OSError:
        return 0


def newest(run_dir: Path) -> tuple[StepRecord | None, Event | None]:
    """The last step and the last checkpoint of a run; as few lines as possible are decoded, since
    a run lasts for weeks."""
    step, saved, mark = b"", b"", event_mark("checkpoint")
    with contextlib.suppress(OSError), run_files.opened(run_dir / FILE) as (fd, _):
        for lines in run_files.Lines().pieces(fd):  # a last one without an end is being written
            for line in lines:
                if line.startswith(STEP_MARK):
                    step = line
                elif line.startswith(mark):
                    saved = line
    last, event = decode(step), decode(saved)
    return (
        last if isinstance(last, StepRecord) else None,
        event if isinstance(event, Event) else None,
    )


def final_steps(records: Iterable[Record]) -> dict[int, StepRecord]:
    """The steps that count, by number in rising order.

    A run that starts again continues from a checkpoint: steps behind it are done again, and the
    last record of a number counts. What an attempt did beyond the place that the next one has come
    to so far does not count either.
    """
    found: dict[int, StepRecord] = {}
    for record in records:
        if isinstance(record, StepRecord):
            first = record.step
        elif record.name == "start" and record.step is not None:
            first = record.step + 1  # the step of a start is the last one before it
        else:
            continue
        while found and next(reversed(found)) >= first:
            found.popitem()
        if isinstance(record, StepRecord):
            found[record.step] = record
    return found


class Heartbeat:
    """Where a rank is, one line of JSON: written by the step loop, read by the node's agent."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        with contextlib.suppress(OSError):  # as in `beat`
            path.parent.mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_environment(cls, rank: int) -> Heartbeat | None:
        """The launcher's agent sets CLUSTERCTL_HEARTBEATS to the directory; None without it."""
        directory = os.environ.get("CLUSTERCTL_HEARTBEATS")
        return cls(Path(directory) / f"{rank}.json", rank) if directory else None

    def beat(self, phase: str, step: int) -> None:
        """Never raises: where it cannot be written, the agent sees an old one."""
        data = {"rank": self._rank, "pid": os.getpid(), "step": step, "phase": phase}
        text = json.dumps({**data, "mono_s": time.monotonic()})
        try:
            swap(self._path, text)
        except OSError:  # no space for a second file: overwrite the first
            with contextlib.suppress(OSError), self._path.open("r+b") as file:
                _rewrite(file.fileno(), text)


@dataclass
class Clock:
    """Seconds by phase of the current step; the heartbeat tells the node's agent the phase."""

    heartbeat: Heartbeat | None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextlib.contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        if self.heartbeat is not None:
            self.heartbeat.beat(name, step)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return taken


class CurrentClip:
    """The file a decoding process works on, to explain a hang: `clip-PID.json`, in place."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    @classmethod
    def from_environment(cls) -> CurrentClip | None:
        """Beside the heartbeats; without a launcher's agent there is none."""
        with contextlib.suppress(OSError):  # decoding continues without
            if directory := os.environ.get("CLUSTERCTL_HEARTBEATS"):
                return cls(Path(directory) / f"clip-{os.getpid()}.json")
        return None

    def write(self, path: str) -> None:
        """An empty path: nothing to do."""
        with contextlib.suppress(OSError):  # a full folder
            _rewrite(self._fd, json.dumps({"path": path, "mono_s": time.monotonic()}))


def _rewrite(fd: int, text: str) -> None:
    """In place; a reader that sees half of it reads again."""
    data = text.encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
