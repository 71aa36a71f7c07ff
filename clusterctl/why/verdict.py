"""What ended an attempt, by what was recorded of it and by the logs of its ranks. Pure.

The launcher's judgement counts where it names a root. Where it is missing (its supervisor was
killed, or the run has no launcher) or names none, the same rules judge what the files still say. A
rank or node is named by evidence only; else the verdict says why it cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

from clusterctl.jobs.processes import fold_ranks
from clusterctl.launch.causes import texts
from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.launch.deaths import Death
from clusterctl.launch.end_cause import End, judge_end
from clusterctl.launch.root_cause import NOT_STATED
from clusterctl.nodes import counted
from clusterctl.why.rank_logs import Logs, RankLog
from clusterctl.why.recorded import AttemptRecord, RankEnd

NEVER = float("inf")
NO_RANK = -1  # of a log that does not tell its rank
NOT_SEEN = "its end was not seen"
# What stands below the error that ends a program: no word of one that goes on.
_DETAIL = re.compile(
    r"\s*$|\s|frame #|Exception raised from|terminate called|CUDA kernel errors|For debugging|"
    r"Compile with|Current thread|Thread 0x|Extension modules|Aborted|Traceback \(most|"
    r"During handling of the above|The above exception was|\[[EWIF]\d* |\[[EWIF] |wandb:|"
    r"\S+:\d+:\d+ \[\d+\] |\w*Warning|--- attempt|Search for `|CUDA error|nccl\w+: |"
    r"Last error:|socketProgress|"
    r"\[\d[\d,]* bytes are left out here\]|.*(?:resource_tracker|destroy_process_group)"
)
_UNCAUGHT = re.compile(r"\[rank\d+\]: ")
_UNLOADING = ("Exception ignored", "Exception in thread")  # printed while the interpreter ends
# Of faulthandler, which prints it before the signal ends the process.
_FATAL = {
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}


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


def judge(record: AttemptRecord, logs: Logs, world: int | None) -> Verdict:
    """The first cause of an attempt that has ended badly, as far as it is known."""
    found = _judged(record, logs, world)
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


def _judged(record: AttemptRecord, logs: Logs, world: int | None) -> Verdict:
    ends = {one.rank: one for one in record.ends} or reported_ends(logs)
    deaths = _deaths(ends, logs)
    code, reason = record.failure or (1, "")
    lines: Sequence[str] = next(
        (lines for lines in logs.starters.values() if texts.read(lines)), ()
    )
    if not deaths and not record.lost and not record.facts and not lines:
        return Verdict(why_not=_nothing(logs, record))
    end = End(
        code, reason, deaths, record.lost, lines, record.nodes, record.facts, record.stopped_s
    )
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
        silent = _only_silent(every, ends, logs, world)
        if silent is not None:
            return Verdict(silent, victims=every, victim_count=len(every))
        why = f"{NOT_STATED}: all blame another one{_left(ends, logs, world)}"
        return Verdict(why_not=why, victims=every, victim_count=len(every))
    if judgement.death is None or not judgement.death.states_own_error:
        return Verdict(_without_mark(root), victims=victims, victim_count=len(victims))
    return _among_alike(root, judgement.death, deaths, victims)


def _among_alike(
    root: Cause, death: Death, deaths: Sequence[Death], victims: Sequence[Cause]
) -> Verdict:
    """The root among several ranks that state an error of their own."""
    own = [one for one in deaths if one.states_own_error and one.stated is not None]
    same = [one for one in own if _class(one) == _class(death)]
    ranks = tuple(sorted({one.rank for one in same if one.rank != NO_RANK}))
    alike = {one.rank for one in same}
    kept = tuple(one for one in victims if one.rank not in alike)
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
    elif len(same) > 1 and death.at_s == NEVER:  # each has it: none of them is named
        homes = {one.node for one in same}
        node = homes.pop() if len(homes) == 1 and "" not in homes else None
        root = replace(root, rank=None, node=node)
    return Verdict(_without_mark(root), "", ranks, False, kept, len(kept))


def _class(death: Death) -> tuple[Kind, str]:
    assert death.stated is not None
    return death.stated.kind, death.stated.detail


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
        lines = end_of(log.lines)
        if lines:
            found.append(Death(log.node, rank, _code(lines), NOT_SEEN, lines, NEVER))
    return found


def _code(lines: Sequence[str]) -> int | None:
    stated = texts.read(lines)
    number = _FATAL.get(stated.detail) if stated else None
    return -number if number else None


def end_of(lines: Sequence[str]) -> Sequence[str]:
    """The lines up to the error that a log ends with; none where it goes on after the last one.

    A program that has survived an error goes on writing: such an error is no end.
    """
    found = texts.find(lines)
    if found is None:
        return lines if texts.read(lines) is not None else ()
    below = list(takewhile(lambda line: not line.startswith(_UNLOADING), lines[found[0] + 1 :]))
    if _UNCAUGHT.match(lines[found[0]]):  # torch marks all lines of an error that nobody caught
        below = list(dropwhile(_UNCAUGHT.match, below))
    for line in map(texts.plain, below):
        if not _DETAIL.match(line) and not texts.is_raised(line):
            return ()
    return lines[: found[0] + 2]  # with `what():` below an abort


_REPORT = re.compile(
    r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)|exitcode\s+: (?P<code>-?\d+) \(pid|"
    r"time\s+: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)|host\s+: (?P<host>\S+)|"
    r"(?P<first>Root Cause \(first observed failure\))"
)


def reported_ends(logs: Logs) -> dict[int, RankEnd]:
    """Exit codes of ranks by the report that torchrun prints at its end."""
    found: dict[int, RankEnd] = {}
    given = [log.lines for log in logs.ranks if log.rank is None]
    for lines in (*given, *logs.starters.values()):
        if not any("ChildFailedError" in line for line in lines):
            continue
        host, at_s, rank, is_first = "", 0.0, None, False
        for line in lines:
            match = _REPORT.search(line)
            if match is None:
                continue
            if match["first"]:
                is_first = True
            elif match["time"]:
                at_s = _seconds(match["time"])
            elif match["host"]:
                host = match["host"]
            elif match["rank"]:
                rank = int(match["rank"])
            elif match["code"] and rank is not None:
                code = int(match["code"])
                how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
                # It saw this one before those of the same second.
                found[rank] = RankEnd(rank, host, code, how, at_s - (0.5 if is_first else 0.0))
    return found


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()


def _only_silent(
    every: Sequence[Cause], ends: Mapping[int, RankEnd], logs: Logs, world: int | None
) -> Cause | None:
    """The one rank whose log ends without a word, where every other one lost a connection.

    A connection is closed by the end of a process: what ended first is the one that blames nobody.
    """
    blaming = {one.rank for one in every if one.kind == Kind.PEER_LOST}
    there = {log.rank: log for log in logs.ranks if log.rank is not None}
    if ends or world is None or len(there) != world or len(blaming) != world - 1 or world < 2:
        return None
    (log,) = [log for rank, log in there.items() if rank not in blaming]
    if texts.read(log.lines) is not None:
        return None
    last = log.lines[-1].strip() if log.lines else ""
    said = f"its log ends without a word, after {last!r}" if last else "its log is empty"
    note = "every other rank lost a connection"
    return Cause(
        Kind.UNKNOWN, "", log.node or None, log.rank, Evidence(Source.RANK_LOG, said), note=note
    )


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
    number = counted(len({log.rank for log in logs.ranks}), "log")
    return f"none of {number} ends with an error, and nothing says how the ranks ended"


def world_of(logs: Logs, record: AttemptRecord, planned: int | None) -> int | None:
    """Number of ranks: as the launcher says, else by the logs that are there."""
    if planned:
        return planned
    ranks = [*record.nodes, *(log.rank for log in logs.ranks if log.rank is not None)]
    return max(ranks) + 1 if ranks else None


def log_of(logs: Logs, rank: int | None, said: str) -> RankLog | None:
    """The log of a rank; without one the first that has the sentence."""
    if rank is not None:
        return next((log for log in logs.ranks if log.rank == rank), None)
    return next((log for log in logs.ranks if any(said in line for line in log.lines)), None)
