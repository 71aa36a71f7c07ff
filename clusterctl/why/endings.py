"""Which error a log ends with, and the exit codes that torchrun reports. Pure."""

from __future__ import annotations

import re
import signal
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
    # Open MPI and glog, of a signal; Nsight Systems; Hydra; a container runtime that cleans up.
    r"\[\S{1,200}:\d{1,9}\] (?:\*\*\* |Signal|Failing at|\[ ?\d)|\*\*\* |PC: @|"
    r"\.\. \S{1,200} pid \d{1,9}: Test|Set TORCH_LOGS|You can suppress this exception|"
    r"The target application terminated|Waiting for termination of re-parented|Use the `--wait|"
    r"Set the environment variable HYDRA_FULL_ERROR|time=\S{1,40} level=|"
    r"\[\d[\d,]* bytes are left out here\]|.*(?:resource_tracker|destroy_process_group)"
)
NEAR = 100  # lines between the error of a process and the word of its launcher
_UNCAUGHT = prefixes.OF_RANK
_UNLOADING = "Exception ignored"  # printed while the interpreter ends
_SPAWNED = " terminated with the following error:"
_GLOG = re.compile(r"\*\*\* (SIG[A-Z]{2,5}) \(@0x")
# Of faulthandler, which prints it before the signal ends the process.
_FATAL = {
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Aborted": 6,
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
    told = [index for index, line in enumerate(lines) if _SPAWNED in line]
    if told:  # torch.multiprocessing prints the traceback of its process below
        below = [texts.plain(line) for line in lines[told[-1] + 1 :]]
        cut = (index for index, line in enumerate(below) if launcher_words.is_one(line))
        own = end_of(below[: next(cut, len(below))])
        if own:
            return own
    begin, details = at, texts.details(lines)
    while begin and (begin - 1 in details or _is_of_error(lines[begin - 1])):
        begin -= 1
    for index in range(begin, at):
        line = texts.plain(lines[index])
        if texts.is_raised(line) or texts.is_stated(line):
            last = _last_of_chain(lines, index, at)
            end = _end_of_error(lines, last, texts.detail_end(lines, last))
            found = texts.read(lines[:end])
            if found is not None and not found.kind.is_consequence:
                return lines[:end]
    return end_of(lines[:at]) or _end_before(lines, at)


def _last_of_chain(lines: Sequence[str], index: int, end: int) -> int:
    """Where the last error of a chain stands ("During handling of …") that begins at `index`."""
    last, is_chained = index, False
    for number in range(index + 1, end):
        line = texts.plain(lines[number])
        if line.startswith(texts.CHAINED):
            is_chained = True
        elif texts.is_raised(line):
            if not is_chained:
                break
            last, is_chained = number, False
    return last


def _end_before(lines: Sequence[str], at: int) -> Sequence[str]:
    """The lines up to the last error that stands not far above a launcher's word at `at` that a
    process ended by itself, with an exit code: what other processes print meanwhile is between."""
    begin = max(0, at - NEAR)
    found = texts.find(lines[begin:at])
    if found is None or not any(end.code > 0 for end in launcher_words.read(lines[at:]).ends):
        return ()
    return lines[: begin + _end_of_error(lines[begin:at], found.at, found.end)]


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
    if stated is not None and (told := _GLOG.match(stated.text)):
        number = int(getattr(signal, told[1], 0))
    return -number if number else None


_REPORT = re.compile(
    r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)|exitcode\s+: (?P<code>-?\d+) \(pid|"
    r"time\s+: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)|host\s+: (?P<host>\S+)|"
    r"(?P<first>Root Cause \(first observed failure\))"
)


def reported_ends(logs: Logs) -> dict[int, RankEnd]:
    """Exit codes of ranks by the report that torchrun prints at its end.

    Of several of one host in one log, as after a second start, the last one counts.
    """
    found: dict[int, RankEnd] = {}
    given = [log.lines for log in logs.ranks if log.rank is None]
    for lines in (*given, *logs.starters.values()):
        reports: dict[str, dict[int, RankEnd]] = {}
        for report in _reports(lines):
            reports |= {end.node: report for end in report.values()}
        for report in reports.values():
            found |= report
    return found


def _reports(lines: Sequence[str]) -> list[dict[int, RankEnd]]:
    found: list[dict[int, RankEnd]] = []
    if any("ChildFailedError" in line for line in lines):
        host, at_s, rank, is_first = "", 0.0, None, False
        for line in lines:
            if "ChildFailedError" in line:
                found.append({})
                is_first = False
            match = _REPORT.search(line)
            if match is None or not found:
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
                early_s = 0.5 if is_first else 0.0
                found[-1][rank] = RankEnd(rank, host, code, how, at_s - early_s)
    return found


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
