"""What commands print beside their results."""

from __future__ import annotations

import os
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


def test_last_column_is_wrapped_between_words_where_a_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Output, "page", lambda self: os.terminal_size((60, 24)))
    evidence = (
        "7 GPUs, most nodes have 8; PCI shows 8, and the kernel says that one fell off the bus"
    )
    Output(color="never").table(["VERDICT", "NODES", "EVIDENCE"], [["FAIL", "n2", evidence]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(line[16:] for line in lines[1:]) == evidence
    assert {line[:16] for line in lines[2:]} == {" " * 16}
    monkeypatch.setattr(Output, "page", lambda self: None)
    Output(color="never").table(["VERDICT", "NODES", "EVIDENCE"], [["FAIL", "n2", evidence]])
    assert len(capsys.readouterr().out.splitlines()) == 2
