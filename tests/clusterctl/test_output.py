"""What commands print beside their results."""

from __future__ import annotations

import re
import sys

import pytest

from clusterctl.output import Output
from tests.clusterctl.launch.harness import wait_until


def test_long_work_has_a_line_on_a_terminal_that_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = ""

    def has_shown() -> bool:
        nonlocal shown
        shown += capsys.readouterr().err
        return re.search(r"\r\x1b\[2Kreading two runs … \d+\.\d s", shown) is not None

    with Output().waiting("reading two runs"):
        wait_until(has_shown)
    assert (shown + capsys.readouterr().err).endswith("\r\x1b[2K")


def test_long_work_says_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().waiting("reading two runs"):
        pass
    assert capsys.readouterr().err == ""
