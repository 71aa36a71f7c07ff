"""Progress on a terminal and in a log, with a clock that the test moves."""

from __future__ import annotations

import io

import pytest

from trainer.runlog import progress
from trainer.runlog.progress import RowProgress, StepProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    monkeypatch.setenv("COLUMNS", "80")
    return seconds


def test_what_is_loaded_before_the_first_step_is_not_in_the_time_left(now: list[float]) -> None:
    log = io.StringIO()
    steps = StepProgress("sampling", stream=log)
    now[0] += 600  # loading
    for done in range(20):
        steps(done, 20)
        now[0] += 3
    lines = log.getvalue().splitlines()
    assert lines[0] == "sampling: step 1 of 20"
    assert lines[1] == "sampling: step 5 of 20, 48 s left"
    assert len(lines) == 5  # one in ten seconds or more


def test_a_terminal_has_one_line_that_goes_away(now: list[float]) -> None:
    terminal = Terminal()
    with RowProgress("filter a.csv", stream=terminal) as rows:
        for share in (0.0, 0.25, 0.5):
            rows.at(share, int(share * 4000))
            now[0] += 1
    shown = terminal.getvalue().split("\r\x1b[2K")
    assert shown == [
        "",
        "filter a.csv: 25.0%, 1,000 rows, 1,000/s, 3 s left",
        "filter a.csv: 50.0%, 2,000 rows, 1,000/s, 2 s left",
        "",
    ]


def test_a_terminal_s_line_never_wraps(now: list[float]) -> None:
    terminal = Terminal()
    with StepProgress("x" * 100, stream=terminal) as steps:
        now[0] += 1
        steps(0, 2)
    assert terminal.getvalue().split("\r\x1b[2K") == ["", "x" * 79, ""]


def test_quick_and_quiet_work_says_nothing(now: list[float]) -> None:
    log = io.StringIO()
    with StepProgress("sampling", stream=log) as quick:
        for done in range(9):
            quick(done, 9)
            now[0] += 1
    with StepProgress("sampling", quiet=True, stream=log) as quiet:
        now[0] += 1000
        quiet(0, 2)
    assert log.getvalue() == ""
