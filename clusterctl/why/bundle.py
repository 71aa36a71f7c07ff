"""A .tar.gz of what a verdict rests on, for somebody else: listed first, secrets masked, 0600.

Logs come as their ends. No link is followed, and what a file of the run holds of secrets is masked
(masked.py).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.runs import hidden_values
from clusterctl.why.masked import Masker
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_files import folder_below, opened_below

SMALL = ("plan.json", "config.json", "supervisor.log")
LINES = ("events.jsonl", "incidents.jsonl")
STEPS = "telemetry.jsonl"
WHOLE = 4 << 20  # bytes of one file, more is cut to its end
STEP_BYTES = 256 << 10
LOG_BYTES = 256 << 10  # of the end of each log
LOGS_BYTES = 16 << 20  # of all logs: of 1,000 ranks each has 16 KiB
LATE_BYTES = 32 << 10  # of the end of each file where masking takes too long
ALL_BYTES = 32 << 20
MOST_STACKS = 200
_STACKS = re.compile(r"stacks/[\w-][\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the bundle. `masked` is the number of lines in which something was masked, `whole`
    of those that were masked whole because to look at them took too long."""

    name: str
    data: bytes
    masked: int
    whole: int
    cut_bytes: int  # of its begin, that are left out
    written_s: float


@dataclass(frozen=True, slots=True)
class Bundle:
    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...]  # (name, why)

    @property
    def size(self) -> int:
        return sum(len(one.data) for one in self.entries)


def collect(folder: Path, answer: dict[str, Any], stacks: str, now_s: float) -> Bundle:
    """What a bundle of a run directory, or of a folder of logs, would hold; `answer` is --json."""
    owners = {folder.stat().st_uid, os.getuid(), 0}
    try:
        values = hidden_values.masker(folder)
    except (OSError, ValueError) as error:
        why = f"values of --env cannot be masked: {error}"
        raise CouldNotFindOut(
            why, hint=f"delete {hidden_values.FILE} there to bundle it all the same"
        ) from None
    masker = Masker(values)
    text = masker.mask("why.json", json.dumps(answer, default=str)).text
    entries, left_out = [Entry("why.json", text.encode(), 0, 0, 0, now_s)], []
    size = len(text)
    if stacks and not is_folder_of_stacks(stacks):
        left_out.append((stacks[:200], "no folder of stacks in the run directory"))
    for name, most in _names(folder, stacks):
        try:
            with opened_below(folder, name, owners) as (fd, status):
                # Where lines take long to look at there is room for the ends of the others.
                taken = min(most, LATE_BYTES) if masker.is_late else most
                begin = max(0, status.st_size - taken)
                data = os.pread(fd, status.st_size - begin, begin)
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out.append((name, error.strerror or str(error)))
            continue
        if begin:
            data = data.partition(b"\n")[2]
        if size + len(data) > ALL_BYTES:
            left_out.append((name, f"the bundle would have more than {units.size(ALL_BYTES)}"))
            continue
        found = masker.mask(name, data.decode("utf-8", "backslashreplace"))
        encoded, cut = found.text.encode("utf-8", "backslashreplace"), status.st_size - len(data)
        size += len(encoded)
        entries.append(Entry(name, encoded, found.changed, found.whole, cut, status.st_mtime))
    return Bundle(tuple(entries), tuple(left_out))


def _names(folder: Path, stacks: str) -> Iterator[tuple[str, int]]:
    """Names below the folder and how much of each, in order. `stacks` is what an incident says."""
    for name in (*SMALL, *LINES):
        yield name, WHOLE
    yield STEPS, STEP_BYTES
    ranks = [name for name in _inside(folder, "ranks") if name.endswith(".log")]
    yield from ((f"ranks/{name}", _share(ranks)) for name in _in_order(ranks))
    if not ranks and not os.path.lexists(folder / "plan.json"):
        from clusterctl.why.rank_logs import below

        logs = [str(path.relative_to(folder)) for path in below(folder, {})]
        yield from ((name, _share(logs)) for name in logs)
    if is_folder_of_stacks(stacks):
        inner = sorted(_inside(folder, stacks))[:MOST_STACKS]
        yield from ((f"{stacks}/{name}", WHOLE) for name in inner)


def _share(logs: Sequence[str]) -> int:
    """How much of the end of each: of many there is less, and none is left out."""
    return min(LOG_BYTES, LOGS_BYTES // max(1, len(logs)))


def is_folder_of_stacks(name: str) -> bool:
    """Whether it is one that a launcher makes; an incident of a given run may say anything."""
    return _STACKS.fullmatch(name) is not None


def _inside(folder: Path, name: str) -> list[str]:
    """What is in a folder of the run; nothing where it is missing, closed or a link."""
    try:
        with folder_below(folder, name) as place:
            return os.listdir(place)  # noqa: PTH208 - of a descriptor, pathlib has none
    except OSError:
        return []


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (not name[:1].isdigit(), len(name), name))


def check_place(path: Path, *, force: bool) -> None:
    """Raises `UsageError` where the file exists already, or its folder does not."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for {path.name}")
    if not force and os.path.lexists(path):
        raise UsageError(f"{path} exists already", hint="--force replaces it")


def write(path: Path, bundle: Bundle, top: str) -> int:
    """Write it (0600), whole or not at all; returns its size. Raises `CouldNotFindOut`."""
    target = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in bundle.entries:
            info = tarfile.TarInfo(f"{top}/{entry.name}")
            info.size, info.mode, info.mtime = len(entry.data), 0o600, int(entry.written_s)
            archive.addfile(info, io.BytesIO(entry.data))
    try:
        write_whole(path, target.getvalue(), 0o600)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise CouldNotFindOut(why, hint="--bundle names another place") from None
    return len(target.getvalue())


def lines(bundle: Bundle) -> Iterator[str]:
    """The list that is shown before anything is written."""
    width = max(len(one.name) for one in bundle.entries)
    for one in bundle.entries:
        notes = [f"{counted(one.masked, 'line')} masked"] if one.masked else []
        if one.whole:
            notes.append(f"{counted(one.whole, 'line')} of these whole: they take long to look at")
        notes += [f"without its first {one.cut_bytes:,} bytes"] if one.cut_bytes else []
        yield f"  {one.name:<{width}}  {len(one.data):>11,} bytes  {', '.join(notes)}".rstrip()
    for name, why in bundle.left_out:
        yield f"  {name}  left out: {why}"


def to_json(bundle: Bundle) -> dict[str, Any]:
    return {
        "files": [
            {
                "name": one.name,
                "bytes": len(one.data),
                "masked_lines": one.masked,
                "lines_masked_whole": one.whole,
                "cut_bytes": one.cut_bytes,
            }
            for one in bundle.entries
        ],
        "left_out": dict(bundle.left_out),
    }
