"""How every process that runs Python of ours is started: nothing comes from the current folder.

`python -m` and `python -c` search the current folder first, where a `click.py` of another user, or
of an archive that was unpacked, would be run. All four packages start their processes by this file;
tests/lint.py finds any other start. It imports little: the live view reads it, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOME = str(Path(__file__).resolve().parents[2])  # what they are imported from
# Python 3.10 has no -P. Its own children (multiprocessing's) get their flags from this function.
_AS_P = """\
import sys
sys.path = [path for path in sys.path if path]
import subprocess
_flags = subprocess._args_from_interpreter_flags
subprocess._args_from_interpreter_flags = lambda: [*_flags(), "-I"]
"""
_MODULE = """\
import runpy
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Not a preexec_fn: that runs Python's hooks of a fork, in which a Ctrl-C of that moment gets lost.
_DIES_WITH_PARENT = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit()
"""


def module_command(module: str, *words: object) -> list[str]:
    """Of `python -m module words` of this Python."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *map(str, words)]
    return [*_code_command(_MODULE), module, *map(str, words)]


def bound_command(module: str, *words: object) -> list[str]:
    """The same of a process that ends with this one, however this one ends; start it from the main
    thread, whose end counts."""
    code = _code_command(_DIES_WITH_PARENT + _MODULE)
    return [*code, str(os.getpid()), module, *map(str, words)]


def _code_command(code: str) -> list[str]:
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-c", code]
    return [sys.executable, "-c", _AS_P + code]


def environment(**more: str) -> dict[str, str]:
    """The same modules as this process's, wherever another one is started.

    An empty part of PYTHONPATH, as of `PYTHONPATH=$PYTHONPATH:/x`, would be the current folder.
    """
    paths = [HOME, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), **more}
