"""Programs whose clock is set while they run, and whose file system has no locks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import answers
from tests.faults.answers import Answers

ASKS = """
import datetime, fcntl, os, sys, time
def times():
    now = datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(time.time(), now, time.monotonic(), flush=True)
times()
sys.stdin.readline()
times()
for name in sys.argv[1:]:
    try:
        fcntl.flock(os.open(name, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
        print(0)
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.skipif(answers.why_not() is not None, reason="there is no C compiler (cc)")
def test_clock_is_set_in_a_program_that_runs_and_locks_fail_in_one_folder(tmp_path: Path) -> None:
    made = Answers(tmp_path / "answers")
    (tmp_path / "bare").mkdir()
    names = [tmp_path / "bare" / "a", tmp_path / "b"]
    with subprocess.Popen(
        [sys.executable, "-c", ASKS, *map(str, names)],
        env={**os.environ, **made.without_locks(tmp_path / "bare")},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        first = [float(word) for word in program.stdout.readline().split()]
        made.set_clock(-3600)
        said, _ = program.communicate("\n", timeout=30)
    lines = said.splitlines()
    second = [float(word) for word in lines[0].split()]
    passed_s = second[2] - first[2]
    assert 0 <= passed_s < 30
    assert [b - a for a, b in zip(first[:2], second[:2], strict=True)] == pytest.approx(
        [passed_s - 3600] * 2, abs=0.5
    )
    assert lines[1:] == [str(errno.ENOLCK), "0"]
