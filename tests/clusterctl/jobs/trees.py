"""Process trees for tests: started, known by (pid, start), and surely ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON = str(Path(sys.executable).resolve())
TREE = Path(__file__).with_name("tree.py")


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> object:
    """The first true value of `condition`; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.01)
    return value


def state(pid: int, start: int) -> str | None:
    """State letter of just this process; None when it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return words[0] if int(words[19]) == start else None


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@dataclass
class Tree:
    """Processes of one tree; the first of `keys` to end is up to the test."""

    process: subprocess.Popen[str]
    keys: list[tuple[int, int]]

    def alive(self) -> list[tuple[int, int]]:
        self.process.poll()  # collects the root, which is this program's child
        return [key for key in self.keys if state(*key) not in (None, "Z")]

    def end(self) -> None:
        for key in self.keys:
            if state(*key) not in (None, "Z"):
                os.kill(key[0], signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def tree(
    directory: Path, seed: int = 0, count: int = 6, name: str = "train.py", **env: str
) -> Iterator[Tree]:
    """A tree whose command lines read `python … DIRECTORY/NAME`; ended when the block is left."""
    script = directory / name
    if not script.exists():
        shutil.copy(TREE, script)
    process = subprocess.Popen(
        [PYTHON, "-I", "-S", str(script), str(seed), str(count)],
        stdout=subprocess.PIPE, text=True, start_new_session=True, env={"PATH": "/usr/bin:/bin", **env},
    )  # fmt: skip
    keys = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line == "ready\n":
                break
            pid, start, _ = line.split()
            keys.append((int(pid), int(start)))
        assert len(keys) == count, "the tree did not grow"
        yield Tree(process, keys)
    finally:
        Tree(process, keys or [(process.pid, start_of(process.pid))]).end()
