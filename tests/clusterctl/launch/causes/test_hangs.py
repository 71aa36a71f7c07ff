"""What hangs, by the verdict over the stacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.launch.causes.hangs import of_verdict
from clusterctl.stacks.model import Progress
from clusterctl.stacks.verdict import Suspect, Verdict, VerdictKind
from clusterctl.stacks.wait_sites import Kind


def proc(**facts: Any) -> Any:
    usual = {"kind": Kind.CODE, "role": "trainer", "state": "S", "progress": Progress.STUCK}
    usual |= {"in_storage": False, "saves": False, "is_frozen": False}
    return SimpleNamespace(**{**usual, **facts})


def named(kind: VerdictKind, process: Any = None, rank: int | None = 1) -> str:
    suspects = [Suspect("n2", rank, "trainer", "stuck", process)] if process or rank is None else []
    return of_verdict(Verdict(kind, "it hangs", suspects=suspects), "HANG: it hangs", 2).name


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"role": "loader", "kind": Kind.WORK}, "hang-data"),
        ({"role": "loader", "state": "T"}, "hang-data"),
        ({"kind": Kind.WAIT_DATA}, "hang-data"),
        ({"role": "loader", "in_storage": True, "state": "D"}, "hang-storage"),
        ({"kind": Kind.CHECKPOINT, "saves": True, "state": "D"}, "hang-storage"),
        ({"kind": Kind.LOG}, "hang-logger"),
        ({"state": "T"}, "hang-stopped"),
        ({"kind": Kind.COLLECTIVE}, "hang-collective"),
        ({"progress": Progress.SPINNING}, "hang-spinning"),
        ({}, "hang"),
    ],
)
def test_suspect_says_what_hangs(facts: dict[str, Any], name: str) -> None:
    assert named(VerdictKind.HANG, proc(**facts)) == name


def test_verdict_says_what_hangs_where_it_knows() -> None:
    assert named(VerdictKind.DESYNC, proc(kind=Kind.COLLECTIVE)) == "hang-desync"
    assert named(VerdictKind.ALL_SAME) == "hang-collective"
    assert named(VerdictKind.DATA) == "hang-data"
    assert named(VerdictKind.UNKNOWN) == "hang"


def test_node_that_does_not_answer_is_the_cause_and_bound_to_itself() -> None:
    silent = Suspect("n2", None, "node", "no answer: timeout")
    found = of_verdict(Verdict(VerdictKind.HANG, "n2", suspects=[silent]), "HANG: n2", 2)
    assert (found.name, found.node, found.is_of_node) == ("node-unreachable", "n2", True)


def test_without_a_verdict_the_reason_is_kept() -> None:
    found = of_verdict(None, "UNKNOWN: no verdict within 1 s", 2)
    assert found.name == "hang"
    assert found.evidence is not None
    assert found.evidence.line == "UNKNOWN: no verdict within 1 s"
