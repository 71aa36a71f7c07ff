"""Why a run ended: its attempts, the verdict on one of them, and what belongs to that."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from checks import units
from checks.facts import NOT_ASKED
from checks.parsers.kernel_log import INTERESTING, read_events
from checks.units import counted
from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.launch.causes import signatures, texts
from clusterctl.launch.causes.kinds import Cause, Kind, Source
from clusterctl.payload.secrets.mask import LineMask, hide
from clusterctl.runs import owner
from clusterctl.runs.attempts import DONE, FAILED, RUNNING, Attempt
from clusterctl.runs.find import PLAN_FILE
from clusterctl.runs.journal import USER_STOP
from clusterctl.stacks import clues
from clusterctl.why import rank_logs
from clusterctl.why.changes import Changes, changes_of
from clusterctl.why.endings import end_of
from clusterctl.why.rank_logs import Logs
from clusterctl.why.recorded import AttemptRecord, Recorded, read_recorded
from clusterctl.why.verdict import Verdict, judge, log_of
from trainer.runlog.slow_ranks import Spell

ENDED_WELL, ENDED_BADLY, STOPPED, GOES_ON, WAITS, NOT_KNOWN = (
    "ended well",
    "failed",
    "stopped",
    "running",
    "waiting",
    "unknown",
)
BAD = (ENDED_BADLY, WAITS, NOT_KNOWN)  # an attempt has failed, and none runs
FRESH_S = 60.0  # a log that was written within this time belongs to a run that may go on
MINUTES_S = 300.0  # of what else happened at the time of a failure
MOST_CLUES = 12
CONTEXT = 12  # lines of the log that end with the error
NOT_ENOUGH = "get what is missing: logs of all ranks, exit codes, the kernel's log of each node"
BY_LAUNCHER = ("the launcher gives this reason", "put that right, and start it again")
_KERNEL = re.compile(INTERESTING)


@dataclass(frozen=True, slots=True)
class Explanation:
    """`state` is of the run, `verdict` of the attempt `number`, None where that did not fail."""

    run_dir: Path
    state: str
    text: str  # how the run stands, as one sentence
    attempts: tuple[Attempt, ...] = ()
    number: int = 1
    verdict: Verdict | None = None
    context: tuple[str, ...] = ()  # lines of the log up to the error
    log: str = ""  # its name
    meaning: str = ""
    advice: str = ""
    signature: str = ""  # "" where none knows the error
    victims: Mapping[str, int] = field(default_factory=dict)  # how ranks followed
    clues: tuple[str, ...] = ()
    stacks: str = ""
    changes: Changes | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    is_asked: bool = False  # somebody asked for this attempt
    slow: tuple[Spell, ...] = ()  # ranks that the others waited for

    @property
    def exit_code(self) -> int:
        """1 for a failure whose cause is known, 3 where it or the run's state is not."""
        cause = self.verdict.cause if self.verdict else None
        if cause is not None and cause.kind == Kind.USER_STOP:
            return 0
        if self.verdict is not None and (self.is_asked or self.state in BAD):
            return 1 if cause is not None else CouldNotFindOut.exit_code
        return CouldNotFindOut.exit_code if self.state == NOT_KNOWN else 0


def explain(run_dir: Path, attempt: int | None, now_s: float) -> Explanation:
    """Of a run directory. Raises `UsageError` for an attempt that it does not have."""
    recorded = read_recorded(run_dir)
    attempts = recorded.account.attempts
    newest = max(recorded.records)
    if attempt is not None and attempt not in recorded.records:
        raise UsageError(
            f"{run_dir.name} has no attempt {attempt}",
            hint=f"its attempts are {min(recorded.records)} to {newest}",
        )
    state, text = _state(run_dir, recorded)
    logs = None
    if state == NOT_KNOWN and recorded.records[newest].incident is None:
        record = recorded.records[newest]
        logs = rank_logs.of_run(run_dir, newest, newest, record.nodes)
        state, text = _by_logs(logs, record, recorded, text, now_s)
    number = attempt or _last_failed(recorded, state)
    is_newest = number == newest
    if number is None or (is_newest and _is_good(recorded.records[newest], state)):
        return Explanation(run_dir, state, text, attempts, newest, slow=recorded.slow)
    record = recorded.records[number]
    if logs is None or not is_newest:
        logs = rank_logs.of_run(run_dir, number, newest, record.nodes)
    begun = next((one for one in attempts if one.number == number), None)
    verdict = judge(record, logs, begun.world if begun else None)
    if is_newest and state == NOT_KNOWN and verdict.cause is not None:
        state = ENDED_BADLY
    at_s = record.incident.time_s if record.incident else recorded.newest_s
    found = _told(run_dir, state, text, attempts, number, verdict, logs, record, at_s)
    changes = changes_of(run_dir, recorded, number, begun)
    return replace(found, changes=changes, is_asked=attempt is not None, slow=recorded.slow)


def explain_logs(folder: Path) -> Explanation:
    """Of a folder of logs alone. Raises `UsageError` without any."""
    logs = rank_logs.of_folder(folder)
    if not logs.ranks:
        why = next(iter(logs.unread.values()), "")
        hint = why or "names that end in .log, .txt, .out or .err are read"
        raise UsageError(f"{folder} has no log", hint=hint)
    record = AttemptRecord()
    verdict = judge(record, logs)
    state = NOT_KNOWN if verdict.cause is None else ENDED_BADLY
    ranks = {one.rank for one in logs.ranks if one.rank is not None}
    text = counted(len({one.name for one in logs.ranks}), "log")
    text += f" of {counted(len(ranks), 'rank')}" if ranks else " of unknown ranks"
    return _told(folder, state, text, (), 1, verdict, logs, record, 0.0)


def _state(run_dir: Path, recorded: Recorded) -> tuple[str, str]:
    """(state, sentence) by what was written; the logs may say more."""
    end = recorded.journal.end
    if end is not None:
        if end.exit_code == 0:
            return ENDED_WELL, end.text or "all ranks have ended well"
        return (STOPPED, end.text) if end.exit_code == 130 else (ENDED_BADLY, end.text)
    if recorded.journal.begins or (run_dir / PLAN_FILE).exists():
        who = owner.find(run_dir)
        between = recorded.journal.between
        if who is not None and between is not None:
            return WAITS, f"{between.text}; it is supervised by {who.text}"
        if who is not None:
            return GOES_ON, f"it is supervised by {who.text}"
        if run_dir.stat().st_uid != os.getuid():
            return NOT_KNOWN, "no end is written, and only its user can see who supervises it"
        return NOT_KNOWN, "its supervisor has gone without writing how it ended"
    words = {
        DONE: (ENDED_WELL, "its trainer reached the last step"),
        "stopped": (STOPPED, "its trainer was asked to stop"),
        FAILED: (ENDED_BADLY, "its trainer says that it failed"),
    }
    return words.get(recorded.trainer_end, (NOT_KNOWN, "nothing says how it ended"))


def _last_failed(recorded: Recorded, state: str) -> int | None:
    """The one that is explained in full: the newest that failed, or whose end is not known."""
    if state in BAD:
        return max(recorded.records)
    good = (DONE, USER_STOP, RUNNING)
    failed = [one.number for one in recorded.account.attempts if one.ending not in good]
    return max((number for number in failed if number in recorded.records), default=None)


def _is_good(record: AttemptRecord, state: str) -> bool:
    """Whether the newest attempt has not failed, as far as its run's state tells."""
    return state in (ENDED_WELL, STOPPED, GOES_ON) and record.incident is None


def _by_logs(
    logs: Logs, record: AttemptRecord, recorded: Recorded, text: str, now_s: float
) -> tuple[str, str]:
    """State of a run whose end nobody wrote: whether its ranks still write."""
    newest_s = max([one.written_s for one in logs.ranks] + [recorded.newest_s])
    ago_s = max(0.0, now_s - newest_s)
    has_failed = bool(record.lost) or any(one.code != 0 for one in record.ends)
    if ago_s < FRESH_S and not has_failed and not any(end_of(log.lines) for log in logs.ranks):
        return GOES_ON, f"{text}, and its files were written {units.ago(ago_s)}"
    return NOT_KNOWN, text


def _told(
    run_dir: Path,
    state: str,
    text: str,
    attempts: tuple[Attempt, ...],
    number: int,
    verdict: Verdict,
    logs: Logs,
    record: AttemptRecord,
    at_s: float,
) -> Explanation:
    cause = verdict.cause
    name, context, hint = _context(logs, verdict)
    known = _signature(cause) if cause is not None else None
    meaning, advice = "", NOT_ENOUGH
    if known is not None:
        meaning, advice = known.meaning, known.advice
    elif cause is not None:
        meaning, advice = signatures.advice(cause.name)
        said = cause.evidence
        if cause.kind == Kind.UNKNOWN and said and said.source == Source.STARTER_LOG:
            meaning, advice = BY_LAUNCHER
    if hint:
        is_all = cause is not None and cause.kind == Kind.REFUSED
        advice = hint if is_all else f"{hint} (the log's own hint); {advice}"
    told = _victims(verdict)
    return Explanation(
        run_dir,
        state,
        text,
        attempts,
        number,
        verdict,
        context,
        name,
        meaning,
        advice,
        known.name if known else "",
        told,
        tuple(map(hide, _clues(logs, record, verdict, at_s)))[:MOST_CLUES],
        _stacks(record),
        None,
        logs.unread,
    )


def _signature(cause: Cause) -> signatures.Signature | None:
    said = cause.evidence
    if said is None or said.source not in (Source.RANK_LOG, Source.STARTER_LOG):
        return None
    found = signatures.find(said.line)
    return found if found is not None and found.kind == cause.kind else None


def _context(logs: Logs, verdict: Verdict) -> tuple[str, tuple[str, ...], str]:
    """(name of the log, its lines up to the error and its hint, that hint)."""
    cause = verdict.cause
    if cause is None or cause.evidence is None:
        return "", (), ""
    rank = cause.rank if cause.rank is not None else next(iter(verdict.ranks), None)
    said = texts.first_line(cause.evidence.line)
    log = log_of(logs, rank, said)
    if log is None:
        return "", (), ""
    at = next(
        (index for index in range(len(log.lines) - 1, -1, -1) if said and said in log.lines[index]),
        len(log.lines) - 1,
    )
    hint = texts.hint(log.lines, at) if log.lines else ""
    end = texts.hint_at(log.lines, at) if hint else None
    last = max(at, texts.detail_end(log.lines, at) - 1) if end is None else min(end, at + CONTEXT)
    first = max(0, min(at, last - CONTEXT + 1))
    lines = tuple(map(LineMask().hide, log.lines[first : last + 1]))
    return log.name, lines, hide(hint)


def _victims(verdict: Verdict) -> dict[str, int]:
    """How many ranks followed in which way, the most frequent first."""
    counts = Counter(_short(one) for one in verdict.victims)
    left = verdict.victim_count - len(verdict.victims)
    if left > 0:
        counts["not kept in the record"] += left
    return dict(counts.most_common())


def _short(cause: Cause) -> str:
    known = _signature(cause)
    if known is not None:
        return known.short
    if cause.kind == Kind.UNKNOWN:
        return cause.evidence.line if cause.evidence else "ended without a word"
    return cause.detail if cause.kind == Kind.WORKER_EXCEPTION and cause.detail else cause.name


def _clues(logs: Logs, record: AttemptRecord, verdict: Verdict, at_s: float) -> Iterator[str]:
    """Xid, memory and network lines: the kernel's, the launcher's of these minutes, NCCL's."""
    said = verdict.cause.evidence.line if verdict.cause and verdict.cause.evidence else ""
    for fact in record.facts:
        if fact.evidence.line != said:
            yield f"{fact.node}: {fact.evidence.line}"
    for time_s, text in record.notes:
        if abs(time_s - at_s) <= MINUTES_S and said not in text:
            yield f"{time.strftime('%H:%M:%S', time.localtime(time_s))} {text}"
    lines = [(log.rank, list(log.lines)) for log in logs.ranks if log.rank is not None]
    for clue in (*clues.watchdog(lines, are_own=True), *clues.network(lines)):
        if not said or clue.text.partition(": ")[2] not in said:
            yield clue.text
    for log in logs.ranks:
        for clue in clues.network([(0, list(log.lines))]) if log.rank is None else ():
            if (text := clue.text.partition(": ")[2]) not in said:
                yield f"{log.node or log.name}: {text}"
    others = [line for log in logs.ranks if log.rank is None for line in log.lines]
    others += [line for found in logs.starters.values() for line in found]
    for line in others:
        is_of_kernel = _KERNEL.search(line) and read_events(line, NOT_ASKED, NOT_ASKED)
        if is_of_kernel or "slurmstepd: error" in line:
            yield line.strip()


def _stacks(record: AttemptRecord) -> str:
    return record.incident.stacks if record.incident else ""
