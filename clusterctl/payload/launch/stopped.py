"""The mark of a run that its owner has ended: nothing starts it again.

`clusterctl stop` and `clusterctl kill` leave it in the own folder of the run's user on every node
that they ask, and in the run directory. An agent looks for it before it starts ranks and when
`TOLD` says that it has come; a supervisor between two attempts learns of it from the nodes.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from clusterctl.payload.collect.forked_child import collect_child, fork_child
from clusterctl.payload.files.ownership import open_own
from clusterctl.payload.files.private import (
    folders_of,
    name_of_run,
    own_files,
    own_path,
    replace_file,
)
from clusterctl.payload.jobs.processes import tags
from clusterctl.payload.launch.session import living
from clusterctl.payload.proc_files import or_none, owner_of

MYPY = False
if MYPY:
    from typing import Any  # loading it takes a node 7 ms

TOLD = signal.SIGUSR1
IN_RUN_DIR = ".stopped"
WRITE_S = 5.0  # for all marks; a run directory may not answer
MOST_MARKS = 64  # of a user, two for each run
MAX_BYTES = 4096
KEPT_S = 30 * 86400.0  # a mark that no supervisor has removed at the run's end
WORDS = ("stop", "kill")  # of clusterctl


def found(run: str, run_dir: str) -> dict[str, str] | None:
    """Who has ended this run, {"by": one of WORDS, "who": user and machine}; None where nobody
    has. Only what this user has written counts."""
    for path in _places(run, run_dir):
        mark = _read(path)
        if mark is not None and mark["run"] == run:
            return {"by": mark["by"], "who": mark["who"]}
    return None


def sentence(mark: Mapping[str, str]) -> str:
    """`ended by clusterctl kill (ann@head)`."""
    how = "ended" if mark["by"] == "kill" else "stopped"
    return "%s by clusterctl %s (%s)" % (how, mark["by"], mark["who"])


def end_runs(
    runs: Iterable[tuple[str, str | None]], by: str, who: str, users: dict[str, set[int]]
) -> str:
    """Mark these (run, run directory) as ended and tell their agents here; "", else why a mark
    could not be written. `users` has the ids of the users who have the run here; without one it is
    a run of this user's."""
    why, count, writers, told = "", Counter[int](), [], []
    for run, run_dir in runs:
        mark = {"run": run, "by": by, "who": who[:200], "time_s": time.time()}
        for uid in sorted(users.get(run) or {os.getuid()}):
            told.append((run, uid))
            for place in (None, run_dir) if run_dir else (None,):
                count[uid] += 1
                if count[uid] > MOST_MARKS:  # the tags of processes, of which a user may make many
                    why = "user %d has more than %d runs here" % (uid, MOST_MARKS // 2)
                else:
                    where = place or "the own folder of user %d" % uid
                    writers.append((where, fork_child(_writer(uid, mark, place))))
    # All at once: nobody's folder holds up the marks of others, nor the signals that follow.
    until_s = time.monotonic() + WRITE_S
    for where, child in writers:
        done = collect_child("", child, max(0.0, until_s - time.monotonic()))
        if done["state"] != "ended" or done["rc"] != 0:
            why = "no mark in %s: %s" % (where, done["err"])
    for run, uid in told:
        tell_agents(run, uid)
    return why


def _writer(uid: int, mark: dict[str, Any], run_dir: str | None) -> Callable[[], str]:
    """For a process of its own: the run's user writes it, also for root, and a run directory may
    not answer. Another machine's run directory is none of this one."""

    def write() -> str:
        if uid != os.getuid():
            _become(uid)
        if run_dir is None:
            _sweep()
            path = own_path(name_of_run("stopped", "json", mark["run"]))
        elif not os.path.isdir(run_dir):
            return ""
        else:
            path = os.path.join(run_dir, IN_RUN_DIR)
        replace_file(path, json.dumps(mark).encode())
        return ""

    return write


def _become(uid: int) -> None:
    import pwd

    os.setgroups([])
    os.setgid(pwd.getpwuid(uid).pw_gid)
    os.setuid(uid)


def tell_agents(run: str, uid: int) -> None:
    """Of a user, who may be another one than root."""
    for folder in folders_of(uid):
        for path in glob.glob("%s/agent-%s-*.sock" % (folder, glob.escape(run[-24:]))):
            agent = living(path, uid)
            if agent is not None and owner_of(agent) == uid:
                or_none(os.kill, agent, TOLD)


def runs_of(pids: Iterable[int]) -> dict[str, set[int]]:
    """The runs that processes belong to, and the ids of the users who have them."""
    users: dict[str, set[int]] = {}
    for pid in pids:
        run, uid = tags(pid)[0], owner_of(pid)
        if run is not None and uid is not None:
            users.setdefault(run, set()).add(uid)
    return users


def forget(run: str, run_dir: str) -> str:
    """The run is over: no supervisor can start it again."""
    for path in _places(run, run_dir):
        if _read(path) is not None:
            or_none(os.unlink, path)
    return ""


def _sweep() -> None:
    for path in own_files("stopped-*.json"):
        if (or_none(os.path.getmtime, path) or 0.0) < time.time() - KEPT_S:
            or_none(os.unlink, path)


def _places(run: str, run_dir: str) -> tuple[str, ...]:
    return (
        *own_files(glob.escape(name_of_run("stopped", "json", run))),
        os.path.join(run_dir, IN_RUN_DIR),
    )


def _read(path: str) -> dict[str, Any] | None:
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            mark = json.loads(file.read(MAX_BYTES))
        facts = {name: str(mark[name]) for name in ("run", "by", "who")}
        return facts if facts["by"] in WORDS else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
