"""Which run a command is about: a directory, a number or name below outputs/, or the newest one."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from pathlib import Path

from clusterctl.closed_places import why_closed
from clusterctl.errors import CouldNotFindOut, UsageError
from trainer.runlog.telemetry import FILE

OUTPUTS = Path("outputs")
LONGEST_NUMBER = 18  # digits; Python refuses to read thousands of them
EVENTS_FILE, INCIDENTS_FILE, PLAN_FILE = "events.jsonl", "incidents.jsonl", "plan.json"


def runs_by_time(outputs: Path) -> list[Path]:
    """Run directories of a folder, the one written to last first.

    The journal counts as well: a run that has just been started has no telemetry yet.
    """
    newest: dict[Path, float] = {}
    for path in (*outputs.glob(f"*/{FILE}"), *outputs.glob(f"*/{EVENTS_FILE}")):
        with contextlib.suppress(OSError):  # removed just now
            newest[path.parent] = max(path.stat().st_mtime, newest.get(path.parent, 0.0))
    return sorted(newest, key=lambda path: -newest[path])


def find_run(name: str | None, outputs: Path = OUTPUTS) -> Path:
    """Raises `UsageError` where there is no such run, or more than one of that number, and
    `CouldNotFindOut` where a folder is closed to this user."""
    try:
        return _find(name, outputs)
    except OSError as error:
        if name is not None and error.errno == errno.ENAMETOOLONG:
            raise _no_run(name, outputs) from None
        raise CouldNotFindOut(
            why_closed(error), hint="ask its owner, or name another run"
        ) from None


def _find(name: str | None, outputs: Path) -> Path:
    given = Path(outputs if name is None else name)
    if given.is_dir():
        return given if is_run(given) else _newest(given)
    if name is None:
        return _newest(outputs)
    named = outputs / name
    if Path(name).name == name and named.is_dir():
        return named
    if name.isascii() and name.isdigit() and len(name) <= LONGEST_NUMBER:
        found = sorted(outputs.glob(f"{int(name):03d}-*"))
        if len(found) > 1:
            names = " and ".join(path.name for path in found)
            raise UsageError(f"two runs have the number {name}: {names}", hint="give the name")
        if found:
            return found[0]
    raise _no_run(name, outputs)


def _no_run(name: str, outputs: Path) -> UsageError:
    known = [path.name for path in runs_by_time(outputs)]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"there is no run in {outputs}/"
    if known:
        hint = f"the newest is {known[0]}; clusterctl runs lists all"
    if near:
        hint = f"did you mean {near[0]}?"
    return UsageError(f"there is no run {name}, here or in {outputs}/", hint=hint)


def is_run(folder: Path) -> bool:
    """Whether a folder has a file that only runs have."""
    return any((folder / name).exists() for name in (FILE, EVENTS_FILE, PLAN_FILE))


def _newest(outputs: Path) -> Path:
    found = runs_by_time(outputs)
    if not found:
        if outputs.is_dir():
            os.listdir(outputs)  # noqa: PTH208 - a pattern finds nothing where it may not look
        hint = "give a run directory, or start below a folder that has outputs/"
        raise UsageError(f"there is no run in {outputs}", hint=hint)
    return found[0]
