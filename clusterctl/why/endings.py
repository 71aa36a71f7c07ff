"""Which error a log ends with, and the exit codes that torchrun reports. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import dropwhile, takewhile

from clusterctl.launch.causes import prefixes, texts
from clusterctl.why import launcher_words
from clusterctl.why.rank_logs import Logs
from clusterctl.why.recorded import RankEnd

# What stands below the error that ends a program: no word of one that goes on.
_DETAIL = re.compile(
    r"\s*$|\s|frame #|Exception raised from|terminate called|CUDA kernel errors|For debugging|"
    r"Compile with|Current thread|Thread 0x|Extension modules|Aborted|Traceback \(most|"
    r"During handling of the above|The above exception was|Original exception was:|"
    r"\[[EWIF]\d* |\[[EWIF] |wandb:|"
    # Ray, below its errors.
    r"The actor is dead because|Memory on the node|Refer to the documentation|Top \d+ memory users|"
    r"PID\s+MEM|\d{1,9}\t\d|Ray killed this worker|"
    r"-{20,}|={20,}|-- Process \d+ terminated with|"
    r"\S+:\d+:\d+ \[\d+\] |\w*Warning|--- attempt|Search for `|CUDA error|nccl\w+: |"
    r"Last error:|socketProgress|"
    r"\[\d[\d,]* bytes are left out here\]|.*(?:resource_tracker|destroy_process_group)"
)
_UNCAUGHT = prefixes.OF_RANK
_UNLOADING = "Exception ignored"  # printed while the interpreter ends
_SPAWNED = " terminated with the following error:"
# Of faulthandler, which prints it before the signal ends the process.
_FATAL = {
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}


def end_of(lines: Sequence[str]) -> Sequence[str]:
    """The lines up to the error that a log ends with; none where it goes on after the last one.

    A program that has survived an error goes on writing: such an error is no end.
    """
    found = texts.find(lines)
    if found is None:
        return lines if texts.read(lines) is not None else ()
    below = list(takewhile(lambda line: not line.startswith(_UNLOADING), lines[found.done :]))
    if _UNCAUGHT.match(lines[found.at]):  # torch marks all lines of an error that nobody caught
        below = list(dropwhile(_UNCAUGHT.match, below))
    for line in map(texts.plain, below):
        if not (_DETAIL.match(line) or texts.is_raised(line) or launcher_words.is_one(line)):
            return ()
    return lines[: _end_of_error(lines, found.at, found.end)]


def first_end_of(lines: Sequence[str]) -> Sequence[str]:
    """The same of a log that several ranks write, as torchrun's: the first error at its end.

    The order in one file is that of time. What torchrun says itself is left out.
    """
    at = next(
        (index for index, line in enumerate(lines) if launcher_words.is_one(line)), len(lines)
    )
    begin, details = at, texts.details(lines)
    while begin and (begin - 1 in details or _is_of_error(lines[begin - 1])):
        begin -= 1
    for index in range(begin, at):
        line = texts.plain(lines[index])
        if texts.is_raised(line) or texts.is_stated(line):
            end = _end_of_error(lines, index, texts.detail_end(lines, index))
            found = texts.read(lines[:end])
            if found is not None and not found.kind.is_consequence:
                return lines[:end]
    told = [index for index, line in enumerate(lines) if _SPAWNED in line]
    if told and at <= told[-1]:  # torch.multiprocessing prints the traceback of its process below
        below = [texts.plain(line) for line in lines[told[-1] + 1 :]]
        cut = (index for index, line in enumerate(below) if launcher_words.is_one(line))
        own = end_of(below[: next(cut, len(below))])
        if own:
            return own
    return end_of(lines[:at])


def _end_of_error(lines: Sequence[str], at: int, end: int) -> int:
    """With `what():` below an abort, and the hint below a refusal."""
    return max(end, at + 2, (texts.hint_at(lines, at) or 0) + 1)


def _is_of_error(line: str) -> bool:
    line = texts.plain(line)
    return bool(_DETAIL.match(line)) or texts.is_raised(line) or texts.is_stated(line)


def signal_of(lines: Sequence[str]) -> int | None:
    """The exit code of a signal that faulthandler has told; None without one."""
    stated = texts.read(lines)
    number = _FATAL.get(stated.detail) if stated else None
    return -number if number else None


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
    return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
