"""Which code a rank runs: this package's sources as they were when it was imported.

A starter imports them once, and ranks are forked from it for days; meanwhile people edit files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer.runlog.atomic_file import write_whole

FILE = "code.json"  # of a run directory
Sources = dict[str, str]  # file -> hash of its content
PACKAGE = Path(__file__).resolve().parent.parent
_SHOWN = 3


def read() -> Sources:
    """As the files are now: opened, since a network file system may give old times for a minute."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except OSError as error:
            digest = str(error.strerror)
        found[str(path.relative_to(PACKAGE.parent))] = digest
    return found


@functools.cache
def imported() -> Sources:
    """As they were at the first call: to be made before anything else is imported."""
    return read()


def installed() -> Sources:
    """Of all else that is imported: packages by their first file, the user's own code by each."""
    packages = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    standard = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or file.startswith(f"{PACKAGE}{os.sep}"):
            continue
        if file.startswith(packages):
            if "." in name:
                continue
        elif file.startswith(standard):
            continue
        found[file] = file_facts(file)
    return found


def file_facts(file: str) -> str:
    try:
        facts = Path(file).stat()
    except OSError as error:
        return str(error.strerror)
    return f"{facts.st_mtime_ns} {facts.st_size} {facts.st_ino}"


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of keys as `model.depth: 28`."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of what is different, new or gone."""
    return sorted(k for k in {*before, *after} if before.get(k) != after.get(k))


def shown(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def record(run_dir: Path, *, is_later: bool) -> str:
    """Write the sources to a run directory; what a later attempt runs otherwise than the one
    before, or ""."""
    file, now, note = run_dir / FILE, imported(), ""
    if is_later:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            names = changed(json.loads(file.read_text())["files"], now)
            note = f"{shown(names)}: not the code of the attempt before" if names else ""
    write_whole(file, json.dumps({"schema": 1, "files": now}, indent=1) + "\n")
    return note
