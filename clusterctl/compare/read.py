"""Reads a run for a comparison: the steps that count as columns, and how its attempts ended.

A run of 200,000 steps has 120 MB of telemetry. A step is packed into 136 bytes as it is read, and
lines are parsed by the hundred, so that reading it takes two seconds and 30 MB.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from clusterctl.errors import CouldNotFindOut
from clusterctl.runs.attempts import Account, account
from clusterctl.runs.find import EVENTS_FILE, INCIDENTS_FILE
from clusterctl.runs.journal import (
    Journal,
    after_event,
    after_incident,
    incident_event,
    launcher_event,
)
from clusterctl.why.recorded import lines_of
from trainer.runlog import run_files
from trainer.runlog.figures import peak_flops
from trainer.runlog.json_file import decoded, text
from trainer.runlog.steps import ENDINGS, Steps, after_record
from trainer.runlog.telemetry import FILE, PHASES, Event, StepRecord, decode
from trainer.runlog.validation import FILE as VALIDATION
from trainer.runlog.validation import Point, Points

AT_ONCE = 200  # lines
_FIELDS: tuple[str, ...] = (
    "step",
    "samples",
    "tokens",
    "loss",
    "grad_norm",
    "step_s",
    "flops",
    "world",
)
_FIELDS += ("time_s", "idle_share", "memory_bytes")
_NAMES = (*_FIELDS, "bucket", *PHASES)
_ROW = struct.Struct(f"={len(_NAMES)}d")
_STEP_S, _TIME_S = _FIELDS.index("step_s"), _FIELDS.index("time_s")
_MARKS = (*ENDINGS, "start", "rollback")
_LARGEST = 1e15


@dataclass(frozen=True, slots=True)
class Run:
    """The steps of a run that count, by columns of equal length.

    `columns` has step numbers, `loss`, `step_s` and so on as numbers; NaN is a value that the
    record does not have. `bucket` holds indices into `buckets`.
    """

    run_dir: Path
    columns: Mapping[str, array[float]]
    buckets: Sequence[str]
    first_steps: frozenset[int]  # of each start
    validations: Mapping[int, Point]  # by step, those that count
    account: Account
    journal: Journal
    device: str  # name of the GPU, "" where it is not recorded
    dtype: str
    unread: int  # lines of telemetry that are torn, or hold what no step can

    @property
    def name(self) -> str:
        return self.run_dir.resolve().name

    @property
    def steps(self) -> array[float]:
        return self.columns["step"]

    @property
    def newest_s(self) -> float:
        """Unix time of the last step, or of the end."""
        last = self.columns["time_s"]
        return self.account.ended_s or (last[-1] if last else 0.0)

    @property
    def ettr(self) -> float | None:
        """Up to the end, or to the last step of a run without one."""
        return self.account.ettr(self.newest_s)

    @property
    def peak_flops(self) -> float | None:
        """FLOP/s of one GPU; None where it is not known."""
        return peak_flops(self.device, self.dtype or "bf16") if self.device else None


def read(run_dir: Path) -> Run:
    """Raises `CouldNotFindOut` for a run without telemetry."""
    steps = _Reader()
    found = False
    for lines in _batches(lines_of(run_dir / FILE, 1 << 40)):
        found = True
        for entry, line in zip(_parsed(lines), lines, strict=True):
            steps.take(entry, line)
    if not found:
        why = f"{run_dir} has no {FILE}, or it cannot be read"
        raise CouldNotFindOut(why, hint="a run writes it from its first step on")
    for line in lines_of(run_dir / VALIDATION, 1 << 26):
        if isinstance(event := decode(line), Event):
            steps.validations.take(event)
    columns = steps.columns()
    if not columns["step"]:
        hint = "a comparison needs the steps of both runs"
        raise CouldNotFindOut(f"{run_dir / FILE} has no step", hint=hint)
    journal = _journal(run_dir)
    marks = steps.marks()
    known = account(marks, journal)
    # Of the steps only those beside a mark were folded: the sum is of all of them.
    known = replace(known, effective_s=math.fsum(columns["step_s"]), lost={}, pending=None)
    config = run_files.object_in(run_dir, "config.json").get("config")
    dtype = config.get("dtype") if isinstance(config, dict) else None
    return Run(
        run_dir,
        columns,
        tuple(steps.buckets),
        frozenset(start.first for start in marks.starts if start.first is not None),
        steps.validations.final(),
        known,
        journal,
        steps.device,
        text(dtype),
        steps.unread,
    )


class _Reader:
    """Takes lines of telemetry in their order. Which steps count: `final_steps` of telemetry."""

    def __init__(self) -> None:
        self.buckets: dict[str, int] = {}
        self.validations = Points()
        self.device, self.unread = "", 0
        self._numbers, self._rows = array("d"), bytearray()
        self._marks = Steps()
        self._pending: bytes = b""  # the last step's line, where the fold has not taken it
        self._newest = 0  # its number
        self._is_marked = True  # the fold takes the next step

    def take(self, entry: Any, line: bytes) -> None:
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind == "step":
            self._step(entry, line)
        elif kind == "event":
            self._event(line)
        else:
            self.unread += 1

    def _step(self, entry: Mapping[str, Any], line: bytes) -> None:
        bucket, seconds = entry.get("bucket"), entry.get("seconds")
        number = self.buckets.setdefault(bucket if type(bucket) is str else "", len(self.buckets))
        phases = seconds if type(seconds) is dict else {}
        given = (entry.get(name) for name in _FIELDS)
        values: list[Any] = [math.nan if value is None else value for value in given]
        try:
            row = _ROW.pack(*values, number, *(phases.get(name, math.nan) for name in PHASES))
        except (struct.error, OverflowError, TypeError):
            self.unread += 1
            return
        step = values[0]
        sound = 0 <= values[_STEP_S] < _LARGEST and values[_TIME_S] < _LARGEST
        if type(step) is not int or not 0 <= step < 1 << 53 or not sound:
            self.unread += 1
            return
        if self._is_marked or step <= self._newest:
            self._fold(line)
        else:
            self._pending = line
        self._newest, self._is_marked = step, False
        self._drop(step)
        self._numbers.append(step)
        self._rows += row

    def _event(self, line: bytes) -> None:
        event = decode(line)
        if not isinstance(event, Event):
            return
        self.validations.take(event)
        if event.name not in _MARKS:
            return
        if event.step is not None and type(event.step) is not int:
            self.unread += 1
            return
        if event.name == "start":
            if event.step is not None:
                self._drop(event.step + 1)
            device = event.data.get("device") if type(event.data) is dict else None
            self.device = text(device)
        self._fold_pending()
        self._marks, self._is_marked = after_record(self._marks, event), True

    def _drop(self, first: int) -> None:
        """Steps from this number on are done again."""
        if self._numbers and self._numbers[-1] >= first:
            kept = bisect_left(self._numbers, first)
            del self._numbers[kept:]
            del self._rows[kept * _ROW.size :]

    def _fold(self, line: bytes) -> None:
        self._fold_pending()
        record = decode(line)
        if isinstance(record, StepRecord):
            self._marks = after_record(self._marks, record)

    def _fold_pending(self) -> None:
        line, self._pending = self._pending, b""
        if line:
            self._fold(line)

    def marks(self) -> Steps:
        """Starts and their first and last steps."""
        self._fold_pending()
        return self._marks

    def columns(self) -> dict[str, array[float]]:
        everything = array("d")
        everything.frombytes(self._rows)
        return {name: everything[at :: len(_NAMES)] for at, name in enumerate(_NAMES)}


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(lines)
    while batch := list(islice(rest, AT_ONCE)):
        yield [line for line in batch if line.strip()]


def _parsed(lines: Sequence[bytes]) -> list[Any]:
    """What each line holds, None for a torn one. One call for all is a third faster."""
    try:
        found = decoded(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return list(found)
    except (ValueError, RecursionError):
        pass
    return [_one(line) for line in lines]


def _one(line: bytes) -> Any:
    try:
        return decoded(line)
    except (ValueError, RecursionError):
        return None


def _journal(run_dir: Path) -> Journal:
    journal = Journal()
    for line in lines_of(run_dir / EVENTS_FILE):
        event = launcher_event(line)
        journal = after_event(journal, event) if event is not None else journal
    for line in lines_of(run_dir / INCIDENTS_FILE):
        event = incident_event(line)
        journal = after_incident(journal, event) if event is not None else journal
    return journal
