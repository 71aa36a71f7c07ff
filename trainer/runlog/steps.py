"""The steps of a run that count in its final history, the pauses before they went on, and the
effective training time ratio (ETTR).

A trainer that starts again continues from a checkpoint, so numbers of steps go back and repeat. The
last record of a number is the one that counts. A value of a few hundred kB holds a run of any
length: how long the steps up to a number took is kept for the last steps one by one, for older ones
at distances that double.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.runlog import run_files
from trainer.runlog.telemetry import FILE, LARGEST, Event, Record, StepRecord, decode

EXACT = 128  # steps that are kept one by one, at least: most checkpoints are no further back
MOST = 1000  # starts and pauses that are kept; the oldest are dropped
ENDINGS = ("done", "stopped", "failed")
LAUNCHED = "launched_s"  # of a start: when its launcher began the first attempt, unix time

# Parts of a line, as trainer.runlog.telemetry writes it; in a text, quotes are behind backslashes.
_STEP = re.compile(rb'\{"kind":"step","step":(\d{1,15}),.{1,600}?,"step_s":([-+.e\d]{1,30}),')
_TIME = re.compile(rb',"time_s":([-+.e\d]{1,30})[,}]')

Knot = tuple[int, float, float]
"""A step, seconds of all steps that count up to it, unix time when it was done."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the trainer, and the steps that it took."""

    began_s: float  # unix time
    after: int | None = None  # the step that it continued from; None: it did not say
    first: int | None = None  # its first step
    last: int | None = None
    last_s: float = 0.0  # when the last step was done
    is_rollback: bool = False  # the guards went back; no process ended
    ending: str = ""  # done, stopped or failed; "" where the trainer wrote nothing
    ended_s: float | None = None
    text: str = ""  # of what ended it


@dataclass(frozen=True, slots=True)
class Pause:
    """From the last step that counts to the begin of the next one: repeated work and downtime."""

    from_s: float
    to_s: float
    is_rollback: bool = False
    again_s: float = 0.0  # of steps before the pause ahead of this one that do not count any more


@dataclass(frozen=True, slots=True)
class Steps:
    """What is known of a run's steps; `after_record` gives the next value."""

    starts: tuple[Start, ...] = ()
    pauses: tuple[Pause, ...] = ()
    levels: tuple[tuple[Knot, ...], ...] = ()  # newest first, in each the oldest knot first
    origin: Knot | None = None  # before the first step of all, when it began
    accounted: tuple[float, float] = (0.0, 0.0)  # end of the last pause, seconds that counted then
    is_rollback: bool = False  # the next start is one
    began_s: float | None = None  # when the first attempt began, unix time

    @property
    def last(self) -> Knot | None:
        """The newest step that counts."""
        return self.levels[0][-1] if self.levels else self.origin

    @property
    def effective_s(self) -> float:
        """Seconds of all steps that count."""
        return self.last[1] if self.last else 0.0

    @property
    def first_steps(self) -> frozenset[int]:
        """First steps of starts but the first: between them and the step before lies a pause."""
        return frozenset(start.first for start in self.starts[1:] if start.first is not None)


def after_record(steps: Steps, record: Record) -> Steps:
    """With one record of telemetry more, in the file's order."""
    if isinstance(record, StepRecord):
        return _after_step(steps, record.step, record.step_s, record.time_s)
    return _after(steps, record)


def after_line(steps: Steps, line: bytes) -> Steps:
    """With one line of telemetry more, whose other figures are not decoded: the 500,000 steps of a
    month take a third of the time. What is no record changes nothing."""
    found = _STEP.match(line)
    time = _TIME.match(line, line.rfind(b',"time_s":', found.end() - 1)) if found else None
    if found is not None and time is not None and line.endswith((b"}", b"}\n")):
        with suppress(ValueError):
            step_s, time_s = float(found[2]), float(time[1])
            if 0 <= step_s < LARGEST and abs(time_s) < LARGEST:
                return _after_step(steps, int(found[1]), step_s, time_s)
    record = decode(line)
    return steps if record is None else after_record(steps, record)


def of_run(run_dir: Path) -> Steps:
    """Of a whole run. Raises OSError."""
    steps = Steps()
    for line in run_files.lines(run_dir / FILE):
        steps = after_line(steps, line)
    return steps


def ettr(effective_s: float, began_s: float | None, until_s: float) -> float | None:
    """Effective training time ratio, 0 to 1: seconds of the steps that count over the wall time
    since the run's first attempt began (unix seconds). None before the first step."""
    if began_s is None or not effective_s:
        return None
    return effective_s / max(effective_s, until_s - began_s)  # clocks may differ


def only_starts(steps: Steps) -> Steps:
    """Without times: they are counted from the next step on."""
    return Steps(starts=steps.starts, is_rollback=steps.is_rollback, began_s=steps.began_s)


def _after(steps: Steps, event: Event) -> Steps:
    if event.name == "start":
        start = Start(event.time_s, event.step, is_rollback=steps.is_rollback)
        steps = replace(steps, starts=(*steps.starts, start)[-MOST:], is_rollback=False)
        if steps.began_s is None:
            launched = event.data.get(LAUNCHED)
            launched_s = launched if isinstance(launched, int | float) else event.time_s
            steps = replace(steps, began_s=min(event.time_s, launched_s))
        return steps if event.step is None else _back_to(steps, event.step)
    if event.name == "rollback":
        return replace(steps, is_rollback=True)
    if event.name in ENDINGS and steps.starts:
        *others, last = steps.starts
        last = replace(last, ending=event.name, ended_s=event.time_s, text=event.text)
        return replace(steps, starts=(*others, last))
    return steps


def _after_step(steps: Steps, step: int, step_s: float, time_s: float) -> Steps:
    before = steps.last
    time_s = time_s if time_s > 0 else step_s + (before[2] if before else 0.0)
    begun_s = time_s - step_s
    goes_back = before is not None and step <= before[0]
    newest = steps.starts[-1] if steps.starts else None
    if newest is None or (goes_back and newest.first is not None):  # written by no start
        newest = Start(begun_s)
        steps = replace(steps, starts=(*steps.starts, newest)[-MOST:])
    if goes_back:
        steps = _back_to(steps, step - 1)
    changes: dict[str, object] = {}
    last = steps.last
    if last is None:
        changes = {"origin": (step - 1, 0.0, begun_s)}
    elif newest.first is None:
        before_s, counted_s = steps.accounted
        from_s, again_s = max(last[2], before_s), max(0.0, counted_s - last[1])
        if begun_s > from_s:
            pause = Pause(from_s, begun_s, newest.is_rollback, again_s)
            pauses = (*steps.pauses, pause)[-MOST:]
            changes = {"pauses": pauses, "accounted": (begun_s, last[1])}
    first = step if newest.first is None else newest.first
    newest = replace(newest, first=first, last=step, last_s=time_s)
    starts = (*steps.starts[:-1], newest)
    levels = _with(steps.levels, (step, steps.effective_s + step_s, time_s))
    return replace(steps, starts=starts, levels=levels, **changes)  # type: ignore[arg-type]


def _with(levels: tuple[tuple[Knot, ...], ...], knot: Knot) -> tuple[tuple[Knot, ...], ...]:
    """With one knot more; every second of the oldest of a full level goes to the next one."""
    newest = (*levels[0], knot) if levels else (knot,)
    rest = levels[1:]
    if len(newest) < 2 * EXACT:
        return (newest, *rest)
    for moved in newest[1:EXACT:2]:
        rest = _with(rest, moved)
    return (newest[EXACT:], *rest)


def _back_to(steps: Steps, step: int) -> Steps:
    """Without what was done after `step`; between two knots time is shared out evenly."""
    if steps.last is None or steps.origin is None or steps.last[0] <= step:
        return steps
    if step <= steps.origin[0]:  # everything is done again
        return replace(steps, levels=(((step, 0.0, steps.origin[2]),),))
    before = behind = steps.origin
    for behind in _oldest_first(steps):
        if behind[0] > step:
            break
        before = behind
    levels = tuple(tuple(knot for knot in level if knot[0] <= step) for level in steps.levels)
    if before[0] < step:
        share = (step - before[0]) / (behind[0] - before[0])
        between = (before[i] + share * (behind[i] - before[i]) for i in (1, 2))
        levels = _with(levels, (step, *between))  # type: ignore[arg-type]
    elif not levels[0]:  # the newest level always holds the newest knot
        levels = _with(levels, before)
    return replace(steps, levels=levels)


def _oldest_first(steps: Steps) -> Iterator[Knot]:
    for level in reversed(steps.levels):
        yield from level
