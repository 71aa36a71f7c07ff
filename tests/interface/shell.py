"""A shell for recordings: command lines run in this process, in a folder and an environment of their own."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl import cli

WIDTH = 100
# Help is not wrapped: a reworded sentence is one changed line.
WIDE = 4000
# All that a command may see of the environment; the rest differs from machine to machine.
KEPT = ("PATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START")


@dataclass(frozen=True)
class Done:
    """What one command line gave."""

    line: str
    code: int
    out: str
    err: str
    volatile: tuple[str, ...] = ()  # paths of JSON whose values are another each time
    data_keys: tuple[str, ...] = ()  # paths of JSON objects whose keys are data


class Shell:
    """Runs `clusterctl …` and `python -m trainer…`; keeps what they gave."""

    def __init__(self, folder: Path, patches: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patches = patches
        self.done: list[Done] = []
        self._words: dict[str, str] = {}

    def keep(self, word: str, path: str) -> None:
        """In lines `word` stands for `path`, which is another each time."""
        self._words[word] = path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(
        self, line: str, *, volatile: tuple[str, ...] = (), data_keys: tuple[str, ...] = ()
    ) -> Done:
        """Run a line and keep it for the recording; `volatile` and `data_keys` are patterns of JSON paths."""
        words = [self._said(word) for word in shlex.split(line)]
        is_help = bool({"-h", "--help"} & set(words))
        with _width(WIDE if is_help else WIDTH), _streams() as read:
            code = _call(words)
        out, err = read()
        done = Done(line, code, out, err, volatile, data_keys)
        self.done.append(done)
        return done

    def quiet(self, line: str) -> Done:
        """As `run` for what only prepares: it is not recorded."""
        self.run(line)
        return self.done.pop()

    def _said(self, word: str) -> str:
        for short, path in self._words.items():
            word = word.replace(short, path)
        return word


@contextlib.contextmanager
def shell() -> Iterator[Shell]:
    """A shell in an empty folder; the folder and all changes to this process end with the block."""
    patches = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory(prefix="recording-") as name:
        folder = Path(name).resolve()
        before, mask = dict(os.environ), os.umask(0o022)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        home = Path.cwd()
        try:
            os.environ.clear()
            os.environ.update({key: before[key] for key in KEPT if key in before})
            os.environ.update(_environment(folder))
            time.tzset()
            work = folder / "work"
            work.mkdir()
            os.chdir(work)
            # A line of progress every ten seconds: none on a machine that is not busy.
            patches.setattr("trainer.runlog.progress._IN_LOG_S", math.inf)
            yield Shell(work, patches)
        finally:
            patches.undo()
            os.umask(mask)
            os.chdir(home)
            os.environ.clear()
            os.environ.update(before)
            time.tzset()
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _environment(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder),
        "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "LINES": "40", "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(folder / "matplotlib"), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def _call(words: list[str]) -> int:
    if words[0] == "clusterctl":
        return cli.run(words[1:])
    assert words[:2] == ["python", "-m"], words
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        return int(_main_of(words[2])(words[3:]))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:  # noqa: BLE001 - a user would see a traceback: so does the recording
        print(f"Traceback …\n{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]


def _main_of(module: str) -> Callable[[list[str]], int]:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    is_package = spec.submodule_search_locations is not None
    found = importlib.import_module(f"{module}.__main__" if is_package else module)
    return found.main  # type: ignore[no-any-return]


@contextlib.contextmanager
def _width(columns: int) -> Iterator[None]:
    os.environ["COLUMNS"] = str(columns)
    before = cli.group.context_settings["max_content_width"]
    cli.group.context_settings["max_content_width"] = max(before, columns)
    try:
        yield
    finally:
        cli.group.context_settings["max_content_width"] = before


@contextlib.contextmanager
def _streams() -> Iterator[Callable[[], tuple[str, str]]]:
    """Standard streams are files, for this process and its children; no terminal is there."""
    names = ("stdin", "stdout", "stderr")
    files = [tempfile.TemporaryFile() for _ in names]  # noqa: SIM115
    texts = [getattr(sys, name) for name in names]
    for text in texts[1:]:
        text.flush()
    saved = [os.dup(number) for number in range(3)]

    def read() -> tuple[str, str]:
        found = []
        for file in files[1:]:
            file.seek(0)
            found.append(file.read().decode("utf-8", "backslashreplace"))
            file.close()
        return found[0], found[1]

    try:
        for number, (name, file) in enumerate(zip(names, files, strict=True)):
            os.dup2(file.fileno(), number)
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        yield read
    finally:
        for number, (name, text) in enumerate(zip(names, texts, strict=True)):
            if number:
                getattr(sys, name).flush()
            setattr(sys, name, text)
            os.dup2(saved[number], number)
            os.close(saved[number])
        files[0].close()
