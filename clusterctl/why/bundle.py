"""A .tar.gz of what a verdict rests on, for somebody else: listed first, secrets masked, 0600.

Logs come as their ends. No link is followed, and what a file of the run holds of secrets is masked
line by line by the same masker as everything that this program shows.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.nodes import counted
from clusterctl.payload.files.private import replace_file
from clusterctl.payload.mask_secrets import HIDDEN, hide, hide_keys, hide_words, is_secret
from clusterctl.runs.hidden_values import FILE, masker
from trainer.runlog.json_file import parse
from trainer.runlog.run_files import folder_below, opened_below

SMALL = ("plan.json", "config.json", "supervisor.log")
LINES = ("events.jsonl", "incidents.jsonl")
STEPS = "telemetry.jsonl"
WHOLE = 4 << 20  # bytes of one file, more is cut to its end
STEP_BYTES = 256 << 10
LOG_BYTES = 256 << 10  # of the end of each log
ALL_BYTES = 256 << 20
MOST_STACKS = 200
_STACKS = re.compile(r"stacks/[\w-][\w.-]{0,99}")
COMMITS = ("commit", "git_commit", "head")  # names of values that have the form of a W&B key


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the bundle. `masked` is the number of lines in which something was masked."""

    name: str
    data: bytes
    masked: int
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
        values = masker(folder)
    except (OSError, ValueError) as error:
        why = f"values of --env cannot be masked: {error}"
        raise CouldNotFindOut(why, hint=f"delete {FILE} there to bundle it all the same") from None
    text, _ = _masked("why.json", json.dumps(answer, default=str), values)
    entries, left_out = [Entry("why.json", text.encode(), 0, 0, now_s)], []
    size = len(text)
    if stacks and not is_folder_of_stacks(stacks):
        left_out.append((stacks[:200], "no folder of stacks in the run directory"))
    for name, most in _names(folder, stacks):
        try:
            with opened_below(folder, name, owners) as (fd, status):
                begin = max(0, status.st_size - most)
                data = os.pread(fd, status.st_size - begin, begin)
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out.append((name, error.strerror or str(error)))
            continue
        if begin:
            data = data.partition(b"\n")[2]
        if size + len(data) > ALL_BYTES:
            left_out.append((name, f"the bundle would have more than {ALL_BYTES >> 20} MiB"))
            continue
        text, masked = _masked(name, data.decode("utf-8", "backslashreplace"), values)
        size += len(text)
        cut = status.st_size - len(data)
        entries.append(Entry(name, text.encode(), masked, cut, status.st_mtime))
    return Bundle(tuple(entries), tuple(left_out))


def _names(folder: Path, stacks: str) -> Iterator[tuple[str, int]]:
    """Names below the folder and how much of each, in order. `stacks` is what an incident says."""
    for name in (*SMALL, *LINES):
        yield name, WHOLE
    yield STEPS, STEP_BYTES
    ranks = [name for name in _inside(folder, "ranks") if name.endswith(".log")]
    yield from ((f"ranks/{name}", LOG_BYTES) for name in _in_order(ranks))
    if not ranks and not os.path.lexists(folder / "plan.json"):
        from clusterctl.why.rank_logs import below

        yield from ((str(path.relative_to(folder)), LOG_BYTES) for path in below(folder))
    if is_folder_of_stacks(stacks):
        inner = sorted(_inside(folder, stacks))[:MOST_STACKS]
        yield from ((f"{stacks}/{name}", WHOLE) for name in inner)


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


def _masked(name: str, text: str, values: Callable[[str], str]) -> tuple[str, int]:
    """The text without secrets, and in how many lines there were any. `values` masks those that the
    run was given by --env."""
    if name.endswith(".json"):
        try:
            found = parse(text)
        except ValueError:
            pass
        else:
            shown = json.dumps(_without_secrets(found, "", values), indent=1).splitlines()
            before = json.dumps(found, indent=1).splitlines()
            changed = sum(old != new for old, new in zip(before, shown, strict=True))
            return "\n".join(shown) + "\n", changed
    lines = text.split("\n")
    if name.endswith(".jsonl"):
        hidden = [_mask_record(line, values) for line in lines]
    else:  # a private key has many lines
        hidden = [hide(values(line)) for line in hide_keys(text).split("\n")]
    return "\n".join(hidden), sum(old != new for old, new in zip(lines, hidden, strict=True))


def _mask_record(line: str, values: Callable[[str], str]) -> str:
    """A line of JSON that stays JSON: `"tokens": 512` is a number and no secret."""
    try:
        found = parse(line)
    except ValueError:
        return hide(values(line))
    masked = _without_secrets(found, "", values)
    return line if masked == found else json.dumps(masked)


def _without_secrets(value: Any, name: str, values: Callable[[str], str]) -> Any:
    """What is in `"credentials": {…}` is secret, whatever its names are."""
    if isinstance(value, str):
        if name in COMMITS:
            return values(value)
        return HIDDEN if is_secret(name) and value else hide(values(value))
    if isinstance(value, dict):
        inner = name if is_secret(name) else ""
        return {key: _without_secrets(one, inner or str(key), values) for key, one in value.items()}
    if (
        isinstance(value, list)
        and not is_secret(name)
        and all(isinstance(one, str) for one in value)
    ):
        return hide_words([values(one) for one in value])  # a command line, perhaps
    return (
        [_without_secrets(one, name, values) for one in value] if isinstance(value, list) else value
    )


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
        replace_file(str(path), target.getvalue())
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise CouldNotFindOut(why, hint="--bundle names another place") from None
    return len(target.getvalue())


def lines(bundle: Bundle) -> Iterator[str]:
    """The list that is shown before anything is written."""
    width = max(len(one.name) for one in bundle.entries)
    for one in bundle.entries:
        notes = [f"{counted(one.masked, 'line')} masked"] if one.masked else []
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
                "cut_bytes": one.cut_bytes,
            }
            for one in bundle.entries
        ],
        "left_out": dict(bundle.left_out),
    }
