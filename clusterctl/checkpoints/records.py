"""What a run directory says of a run: its attempts, its steps, its saves, and how attempts ended.

Read from `telemetry.jsonl` (the trainer's), `events.jsonl` and `incidents.jsonl` (the launcher's).
Lines that are torn, or hold what no such line can, are left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.runs.find import EVENTS_FILE, INCIDENTS_FILE
from trainer.runlog import run_files
from trainer.runlog.json_file import number, object_of, whole
from trainer.runlog.telemetry import FILE, Event, StepRecord, decode

INTERRUPTED = 130  # exit code of a run that its user stopped
# Types of an incident that is no failure: the user asked for the end. 0.2 called it stop.
STOPS = ("user-stop", "stop")
ENDINGS = ("done", "stopped", "failed", "rollback")
RECENT_STEPS = 500  # whose mean is the step time: buckets of different shapes take turns
SILENT_S = 900.0  # without a record, and 10 steps: a run of which nothing says that it ended


@dataclass(slots=True)
class Attempt:
    """One start of the trainer, until it ended or was started again. Times are unix seconds."""

    began_s: float
    world: int = 1
    steps: int = 0
    last_step: int = 0
    first_step_s: float | None = None  # when its first step was done
    last_s: float = 0.0  # its newest record
    ending: str = ""  # done, stopped, failed or rollback; "" where the trainer wrote nothing
    ended_s: float | None = None
    text: str = ""  # of what ended it


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint that was completed."""

    step: int
    seconds: float  # until it was complete
    stall_s: float  # of them, what training waited


@dataclass(frozen=True, slots=True)
class Sign:
    """A line of the launcher about the end of an attempt, or an incident. `time_s` is unix time."""

    time_s: float
    text: str
    is_users: bool = False  # the user asked for it


@dataclass
class RunRecord:
    """A run directory that was read. All numbers are finite."""

    run_dir: Path
    attempts: list[Attempt] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    signs: list[Sign] = field(default_factory=list)
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    steps_total: int | None = None
    epoch_steps: int | None = None  # of the newest epoch that was whole
    again_s: float = 0.0  # when the launcher last decided on another attempt, or began one

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def step_s(self) -> float | None:
        """Mean seconds of the recent steps without what they waited for saves."""
        times = [max(0.0, step_s - saving_s) for step_s, saving_s in self.recent]
        return math.fsum(times) / len(times) if times else None

    def state(self, now_s: float) -> str:
        """waiting (no step yet), running, finished, stopped, or failed."""
        last = self.last
        if last is None:
            return "waiting"
        if last.ending and last.ended_s is not None and last.ended_s >= self.again_s:
            return {"done": "finished", "rollback": "running"}.get(last.ending, last.ending)
        if self._is_fresh(last, now_s):
            return "running"
        stopped = any(sign.is_users for sign in self.signs if sign.time_s >= last.began_s)
        return "stopped" if stopped else "failed"

    def _is_fresh(self, last: Attempt, now_s: float) -> bool:
        if any(one.time_s >= last.last_s and one.time_s > self.again_s for one in self.signs):
            return False
        since_s = max(last.last_s, self.again_s)
        return now_s - since_s < max(SILENT_S, 10 * (self.step_s or 0.0))


def read_run(run_dir: Path) -> RunRecord:
    """Read a run directory; files that are missing are left out. Raises OSError for others."""
    record = RunRecord(run_dir)
    epochs = _Epochs()
    for line in _lines(run_dir / FILE):
        item = decode(line)
        if isinstance(item, StepRecord) and _is_sound(item):
            _take_step(record, item)
            epochs.take(item)
        elif isinstance(item, Event):
            _take_event(record, item)
    record.epoch_steps = epochs.length
    record.signs = sorted(_signs(run_dir, record), key=lambda sign: sign.time_s)
    return record


def _take_step(record: RunRecord, step: StepRecord) -> None:
    attempt = record.last
    if attempt is None or attempt.ending:  # of a version that wrote no start
        attempt = Attempt(step.time_s - step.step_s)
        record.attempts.append(attempt)
    if not attempt.steps:
        attempt.first_step_s = step.time_s
    attempt.steps, attempt.last_step = attempt.steps + 1, step.step
    attempt.world, attempt.last_s = step.world, max(attempt.last_s, step.time_s)
    if attempt.steps == 2:  # an earlier attempt was on other nodes, or had other settings
        record.recent.clear()
    if attempt.steps > 1:  # the first one compiles, and fills caches
        saving_s = _size(step.seconds.get("checkpoint")) or 0.0
        record.recent.append((step.step_s, saving_s))
    record.steps_total = step.steps_total if step.steps_total > 0 else None


def _take_event(record: RunRecord, event: Event) -> None:
    time_s, data = _size(event.time_s) or 0.0, event.data if type(event.data) is dict else {}
    if event.name == "start":
        world = data.get("world")
        own = world if type(world) is int and world > 0 else 1
        done = event.step if type(event.step) is int and event.step > 0 else 0
        record.attempts.append(Attempt(time_s, own, last_step=done, last_s=time_s))
    elif event.name in ENDINGS and (attempt := record.last):
        attempt.ending, attempt.ended_s, attempt.text = event.name, time_s, str(event.text)
        attempt.last_s = max(attempt.last_s, time_s) if event.name != "failed" else attempt.last_s
    elif event.name == "checkpoint" and type(event.step) is int:
        seconds, stall_s = _size(data.get("seconds")), _size(data.get("stall_s"))
        if seconds is not None and stall_s is not None:
            record.saves.append(Save(event.step, seconds, min(stall_s, seconds)))


def _signs(run_dir: Path, record: RunRecord) -> Iterator[Sign]:
    for line in _lines(run_dir / EVENTS_FILE):
        entry = object_of(line)
        time_s, data = _size(entry.get("time_s")), entry.get("data")
        if entry.get("event") in ("attempt", "restart"):
            record.again_s = max(record.again_s, time_s or 0.0)
        if entry.get("event") != "failure" or time_s is None:
            continue
        # The code stands beside the text in what older launchers wrote.
        code = data.get("exit_code") if isinstance(data, dict) else entry.get("exit_code")
        yield Sign(time_s, str(entry.get("text") or ""), code == INTERRUPTED)
    for line in _lines(run_dir / INCIDENTS_FILE):
        entry = object_of(line)
        time_s, kind = _size(entry.get("time_s")), entry.get("incident")
        if time_s is not None and isinstance(kind, str):
            yield Sign(time_s, f"{kind}: {entry.get('text') or ''}", kind in STOPS)


class _Epochs:
    """Finds how many steps an epoch has, from the steps at which the epoch changes."""

    length: int | None = None

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._began: int | None = None  # first step of the epoch at hand, if its begin was seen

    def take(self, step: StepRecord) -> None:
        if step.epoch == self._epoch:
            return
        if self._epoch is None:
            began = step.step if step.step == 1 else None
        else:
            is_next = step.epoch == self._epoch + 1
            if is_next and self._began is not None and step.step > self._began:
                self.length = step.step - self._began
            began = step.step if is_next else None
        self._epoch, self._began = step.epoch, began


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from run_files.lines(path)
    except FileNotFoundError:
        return


def _size(value: object) -> float | None:
    return number(value, 0, 1e15)


def _is_sound(step: StepRecord) -> bool:
    counts = (step.step, step.steps_total, step.epoch, step.world)
    is_whole = all(whole(one, 0, 10**12) is not None for one in counts)
    times = all(_size(value) is not None for value in (step.step_s, step.time_s))
    return is_whole and times and step.world > 0 and type(step.seconds) is dict
