"""The program of a rank, run in this process as `python PROGRAM` would run it."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from typing import Any

_kept: list[Any] = []  # the starter's own `__main__`, whose code still runs


@dataclass(frozen=True, slots=True)
class Program:
    """What follows `python` in a command: ("-m", MODULE, …) or (FILE, …)."""

    words: tuple[str, ...]

    def run(self) -> None:
        """Raises what the program raises. Only to be called where nothing catches it: the
        interpreter then reports it, sets the exit code and runs what is to run at the end."""
        _kept.append(sys.modules["__main__"])
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        sys.orig_argv[1:] = self.words
        if self.words[0] == "-m":
            name = self.words[1]
            sys.argv = ["-m", *self.words[2:]]
            _forget(name)
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # as `python -m` does
        else:
            self._run_file(main.__dict__)

    def _run_file(self, names: dict[str, Any]) -> None:
        path = self.words[0]
        sys.argv = list(self.words)
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        try:
            with io.open_code(os.path.abspath(path)) as file:  # noqa: PTH100
                text = file.read()
        except OSError as error:
            print(f"{sys.executable}: can't open file {path!r}: {error}", file=sys.stderr)
            sys.exit(2)
        loader = SourceFileLoader("__main__", path)
        names.update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
        exec(compile(text, path, "exec"), names)


def _forget(name: str) -> None:
    """`python -m` warns about a module that was imported before it runs."""
    parent, _, last = name.rpartition(".")
    if sys.modules.pop(name, None) is not None and parent in sys.modules:
        sys.modules[parent].__dict__.pop(last, None)
