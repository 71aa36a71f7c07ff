"""A command of clusterctl in a forked process: no Python to start, nothing left to import."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import clusterctl
import dashboards
from clusterctl import cli

LIMIT_S = 20  # for one command on a busy machine; none waits for a pipe


@dataclass(frozen=True)
class Ended:
    """`code` is below 0 where a signal ended it; memory is that of the largest process."""

    code: int
    said: str
    cpu_s: float
    wall_s: float
    memory_mb: float


def import_everything() -> None:
    """What a forked command may need."""
    for package in (clusterctl, dashboards):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__") and ".payload." not in found.name:
                importlib.import_module(found.name)


def ended(
    words: tuple[str, ...],
    work: Path,
    said: Path,
    *,
    run: Callable[[list[str]], int] = cli.run,
    prepare: Callable[[], None] = lambda: None,
    limit_s: int = LIMIT_S,
    watched: contextlib.AbstractContextManager[object] | None = None,
) -> Ended:
    """Runs it in `work`, with what it says in `said`; `prepare` and `watched` are of the process."""
    begun_s = time.monotonic()
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(limit_s)
            os.chdir(work)
            os.environ.update(HOME=str(work / "home"))
            for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "SSH_AUTH_SOCK"):
                os.environ.pop(name, None)
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115
            prepare()
            os.umask(0o077)
            with watched or contextlib.nullcontext():
                code = run(list(words))
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001
            code = 99
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left behind
    text = said.read_bytes().decode(errors="replace") if said.exists() else ""
    return Ended(
        os.waitstatus_to_exitcode(status),
        text,
        used.ru_utime + used.ru_stime,
        time.monotonic() - begun_s,
        used.ru_maxrss / 1024,
    )


def own_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
