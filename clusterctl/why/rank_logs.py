"""The end of every rank's log of an attempt: a bounded part, read from the end, no link followed.

Where the end of a log states no error of the rank's own, more of it is searched for one: what
floods a log after an error must not hide it. 192 logs of any size take a few seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.launch.causes import prefixes, texts
from clusterctl.nodes import grouped
from clusterctl.runs.logs.files import Chosen, LogFolder
from clusterctl.runs.logs.parts import Part, attempt_part
from clusterctl.why import launcher_words
from trainer.runlog.run_files import opened

NEAR = 1 << 16  # bytes at the end of a log that are read
NEAR_LINES = 1000  # and of them at most
FAR = 8 << 20  # bytes before the end that are searched where these state nothing
BEHIND = 1 << 14  # bytes read from where such an error stands
FAR_ALL = 2 << 30  # bytes searched in all logs together
LONGEST = 2000  # characters of a line
MERGED = 4 << 20  # bytes that are read of files of several ranks, of all together
MOST_FILES = 8192  # of a folder that no launcher has made
DEEPEST = 4  # folders below it: torchrun writes RUN/attempt_0/RANK/stderr.log
# The begin of an error that a program does not go on after, as a rule.
_MARKS = (b"Traceback (most recent call last)", b"\nerror: ", b"CUDA error")
# A long number alone is that of a job or a process.
_NAMED = re.compile(r"(?:(?:rank|worker|gpu)[_.-]?(\d{1,6})|[_.-]?(\d{1,4}))", re.IGNORECASE)
SOON = 10  # lines below
_RESTARTS = re.compile(r"will restart worker group|CANCELLED AT \S{1,40} DUE TO JOB REQUEUE")
_LOGS = (".log", ".txt", ".out", ".err")


@dataclass(frozen=True, slots=True)
class RankLog:
    """Lines of one rank. `rank` is None where neither the name nor a line tells it."""

    rank: int | None
    node: str
    name: str  # of the file, below the folder of the run
    lines: tuple[str, ...]
    size: int
    written_s: float  # unix time


@dataclass(frozen=True, slots=True)
class Logs:
    """All logs of an attempt. `unread` says why some could not be read, by name."""

    ranks: tuple[RankLog, ...] = ()
    starters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of a node
    unread: Mapping[str, str] = field(default_factory=dict)


def of_run(run_dir: Path, attempt: int, newest: int, nodes: Mapping[int, str]) -> Logs:
    """Logs of `ranks/`; `nodes` has the node of each rank, `newest` is the last attempt."""
    try:
        folder = LogFolder(run_dir)
    except FileNotFoundError:
        return Logs()
    except OSError as error:
        return Logs(unread={"ranks": str(error)})
    ranks: list[RankLog] = []
    starters: dict[str, tuple[str, ...]] = {}
    unread: dict[str, str] = {}
    budget = FAR_ALL
    try:
        for file in folder.files(Chosen(starters=None)):
            try:
                with folder.opened(file) as (fd, status):
                    if file.rank is None:
                        begin = max(0, status.st_size - NEAR)
                        end = _read(fd, Part(begin, status.st_size))
                        starters[file.node] = _lines(end, is_cut=begin > 0)
                        continue
                    part = attempt_part(fd, status.st_size, attempt, newest)
                    if part is None:
                        continue
                    lines, searched = read_end(fd, part, budget)
            except FileNotFoundError:
                continue
            except OSError as error:
                unread[file.name] = str(error)
                continue
            budget -= searched
            node, size = nodes.get(file.rank, ""), part.end - part.begin
            name = f"ranks/{file.name}"
            ranks.append(RankLog(file.rank, node, name, lines, size, status.st_mtime))
    finally:
        folder.close()
    return Logs(tuple(ranks), starters, unread)


def of_folder(folder: Path) -> Logs:
    """Logs that somebody gives, of whatever program.

    The rank is in the name (3.log, rank3.out, 3/stderr.log), else in what a launcher writes at the
    begin of lines (`[rank3]: `, `[1,3]<stderr>:`, `node-1: `), of which one file may have many.
    """
    ranks: list[RankLog] = []
    unread: dict[str, str] = {}
    owners, budget, merged = {folder.stat().st_uid, os.getuid(), 0}, FAR_ALL, MERGED
    for path in below(folder, unread):
        name = str(path.relative_to(folder))
        try:
            with opened(path, owners) as (fd, status):
                lines, searched = read_end(fd, Part(0, status.st_size), budget)
                marked = prefixes.of_file(lines)
                is_cut = status.st_size > NEAR or len(lines) >= NEAR_LINES
                number, named = _rank_of(path.relative_to(folder)), len(_ranks_in(marked))
                if is_cut and not searched and named > (0 if number is None else 1):
                    # An error at its end may be of another rank than the first one.
                    taken = min(status.st_size, max(NEAR, merged))
                    merged -= taken
                    begin = status.st_size - taken
                    marked = prefixes.of_file(
                        _lines(_read(fd, Part(begin, status.st_size)), is_cut=begin > 0)
                    )
                    if begin:
                        unread[name] = f"its first {begin:,} bytes (lines of several ranks)"
        except OSError as error:
            unread[name] = str(error)
            continue
        budget -= searched
        marked = list(_since_restart(marked))
        parts = _by_mark(marked)
        told = _ranks_in(marked)
        # A bare number may be that of a process or a job, where the lines name other ranks.
        if number is not None and (not told or number in told):
            parts = {(number, ""): [one.text for one in marked]}
        for (rank, node), own in parts.items():
            ranks.append(RankLog(rank, node, name, tuple(own), status.st_size, status.st_mtime))
    return Logs(_merged(ranks), {}, unread)


def read_end(fd: int, part: Part, budget: int) -> tuple[tuple[str, ...], int]:
    """Lines of the end, and how many bytes before it were searched for an error of its own.

    What was found there comes first, then a line that says how much is left out.
    """
    near = Part(max(part.begin, part.end - NEAR), part.end)
    data, is_cut = _read(fd, near), near.begin > part.begin
    first, *kept = data.rsplit(b"\n", NEAR_LINES + 1)
    if len(kept) > NEAR_LINES and first:  # what stands before is searched like the rest
        data, is_cut = b"\n".join(kept), False
        near = Part(near.end - len(data), near.end)
    lines = _lines(data, is_cut=is_cut)
    stated = texts.read(lines)
    if near.begin == part.begin or (stated is not None and not stated.kind.is_consequence):
        return lines, 0
    far = Part(max(part.begin, near.begin - min(FAR, max(0, budget))), near.begin)
    data = _read(fd, far)
    at = max(data.rfind(mark) for mark in _MARKS)
    if at < 0:
        return lines, len(data)
    at = data.rfind(b"\n", 0, at + 1) + 1  # with what a launcher wrote before it
    found = _lines(data[at : at + BEHIND].lstrip(b"\n"))
    left = len(data) - at - BEHIND
    note = (f"[{left:,} bytes are left out here]",) if left > 0 else ()
    return (*found, *note, *lines), len(data)


def _read(fd: int, part: Part) -> bytes:
    return os.pread(fd, part.end - part.begin, part.begin)


def _lines(data: bytes, *, is_cut: bool = False) -> tuple[str, ...]:
    lines = data.decode("utf-8", "backslashreplace").splitlines()
    return tuple(line[:LONGEST] for line in (lines[1:] if is_cut else lines))


def below(folder: Path, left_out: dict[str, str]) -> Iterator[Path]:
    """Files with the name of a log, no links, in order of their names.

    Of the attempts of torchrun (`attempt_0/`) only the last. `left_out` gets the places that were
    not looked at, and why.
    """

    def refused(error: OSError) -> None:
        left_out[os.path.relpath(error.filename or folder, folder)] = str(error.strerror)

    count = 0
    for place, folders, files in os.walk(folder, onerror=refused):
        depth = len(Path(place).relative_to(folder).parts)
        tries = [int(one[8:]) for one in folders if re.fullmatch(r"attempt_\d{1,6}", one)]
        if tries:
            folders[:] = [f"attempt_{max(tries)}"]
        if folders and depth >= DEEPEST:
            left_out[os.path.relpath(place, folder)] = f"folders more than {DEEPEST} levels down"
            folders.clear()
        folders.sort()
        for name in sorted(files):
            if name.endswith(_LOGS):
                count += 1
                if count <= MOST_FILES:
                    yield Path(place) / name
    if count > MOST_FILES:
        left_out["more logs"] = f"{MOST_FILES:,} of {count:,} are read"


def _rank_of(path: Path) -> int | None:
    stem = path.stem
    if stem in ("stderr", "stdout") and path.parent.name:
        stem = path.parent.name
    found = _NAMED.fullmatch(stem)
    return int(found[1] or found[2]) if found else None


def _since_restart(lines: Sequence[prefixes.Line]) -> Sequence[prefixes.Line]:
    """The lines of the last attempt of torchrun or Slurm: earlier ones have been survived."""
    told = [index for index, one in enumerate(lines) if _RESTARTS.search(one.text)]
    end = len(lines)
    for at in reversed(told):
        below = [one.text for one in lines[at + 1 : end] if one.text.strip()]
        if not below:
            end = at
        # A launcher's words right below are still of the end of that attempt.
        elif not any(map(launcher_words.is_one, below[:SOON])):
            return lines[at + 1 : end]
    return lines[:end]


def _ranks_in(lines: Sequence[prefixes.Line]) -> set[int]:
    return {line.rank for line in lines if line.rank is not None}


def _by_mark(lines: Sequence[prefixes.Line]) -> dict[tuple[int | None, str], list[str]]:
    """The lines of each rank and host by their marks; of no rank where a line has none."""
    found: dict[tuple[int | None, str], list[str]] = {}
    for line in lines:
        found.setdefault((line.rank, line.source), []).append(line.text)
    return found


def _merged(logs: Sequence[RankLog]) -> tuple[RankLog, ...]:
    """stdout and stderr of a rank as one log.

    Where other files have the same number, as those of two nodes, it is not the rank.
    """
    groups = grouped((one.rank, one) for one in logs)
    found = [*groups.pop(None, [])]
    for rank, group in groups.items():
        places = {Path(one.name).parent for one in group}
        names = {Path(one.name).stem for one in group}
        if len(group) == 1:
            found += group
        elif len(places) == 1 and names == {"stdout", "stderr"}:
            first, last = sorted(group, key=lambda one: Path(one.name).stem == "stderr")
            at_s = max(one.written_s for one in group)
            size = first.size + last.size
            found.append(RankLog(rank, "", last.name, first.lines + last.lines, size, at_s))
        else:
            found += [replace(one, rank=None) for one in group]
    return tuple(sorted(found, key=lambda one: (one.rank is None, one.rank or 0)))
