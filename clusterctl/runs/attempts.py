"""The attempts of a run, how each ended, and what restarts cost. Pure.

The effective training time ratio (ETTR; Meta's RSC and Llama 3, ByteDance's MegaScale and
ByteRobust report it) is seconds of the steps that count in the final history, divided by the wall
time since the first attempt began. A step that was done twice counts once. The rest is start,
evaluation, and what was lost: of each incident the time from the last step that counts to the begin
of the next one, so repeated work and downtime together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from clusterctl.runs.journal import (
    INTERRUPTED,
    UNKNOWN,
    USER_STOP,
    Begin,
    Incident,
    Journal,
    Restart,
)
from trainer.runlog.steps import Pause, Start, Steps, ettr

ROLLBACK, DONE, FAILED, RUNNING = "rollback", "done", "failed", ""
_Timed = TypeVar("_Timed", Incident, Restart)
_time = attrgetter("time_s")
SLACK_S = 1.0  # clocks of the head and of rank 0's node may differ; a trainer takes longer to start


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. Its steps are those that it took, whether they count or not."""

    number: int
    began_s: float
    ended_s: float | None  # None: it goes on
    nodes: tuple[str, ...] = ()
    world: int | None = None
    checkpoint: str = ""  # that it continued from
    first: int | None = None  # its first step
    last: int | None = None
    ending: str = RUNNING  # done, failed, or the class of what ended it
    text: str = ""  # the sentence of it
    node: str | None = None  # of what ended it
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """All attempts of a run, and where its time went. Times are unix seconds."""

    attempts: tuple[Attempt, ...] = ()
    restarts: int = 0
    spares: tuple[str, ...] | None = None  # None: no launcher said so
    excluded: tuple[tuple[str, str], ...] = ()
    began_s: float | None = None
    ended_s: float | None = None  # of the whole run
    effective_s: float = 0.0
    lost: Mapping[str, float] = field(default_factory=dict)  # seconds by cause, largest first
    pending: tuple[str, float] | None = None  # (cause, since when): no step has followed yet
    restarting_since_s: float | None = (
        None  # when it was decided, or the attempt began; no step yet
    )
    counted_s: float | None = None  # since when time is counted; None: since the run began

    def ettr(self, now_s: float) -> float | None:
        """0 to 1; None before the first step."""
        began_s = self.began_s if self.counted_s is None else self.counted_s
        until_s = now_s if self.ended_s is None else self.ended_s
        return ettr(self.effective_s, began_s, until_s)

    def lost_s(self, now_s: float) -> dict[str, float]:
        """Seconds by cause, largest first, with what is being lost now."""
        found = dict(self.lost)
        if self.pending is not None:
            cause, since_s = self.pending
            until_s = now_s if self.ended_s is None else self.ended_s
            if until_s > since_s:
                found[cause] = found.get(cause, 0.0) + until_s - since_s
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def account(steps: Steps, journal: Journal, *, is_cut: bool = False) -> Account:
    """What both files of a run say together; linear in the number of attempts, not of steps.

    `is_cut`: steps before the first one are not known, so time is counted from there on.
    """
    attempts = tuple(_attempts(steps, journal))
    newest = journal.begins[-1] if journal.begins else None
    began = [begin.time_s for begin in journal.begins[:1]]
    began += [start.began_s for start in steps.starts[:1]]
    ended_s = attempts[-1].ended_s if attempts else None
    if journal.begins:  # an attempt that ended badly may be followed by another one
        ended_s = journal.end.time_s if journal.end else None
    lost: dict[str, float] = {}
    for cause, seconds in _lost(steps, journal, is_cut):
        lost[cause] = lost.get(cause, 0.0) + seconds
    without_launcher = sum(not start.is_rollback for start in steps.starts[1:])
    return Account(
        attempts,
        journal.restart_count if journal.begins else without_launcher,
        newest.spares if newest else None,
        newest.excluded if newest else (),
        min(began, default=None),
        ended_s,
        steps.effective_s,
        dict(sorted(lost.items(), key=lambda item: -item[1])),
        _pending(steps, journal, attempts),
        None if journal.end else _restarting_since(steps, journal),
        steps.origin[2] if is_cut and steps.origin else None,
    )


def _attempts(steps: Steps, journal: Journal) -> Iterator[Attempt]:
    begins = journal.begins
    early: list[Start] = []  # before the first attempt of a launcher, or without one
    own: list[list[Start]] = [[] for _ in begins]
    times = [begin.time_s for begin in begins]
    for start in steps.starts:
        place = bisect_right(times, start.began_s + SLACK_S)
        (own[place - 1] if place else early).append(start)
    yield from _without_launcher(early, is_over=bool(begins), journal=journal)
    for index, begin in enumerate(begins):
        following = begins[index + 1].time_s if index + 1 < len(begins) else None
        yield _launched(begin, following, own[index], journal)


def _without_launcher(
    starts: Sequence[Start], *, is_over: bool, journal: Journal
) -> Iterator[Attempt]:
    number = 0
    groups: list[list[Start]] = []
    for start in starts:
        if start.is_rollback and groups:
            groups[-1].append(start)
        else:
            groups.append([start])
    for index, group in enumerate(groups):
        number, is_last = index + 1, index + 1 == len(groups) and not is_over
        end = journal.end if is_last else None
        newest = group[-1]
        ending, text, ended_s = newest.ending, newest.text, newest.ended_s
        if ended_s is None and end is not None and end.time_s >= newest.began_s:
            ending, text, ended_s = _of_code(end.exit_code), end.text, end.time_s
        if not is_last and ended_s is None:
            ending, ended_s = UNKNOWN, newest.last_s or newest.began_s
        ending = USER_STOP if ending == "stopped" else ending
        first, last = _steps_of(group)
        yield Attempt(
            number, group[0].began_s, ended_s, first=first, last=last, ending=ending, text=text
        )


def _launched(
    begin: Begin, following_s: float | None, starts: Sequence[Start], journal: Journal
) -> Attempt:
    until_s = float("inf") if following_s is None else following_s
    own = [one for one in journal.incidents if one.attempt == begin.number]
    untold = [one for one in journal.incidents if one.attempt is None]
    incident = own[-1] if own else _last_in(untold, begin.time_s, until_s)
    first, last = _steps_of(starts)
    ending, text, ended_s = RUNNING, "", None
    node, rank = None, None
    end = journal.end if following_s is None else None
    if incident is not None:
        ending, text, ended_s = incident.cause, incident.text, incident.time_s
        node, rank = incident.node, incident.rank
    elif following_s is not None:
        restart = _last_in(journal.restarts, begin.time_s, until_s)
        ending, ended_s = UNKNOWN, following_s
        if restart is not None:
            ending, text, node = restart.cause, restart.text, restart.node
            ended_s = restart.time_s
    if end is not None:
        ending = ending or _of_code(end.exit_code)
        text, ended_s = text or end.text, end.time_s
    return Attempt(
        begin.number,
        begin.time_s,
        ended_s,
        begin.nodes,
        begin.world,
        begin.checkpoint,
        first,
        last,
        ending,
        text,
        node,
        rank,
    )


def _of_code(exit_code: int) -> str:
    return {0: DONE, INTERRUPTED: USER_STOP}.get(exit_code, FAILED)


def _steps_of(starts: Sequence[Start]) -> tuple[int | None, int | None]:
    taken = [(start.first, start.last) for start in starts if start.first is not None]
    return (taken[0][0], taken[-1][1]) if taken else (None, None)


def _last_in(found: Sequence[_Timed], from_s: float, until_s: float) -> _Timed | None:
    index = bisect_left(found, until_s, key=_time) - 1
    return found[index] if index >= 0 and found[index].time_s >= from_s else None


def _within(found: Sequence[_Timed], from_s: float, to_s: float) -> Sequence[_Timed]:
    return found[bisect_left(found, from_s, key=_time) : bisect_right(found, to_s, key=_time)]


def _lost(steps: Steps, journal: Journal, is_cut: bool) -> Iterator[tuple[str, float]]:
    # Attempts that took no step come first.
    if steps.origin is not None and journal.begins and not is_cut:
        began = [one.time_s for one in journal.begins if one.time_s <= steps.origin[2]]
        if len(began) > 1:
            yield from _shares(Pause(began[0], began[-1]), steps, journal)
    for pause in steps.pauses:
        yield from _shares(pause, steps, journal)


def _shares(pause: Pause, steps: Steps, journal: Journal) -> Iterator[tuple[str, float]]:
    """(cause, seconds) of a pause: each incident has it until the attempt after it begins."""
    if pause.is_rollback:
        yield ROLLBACK, pause.to_s - pause.from_s + pause.again_s
        return
    inside = _within(journal.incidents, pause.from_s, pause.to_s)
    causes = [(one.time_s, one.cause) for one in inside]
    if not causes:
        restarts = _within(journal.restarts, pause.from_s, pause.to_s)
        causes = [(one.time_s, one.cause) for one in restarts]
    if not causes:
        yield _by_trainer(pause, steps.starts), pause.to_s - pause.from_s + pause.again_s
        return
    from_s = pause.from_s - pause.again_s
    for (time_s, cause), later in zip(causes, [*causes[1:], None], strict=True):
        to_s = pause.to_s
        if later is not None:
            index = bisect_right(journal.begins, time_s, key=_time)
            after = [one.time_s for one in journal.begins[index : index + 1]]
            to_s = min([*after, later[0], pause.to_s])
        yield cause, to_s - from_s
        from_s = to_s


def _by_trainer(pause: Pause, starts: Sequence[Start]) -> str:
    """The cause where no launcher wrote one: the trainer may say that it was asked to stop."""
    ends = (one for one in starts if one.ended_s and pause.from_s <= one.ended_s <= pause.to_s)
    return USER_STOP if any(one.ending == "stopped" for one in ends) else UNKNOWN


def _pending(
    steps: Steps, journal: Journal, attempts: Sequence[Attempt]
) -> tuple[str, float] | None:
    """What is being lost now: of an incident after which no step was done."""
    newest = steps.starts[-1] if steps.starts else None
    done_s = max((start.last_s for start in steps.starts), default=0.0)
    incident: Incident | None = journal.incidents[-1] if journal.incidents else None
    if incident is None or incident.time_s < done_s:
        return None
    if newest is not None and newest.first is not None and newest.began_s > incident.time_s:
        return None
    if incident.cause == USER_STOP and journal.end is not None:
        return None  # the run is over, as its user wants
    last = steps.last
    since_s = (
        max(last[2], steps.accounted[0]) if last else attempts[0].began_s if attempts else None
    )
    return None if since_s is None else (incident.cause, since_s)


def _restarting_since(steps: Steps, journal: Journal) -> float | None:
    """When the restart was, if it is the last thing that happened."""
    done_s = max((start.last_s for start in steps.starts), default=0.0)
    again = [one.time_s for one in journal.restarts[-1:]]
    again += [one.time_s for one in journal.begins[1:][-1:]]
    newest_s = max(again, default=0.0)
    return newest_s if newest_s > done_s else None
