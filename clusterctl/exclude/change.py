"""Adds entries to exclude.toml and removes them; what people wrote between them stays."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from clusterctl.exclude.entries import (
    KEYS,
    ExcludeError,
    Exclusion,
    headers,
    parse,
    read_text,
    stamp,
)
from clusterctl.hostfile import locked
from clusterctl.nodes import fold
from trainer.runlog.atomic_file import write_whole

_KEY_LINE = re.compile(rf"\s*(?:{'|'.join(KEYS)})\s*=")


def add(path: Path, fresh: Sequence[Exclusion], *, mode: int = 0o644) -> list[Exclusion]:
    """Write these entries; returns the older ones of the same nodes, which they replace.

    `mode` is that of a new file. Raises `ExcludeError` for a file that cannot be read, written, or
    changed without losing something in it.
    """
    with locked(path, ExcludeError):
        text = read_text(path)
        before = parse(text, str(path))
        names = {entry.node for entry in fresh}
        kept = _without(text, names, before)
        gap = "\n" if kept.strip() else ""
        blocks = gap + "\n".join(map(render, fresh))
        _write(path, kept.rstrip("\n") + ("\n" if kept.strip() else "") + blocks,
               [*(entry for entry in before if entry.node not in names), *fresh], mode)  # fmt: skip
        return [entry for entry in before if entry.node in names]


def remove(path: Path, names: Sequence[str]) -> list[Exclusion]:
    """Take the entries of these nodes out and return them. Raises `ExcludeError`, also for a node
    that has none.
    """
    with locked(path, ExcludeError):
        text = read_text(path)
        before = parse(text, str(path))
        gone = [entry for entry in before if entry.node in set(names)]
        if strangers := [name for name in names if name not in {entry.node for entry in gone}]:
            raise ExcludeError(
                f"{fold(strangers)} is not in {path}", hint="clusterctl exclude list"
            )
        kept = _without(text, set(names), before)
        _write(path, kept, [entry for entry in before if entry not in gone], 0o644)
        return gone


def render(entry: Exclusion) -> str:
    """The table of an entry, as `parse` reads it."""
    rows = [f"node = {_quoted(entry.node)}", f"reason = {_quoted(entry.reason)}"]
    rows += [f"since = {stamp(entry.since_s)}"] if entry.since_s is not None else []
    rows += [f"until = {stamp(entry.until_s)}"] if entry.until_s is not None else []
    rows += [f"by = {_quoted(entry.by)}"] if entry.by else []
    return "\n".join(["[[exclude]]", *rows, ""])


def author() -> str:
    """Who changes the file: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry in passwd
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's; both need no others for printable text.
    return json.dumps(text, ensure_ascii=False)


def _without(text: str, names: set[str], entries: Sequence[Exclusion]) -> str:
    """The text without the tables of these nodes; lines that are comments only stay."""
    lines = text.splitlines()
    starts = headers(lines)
    ends = [*starts[1:], len(lines)][: len(starts)]
    dropped: set[int] = set()
    for entry, start, end in zip(entries, starts, ends, strict=True):
        if entry.node in names:
            rows = [index for index in range(start + 1, end) if _KEY_LINE.match(lines[index])]
            dropped |= {start, *rows}
            after = max([start, *rows]) + 1
            if after < len(lines) and not lines[after].strip():
                dropped.add(after)  # the blank line between two tables
    kept = [line for index, line in enumerate(lines) if index not in dropped]
    if len(lines) - 1 in dropped:
        while kept and not kept[-1].strip():
            kept.pop()  # what parted it from the table before
    return "".join(f"{line}\n" for line in kept)


def _write(path: Path, text: str, wanted: Sequence[Exclusion], mode: int) -> None:
    """Replace the file at once if its new text means what is wanted; else nothing is changed."""
    try:
        is_right = _meaning(parse(text)) == _meaning(wanted)
    except ExcludeError:
        is_right = False
    if not is_right:
        why = "its tables are not written one key on a line"
        raise ExcludeError(f"{path} was not changed: {why}", hint="change it in an editor")
    try:
        if not text.strip():
            path.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            mode = path.stat().st_mode & 0o777
        write_whole(path, text, mode)
    except OSError as error:
        raise ExcludeError(f"{path} was not changed: {error.strerror or error}") from None


def _meaning(entries: Sequence[Exclusion]) -> list[str]:
    return [render(entry) for entry in entries]
