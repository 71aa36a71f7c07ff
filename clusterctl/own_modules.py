"""Our own modules as processes beside this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOME = str(Path(__file__).resolve().parents[1])  # what they are imported from
# Not a preexec_fn: that runs Python's hooks of a fork, in which a Ctrl-C of that moment gets lost.
_DIES_WITH_PARENT = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
_, parent, *sys.argv = sys.argv
if os.getppid() == int(parent):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def bound_command(module: str, *words: object) -> list[str]:
    """Of `python -m module words` that ends with this process, however this one ends; start it from
    the main thread, whose end counts."""
    return [sys.executable, "-c", _DIES_WITH_PARENT, str(os.getpid()), module, *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    """The same modules as this process's, wherever another one is started."""
    paths = [HOME, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), **more}
