"""What commands print beside their results."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from clusterctl.nodes import Node
from clusterctl.output import Output, unreachable_lines
from clusterctl.remote.fanout import NodeResult
from clusterctl.transport.base import Unreachable
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


def test_a_text_between_numbers_is_wrapped_in_its_column_where_a_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Output, "page", lambda self: os.terminal_size((64, 24)))
    columns = ["NODE", "OFFSET", "STEERED BY", "SOURCES", "FLAGS"]
    row = ["demo-[1-2]", "-0.02 ms to +0.00 ms", "no daemon seen; not synchronised", "-", ""]
    Output(color="never").table(columns, [row], ["OFFSET"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 64
    at = lines[0].index("STEERED BY")
    told = [line[at : lines[0].index("SOURCES")].strip() for line in lines[1:]]
    assert " ".join(told) == row[2]
    assert {line[:at].strip() for line in lines[2:]} == {""}
    # Where even that does not fit, each row stays one line, which the terminal breaks.
    monkeypatch.setattr(Output, "page", lambda self: os.terminal_size((40, 24)))
    Output(color="never").table(columns, [row], ["OFFSET"])
    assert len(capsys.readouterr().out.splitlines()) == 2


def first_contact(node: Node, address: str) -> NodeResult[None]:
    hint = (
        f"run it once with --accept-new, or: ssh-keyscan -t ed25519 {address} >> ~/.ssh/known_hosts"
    )
    why = Unreachable("hostkey", 0.2, f"unknown host key of {node.name} (ssh-ed25519)", hint)
    return NodeResult(node, None, why, 0.2)


def test_first_contact_with_many_nodes_is_one_line_and_one_hint() -> None:
    named = [first_contact(Node(f"n{at}"), f"10.0.0.{at}") for at in range(1, 1001)]
    lines = unreachable_lines(named)
    assert len(lines) == 2
    assert lines[0].startswith("n[1-1000]  hostkey  0.2 s  unknown host key of NODE")
    assert lines[1].startswith(
        "  hint, for n1, and alike for the others: run it once with --accept-new"
    )
    (_, hint) = unreachable_lines(named[:1])
    assert "ssh-keyscan -t ed25519 10.0.0.1 " in hint


def test_a_node_that_refuses_the_login_has_answered(capsys: pytest.CaptureFixture[str]) -> None:
    dead = NodeResult(Node("d"), None, Unreachable("tcp", 3.0, "timed out"), 3.0)
    refused = [first_contact(Node("a"), "a"), first_contact(Node("b"), "b")]
    for results, words in (
        (refused, "error: 2 of 2 nodes could not be logged in to\n"),
        ([*refused, dead], "error: 3 of 3 nodes did not answer, or could not be logged in to\n"),
        ([dead], "error: d did not answer\n"),
    ):
        Output().unreachable(results)
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(("rows", "headers"), [(10, 1), (24, 2), (100, 2)])
def test_columns_of_a_table_longer_than_the_terminal_are_named_below_it_too(
    rows: int, headers: int, monkeypatch, capsys
) -> None:
    """24 nodes on 80x24: the first line has scrolled off."""
    monkeypatch.setattr(Output, "page", lambda self: os.terminal_size((80, 24)))
    Output().table(("NODE", "GPUS"), [(f"n{row}", "8") for row in range(rows)])
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("NODE  GPUS") == headers
    assert len(lines) == rows + headers
    assert lines[-1] == ("NODE  GPUS" if headers == 2 else f"n{rows - 1}    8")


def test_a_document_has_null_for_what_json_has_no_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Figures of a run directory that somebody else wrote may overflow."""
    Output(json=True).document("x", a=[1.5, float("inf")], b={"c": float("nan")}, d=Path("/x"))
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"schema": 1, "command": "x", "a": [1.5, None], "b": {"c": None}, "d": "/x"}
