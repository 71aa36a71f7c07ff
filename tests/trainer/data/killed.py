"""Runs a verb again and again, killed (SIGKILL) at every point where something is made to last.

`python -m tests.trainer.data.killed FLUSH_ROWS verb …` prints how many kills there were. The parent
imports Arrow and never uses it: its threads would not survive the fork.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401 - once instead of in every fork

from trainer.data.__main__ import main
from trainer.data.manifest import (
    computed,
    rewrite,  # noqa: F401
    shards,  # noqa: F401
)
from trainer.data.tools import file_probe


class Examiner:
    """Answers at once, in this process; unreadable.mp4 is what it says."""

    def ask(self, question: dict[str, Any]) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        if question["path"].endswith("unreadable.mp4"):
            future.set_result({"error": "Invalid data found"})
            return future
        size = len(question["path"])
        future.set_result({"num_frames": size, "height": 4, "width": size, "fps": 24.0, "bytes": 9})
        return future

    def close(self) -> None:
        pass


def attempt(arguments: list[str], points: int) -> bool:
    """Run in a fork that dies at its `points`-th point; whether it got to its end."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) in (0, 1), status
            return True
        return False
    left = points

    def point() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        point()
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        point()
        done = real_replace(self, target)
        point()
        return done

    os.fsync, Path.replace = fsync, replace  # type: ignore[method-assign]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        os._exit(main(arguments))


def rounds(out: Path, arguments: list[str]) -> int:
    """Killed at the first point, at the second, …, each time from nothing and then gone on with."""
    want = None
    kills = 0
    while True:
        _wipe(out)
        if kills == 0:
            assert attempt(arguments, 10**9)
            want = _bytes(out)
            _wipe(out)
        ended = attempt(arguments, kills + 1)
        assert ended or not out.exists() or _bytes(out) == want
        if ended:
            return kills
        kills += 1
        assert attempt(arguments, 10**9)
        assert _bytes(out) == want, f"other bytes after a kill at point {kills}"
        assert not out.with_name(f".{out.name}.work").exists()


def stumbling(out: Path, arguments: list[str], points: int) -> int:
    """Killed again and again without a whole run in between."""
    want = _bytes(out)
    _wipe(out)
    kills = 0
    while not out.exists() and not attempt(arguments, points):
        kills += 1
        assert kills < 50, "it gets nowhere"
    assert _bytes(out) == want, "other bytes"
    return kills


def _bytes(out: Path) -> list[bytes]:
    paths = sorted(out.iterdir()) if out.is_dir() else [out]
    return [path.read_bytes() for path in paths]


def _wipe(out: Path) -> None:
    for path in (out, out.with_name(f".{out.name}.work")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    computed.FLUSH_ROWS = int(sys.argv[1])
    file_probe.LocalPool = lambda *_: Examiner()  # type: ignore[assignment,misc]
    given = sys.argv[2:]
    target = Path(next(word for word in given[::-1] if not word.startswith("-")))
    first = rounds(target, given)
    print(first, stumbling(target, given, 11))
