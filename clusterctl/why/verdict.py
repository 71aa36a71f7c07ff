"""What ended an attempt, by what was recorded of it and by the logs of its ranks. Pure.

The launcher's judgement counts where it names a root. Where it is missing (its supervisor was
killed, or the run has no launcher) or names none, the same rules judge what the files still say. A
rank or node is named by evidence only; else the verdict says why it cannot tell.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from checks.units import counted
from clusterctl.jobs.processes import fold_ranks
from clusterctl.launch.causes import texts
from clusterctl.launch.causes.kinds import Cause, Evidence, Fact, Kind, Source
from clusterctl.launch.deaths import Death
from clusterctl.launch.end_cause import End, judge_end
from clusterctl.launch.root_cause import NOT_STATED
from clusterctl.why import launcher_words
from clusterctl.why.endings import end_of, first_end_of, reported_ends, signal_of
from clusterctl.why.rank_logs import Logs, RankLog
from clusterctl.why.recorded import AttemptRecord, RankEnd

NEVER = float("inf")
NEAR_END, MOST_CANDIDATES = 30, 3  # lines of a log, errors
# What ranks that have the same error may say in other ways: numbers, and names in quotes.
_SAID, MOST_SAID = re.compile(r"[\d\s]+|'[^'\n]{0,300}'"), 60  # characters
NO_RANK = -1  # of a log that does not tell its rank
NOT_SEEN = "its end was not seen"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cause` is None where nothing ended badly, or `why_not` says why none is known."""

    cause: Cause | None = None
    why_not: str = ""
    ranks: tuple[int, ...] = ()  # all that state the same error as the root
    is_recorded: bool = False  # by the launcher at that time; else judged now from the files
    victims: tuple[Cause, ...] = ()
    victim_count: int = 0
    candidates: tuple[Cause, ...] = ()  # errors of which none is known to be the first


def judge(record: AttemptRecord, logs: Logs, planned: int | None = None) -> Verdict:
    """The first cause of an attempt that has ended badly, as far as it is known.

    `planned` is the number of its ranks, None where nobody wrote it.
    """
    found = _judged(record, logs, planned)
    incident = record.incident
    if incident is None or incident.root is None:
        return found
    told = incident.root
    if told.kind == Kind.USER_STOP:
        return Verdict(told, is_recorded=True)
    is_known = told.is_root and told.kind != Kind.UNKNOWN
    if not is_known and found.cause is not None and found.cause.kind != Kind.UNKNOWN:
        return found  # what its supervisor did not have: a log that came later
    victims = found.victims or incident.consequences
    count = max(incident.consequence_count, len(victims))
    if told.is_root:
        ranks = _alike(told, found)
        kept = tuple(
            one for one in victims if one.rank is None or one.rank not in (told.rank, *ranks)
        )
        count = len(kept) if found.victims else count
        return Verdict(told, "", ranks, True, kept, count)
    return replace(found, victims=victims, victim_count=count)


def _alike(told: Cause, found: Verdict) -> tuple[int, ...]:
    same = found.cause is not None and (found.cause.kind, found.cause.detail) == (
        told.kind,
        told.detail,
    )
    return found.ranks if same and told.rank in found.ranks else ()


def _judged(record: AttemptRecord, logs: Logs, planned: int | None) -> Verdict:
    world = planned or _world_of(logs, record)
    ends = {one.rank: one for one in record.ends} or reported_ends(logs)
    deaths = _deaths(ends, logs)
    facts = list(record.facts)
    if not record.ends:
        told, more = _told(logs, deaths)
        deaths, facts = (deaths if ends else told), [*facts, *more]
    code, reason = record.failure or (1, "")
    lines: Sequence[str] = next(
        (lines for lines in logs.starters.values() if texts.read(lines)), ()
    )
    if not (deaths or record.lost or facts or lines or record.failure):
        last = tuple(_last_errors(logs))
        said = "; the last that logs state, before more lines" if last else ""
        return Verdict(why_not=_nothing(logs, record) + said, candidates=last)
    end = End(code, reason, deaths, record.lost, lines, record.nodes, facts, record.stopped_s)
    judgement = judge_end(end)
    root, victims = judgement.root, tuple(map(_without_mark, judgement.consequences))
    if (
        root.kind == Kind.UNKNOWN
        and judgement.death is None
        and root.evidence
        and not root.evidence.line
    ):
        return Verdict(why_not=_nothing(logs, record))
    if not root.is_root or root.kind.is_consequence:
        every = (_without_mark(root), *victims)
        silent = _only_silent(every, ends, logs, planned)
        if silent is not None:
            return Verdict(silent, victims=every, victim_count=len(every))
        why = f"{NOT_STATED}: all blame another one{_left(ends, logs, world)}"
        return Verdict(why_not=why, victims=every, victim_count=len(every))
    if root.kind == Kind.UNKNOWN and judgement.death is not None and not record.ends:
        how = judgement.death.how
        how = f"torchrun saw rank {root.rank} end first ({how})" if " saw " not in how else how
        every = (_without_mark(root), *victims)
        why = f"no log says why: {how}, which may be a victim"
        return Verdict(why_not=why, victims=every, victim_count=len(every))
    if judgement.death is None or not judgement.death.states_own_error:
        return Verdict(_without_mark(root), victims=victims, victim_count=len(victims))
    return _among_alike(root, judgement.death, deaths, victims)


def _among_alike(
    root: Cause, death: Death, deaths: Sequence[Death], victims: Sequence[Cause]
) -> Verdict:
    """The root among several ranks that state an error of their own."""
    own = [one for one in deaths if one.states_own_error and one.stated is not None]
    same = [one for one in own if _is_alike(one, death)]
    ranks = tuple(sorted({one.rank for one in same if one.rank != NO_RANK}))
    alike = {one.rank for one in same}
    kept = tuple(one for one in victims if not _is_of(alike, root, one))
    untimed = [one for one in own if one.at_s == NEVER]
    if len(own) > len(same) and untimed:
        others = [root, *(one for one in kept if not one.kind.is_consequence)]
        first: dict[tuple[str, str], Cause] = {}
        for one in others:
            first.setdefault((one.name, one.detail), _without_mark(one))
        why = "ranks state different errors, and nothing says which one came first"
        blamers = tuple(one for one in kept if one.kind.is_consequence)
        return Verdict(None, why, (), False, blamers, len(blamers), tuple(first.values()))
    if death.stated is not None and death.stated.rank is not None:  # all agree on that rank
        ranks = () if root.rank is None else (root.rank,)
    elif len(ranks) == 1 and death.rank == NO_RANK:
        root = next((replace(one, is_root=True) for one in victims if one.rank in ranks), root)
    elif len(ranks) > 1 and death.at_s == NEVER:  # each has it: none of them is named
        homes = {one.node for one in same}
        node = homes.pop() if len(homes) == 1 and "" not in homes else None
        root = replace(root, rank=None, node=node)
    return Verdict(_without_mark(root), "", ranks, False, kept, len(kept))


def _is_of(ranks: Collection[int], root: Cause, victim: Cause) -> bool:
    """Whether a victim is one of the ranks that state the same error."""
    if victim.rank is not None:
        return victim.rank in ranks
    line = victim.evidence.line if victim.evidence else ""
    return NO_RANK in ranks and (victim.kind == root.kind or texts.is_abort(line))


def _is_alike(one: Death, other: Death) -> bool:
    """Whether two errors are the same; an abort without a rank follows whatever was raised."""
    assert one.stated is not None
    assert other.stated is not None
    is_unnamed = NO_RANK in (one.rank, other.rank)
    if is_unnamed and any(it.rank == NO_RANK and _is_abort(it) for it in (one, other)):
        return True
    both = (one.stated, other.stated)
    if one.stated.kind != other.stated.kind:
        return False
    if one.stated.kind != Kind.WORKER_EXCEPTION:
        is_half_unnamed = is_unnamed and one.rank != other.rank
        return one.stated.detail == other.stated.detail or is_half_unnamed
    # Of errors that no signature knows the words count.
    return len({(it.detail, _SAID.sub("", it.text)[:MOST_SAID]) for it in both}) == 1


def _without_mark(cause: Cause) -> Cause:
    cause = replace(cause, node=cause.node or None)
    return replace(cause, rank=None) if cause.rank == NO_RANK else cause


def _deaths(ends: Mapping[int, RankEnd], logs: Logs) -> list[Death]:
    """Ends that are known to be bad, and logs that end with an error."""
    own = {log.rank: log for log in logs.ranks if log.rank is not None}
    found = []
    lines: Sequence[str]
    for rank, end in ends.items():
        if end.code != 0:
            lines = own[rank].lines if rank in own else ()
            error = end.how.partition(": ")[2] or None
            found.append(Death(end.node, rank, end.code, end.how, lines, end.at_s, error))
    for log in logs.ranks:
        rank = NO_RANK if log.rank is None else log.rank
        if rank in ends:
            continue
        lines = end_of(log.lines) if log.rank is not None else first_end_of(log.lines)
        if lines:
            found.append(Death(log.node, rank, signal_of(lines), NOT_SEEN, lines, NEVER))
    if any(_is_watchdog(one) for one in found):  # which ends its rank by an abort
        found = [one for one in found if one.rank != NO_RANK or not _is_abort(one)]
    return _with_its_rank(found)


def _is_watchdog(death: Death) -> bool:
    return death.stated is not None and death.stated.kind == Kind.NCCL_WATCHDOG


def _is_abort(death: Death) -> bool:
    return death.stated is not None and texts.is_abort(death.stated.text)


def _with_its_rank(deaths: list[Death]) -> list[Death]:
    """An error without a rank is that of the only one that ended with an exit code by itself."""
    ended = [one for one in deaths if one.rank != NO_RANK]
    unnamed = [one for one in deaths if one.rank == NO_RANK]
    if len(ended) != 1 or len(unnamed) != 1 or ended[0].tail or (ended[0].code or 0) <= 0:
        return deaths
    tail = unnamed[0].tail
    return [replace(ended[0], tail=tail)] if unnamed[0].states_own_error else deaths


def _told(logs: Logs, deaths: list[Death]) -> tuple[list[Death], list[Fact]]:
    """Deaths with those that launchers tell, and facts. Where a rank states an error of its own,
    only the kernel's kills count beside it."""
    words = [(log, launcher_words.read(log.lines)) for log in logs.ranks]
    has_timed_out = any(_is_watchdog(one) for one in deaths)
    facts = [fact for _, said in words for fact in said.kills]
    if any(one.states_own_error for one in deaths):
        return deaths, facts
    found: list[Death] = []
    for log, said in words:
        for end in said.ends:
            if has_timed_out and end.code == -signal.SIGABRT and end.rank is None:
                continue  # by which the watchdog ends its rank
            own = log.rank if end.is_of_log else None
            rank = end.rank if end.rank is not None else own
            lines = next((one.tail for one in deaths if one.rank == rank), ())
            number = NO_RANK if rank is None else rank
            found.append(Death(end.node or log.node, number, end.code, end.how, lines, NEVER))
    told = {one.rank for one in found} - {NO_RANK}
    kept = [one for one in deaths if one.rank not in told]
    return [*kept, *found], facts + [fact for _, said in words for fact in said.stops]


def _only_silent(
    every: Sequence[Cause], ends: Mapping[int, RankEnd], logs: Logs, planned: int | None
) -> Cause | None:
    """The one rank whose log ends without a word, where to every other one a connection was closed.

    The end of a process closes its connections, and what ended first blames nobody. That is proved
    only where all ranks are known. A process that ends with unread data resets some of its
    connections; one that timed out proves no end.
    """
    said_of = {one.rank: one.evidence.line.lower() for one in every if one.evidence}
    blaming = {rank for rank, said in said_of.items() if "closed" in said or "reset" in said}
    if not any("closed" in said for said in said_of.values()):
        return None
    there = {log.rank: log for log in logs.ranks if log.rank is not None}
    if ends or planned is None or planned < 2 or there.keys() != set(range(planned)):
        return None
    silent = [log for rank, log in there.items() if rank not in blaming]
    if len(silent) != 1 or texts.read(silent[0].lines) is not None:
        return None
    (log,) = silent
    last = log.lines[-1].strip() if log.lines else ""
    said = f"its log ends without a word, after {last!r}" if last else "its log is empty"
    note = "every other rank lost a connection"
    evidence = Evidence(Source.RANK_LOG, said)
    return Cause(Kind.UNKNOWN, "", log.node or None, log.rank, evidence, note=note)


def _left(ends: Mapping[int, RankEnd], logs: Logs, world: int | None) -> str:
    """Ranks that are no victims by their own word, as a lead."""
    if world is None:
        return ""
    there = {log.rank for log in logs.ranks}
    missing = [rank for rank in range(world) if rank not in there]
    silent = [
        log.rank
        for log in logs.ranks
        if log.rank is not None and log.rank not in ends and texts.read(log.lines) is None
    ]
    said = []
    if missing:
        said.append(f"there is no log of rank {fold_ranks(missing)}")
    if silent:
        said.append(f"the log of rank {fold_ranks(silent)} ends without an error")
    return "; " + " and ".join(said) if said else ""


def _nothing(logs: Logs, record: AttemptRecord) -> str:
    if not logs.ranks:
        why = f" ({next(iter(logs.unread.values()))})" if logs.unread else ""
        return f"there is no log of a rank{why}, and no launcher recorded how it ended"
    number = counted(len({log.name for log in logs.ranks}), "log")
    return f"none of {number} ends with an error, and nothing says how the ranks ended"


def _last_errors(logs: Logs) -> Iterator[Cause]:
    """Errors that stand near the end of logs that go on after them: they may have been survived."""
    seen = set[str]()
    for log in logs.ranks:
        found = texts.find(log.lines[-NEAR_END:])
        if found is not None and len(seen) < MOST_CANDIDATES and found.text not in seen:
            seen.add(found.text)
            stated = texts.classify(found.text, found.rank)
            said = Evidence(Source.RANK_LOG, found.text)
            rank = log.rank if log.rank is not None else stated.rank
            yield Cause(stated.kind, stated.detail, log.node or None, rank, said)


def _world_of(logs: Logs, record: AttemptRecord) -> int | None:
    """At least so many ranks there were, by what is there of them."""
    ranks = [*record.nodes, *(log.rank for log in logs.ranks if log.rank is not None)]
    return max(ranks) + 1 if ranks else None


def log_of(logs: Logs, rank: int | None, said: str) -> RankLog | None:
    """The log of a rank; without one the first that has the sentence."""
    said = texts.first_line(said)
    own = [log for log in logs.ranks if log.rank == rank] if rank is not None else []
    if own:
        return own[0]
    return next((log for log in logs.ranks if any(said in line for line in log.lines)), None)
