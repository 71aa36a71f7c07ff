"""A run between two attempts, as a node knows it: a file that each look of its supervisor renews.

No process of the run need be there then: by this file others find it, end it, or show it.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import pwd
import time
from collections.abc import Iterable

from clusterctl.payload.files.ownership import open_own
from clusterctl.payload.files.private import (
    folders_of,
    name_of_run,
    own_files,
    own_path,
    replace_file,
)
from clusterctl.payload.jobs.find_job import login_user
from clusterctl.payload.proc_files import or_none, user_name

MYPY = False
if MYPY:
    from typing import Any  # loading it takes a node 7 ms

FRESH_S = 180.0  # a supervisor looks every minute at least (launch/restart/next_attempt.py)
MAX_BYTES = 16384
MOST_WAITING, MOST_FOUND = 50, 1000  # of a user, of all
# Facts of the file: texts with their most characters, numbers. `text`: what the run waits for.
TEXTS = {"run": 256, "node": 256, "job": 256, "run_dir": 4096, "head": 256, "text": 1000}
NUMBERS = ("attempt", "since_s")


def renew(facts: dict[str, Any]) -> None:
    """Raises OSError."""
    replace_file(
        own_path(name_of_run("waiting", "json", facts["run"], facts["node"])),
        json.dumps(facts).encode(),
    )


def drop(run: str) -> None:
    """The run goes on here, or is over."""
    for path in own_files("waiting-%s-*.json" % glob.escape(run[-24:])):
        if (_read(path, os.getuid()) or {}).get("run") == run:
            or_none(os.unlink, path)


def waiting_for(pick: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a pick (jobs/find_job.py) that wait."""
    if pick.get("match") is not None or pick.get("gpus"):
        return []
    user, runs, node = pick.get("user"), pick.get("runs"), pick.get("node")
    found = waiting_runs(_everybody() if user is None else _ids_of(user or login_user()))
    return [
        one for one in found if (not runs or one["run"] in runs) and node in (None, one["node"])
    ]


def _ids_of(name: str) -> list[int]:
    try:
        return [pwd.getpwnam(name).pw_uid]
    except KeyError:  # it has no name on this machine
        return [int(name)] if name.isascii() and name.isdigit() else []


def _everybody() -> list[int]:
    """The users whose own folders can be read here: root can read all."""
    return [os.getuid()] if os.getuid() else [one.pw_uid for one in pwd.getpwall()]


def waiting_runs(uids: Iterable[int]) -> list[dict[str, Any]]:
    """The runs of these users that wait now, each with its `user`."""
    found = []
    for uid in sorted(set(uids)):
        for folder in folders_of(uid):
            paths = glob.iglob("%s/waiting-*.json" % glob.escape(folder))
            # A user may fill the folder: what others see of it stays short.
            for path in sorted(itertools.islice(paths, MOST_WAITING)):
                status = or_none(os.lstat, path)
                is_fresh = status is not None and time.time() - status.st_mtime < FRESH_S
                facts = _read(path, uid) if is_fresh else None
                if facts is not None:
                    found.append(dict(facts, user=user_name(uid)))
    return found[:MOST_FOUND]


def _read(path: str, uid: int) -> dict[str, Any] | None:
    try:
        with os.fdopen(open_own(path, os.O_RDONLY, uid), "rb") as file:
            facts = json.loads(file.read(MAX_BYTES))
        # Another user wrote it: what no supervisor writes must not spoil this node's answer.
        found: dict[str, Any] = {name: str(facts[name])[: TEXTS[name]] for name in TEXTS}
        found.update({name: float(facts[name]) for name in NUMBERS})
        found["attempt"] = int(found["attempt"])
        is_real = 0 <= found["attempt"] < 1 << 20 and 0 <= found["since_s"] < 1e10
        return found if is_real else None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
