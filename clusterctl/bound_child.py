"""A Python module as a process that ends with this one, however this one ends."""

from __future__ import annotations

import os
import sys

# Not a preexec_fn: that runs Python's hooks of a fork, in which a Ctrl-C of that moment gets lost.
_DIES_WITH_PARENT = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
_, parent, *sys.argv = sys.argv
if os.getppid() == int(parent):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def command_line(module: str, *words: object) -> list[str]:
    """Of `python -m module words`; start it from the main thread, whose end counts."""
    return [sys.executable, "-c", _DIES_WITH_PARENT, str(os.getpid()), module, *map(str, words)]
