"""A test and a thread that nothing ends do not hold up a run of the tests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFTEST = """
from tests import watchdog
watchdog.LATER_S, watchdog.END_S = 1.0, 20.0
def pytest_configure(config):
    config.pluginmanager.register(watchdog)
"""
# A call into C that comes back after a signal and runs no Python code in between.
STUCK = """
import ctypes, signal
def test_stuck():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).pause()
"""
LEFT_BEHIND = """
import threading, time
def test_thread():
    threading.Thread(target=time.sleep, args=(600,), name="left behind").start()
"""


def run(folder: Path, code: str, *more: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_one.py").write_text(code)
    began = time.monotonic()
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "1", "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, *words, *more, "--rootdir", str(folder), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return time.monotonic() - began, done


@pytest.mark.long
def test_test_that_no_signal_ends_is_shown_and_ends(tmp_path: Path) -> None:
    seconds, done = run(tmp_path, STUCK)
    assert done.returncode == 1
    assert "in test_stuck" in done.stderr
    assert seconds < 60


@pytest.mark.slow
def test_thread_behind_the_last_test_is_shown_and_ends(tmp_path: Path) -> None:
    seconds, done = run(tmp_path, LEFT_BEHIND)
    assert "1 passed" in done.stdout
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "threading.py" in done.stderr
    assert seconds < 60


@pytest.mark.slow
def test_worker_that_is_ended_is_told_from_tests_that_failed(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_two():\n    assert True\n")
    seconds, done = run(
        tmp_path, STUCK, "-n", "1", "--dist", "loadfile", "--max-worker-restart", "0"
    )
    assert done.returncode == 3
    assert "crashed while running 'test_one.py::test_stuck'" in done.stdout
    assert "in test_stuck" in done.stderr
    assert seconds < 60
