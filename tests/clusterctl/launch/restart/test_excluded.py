"""Which nodes the next attempt may not use, by exclude.toml as it is then."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterctl.exclude import change
from clusterctl.exclude.entries import Exclusion
from clusterctl.launch.restart.excluded import excluded, unread
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.nodes import Node

BROKEN = {"n1": "Xid 79", "n2": "Xid 48"}


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(nodes=(Node("n1"), Node("n2")), exclude_file=tmp_path / "exclude.toml")


def test_node_may_be_used_again_when_its_entry_is_gone_or_over(rules: Rules) -> None:
    past = Past(barred=BROKEN, entered=frozenset(BROKEN))
    now_s = time.time()
    entries = [Exclusion("n1", "Xid 79", now_s, now_s + 60), Exclusion("n2", "Xid 48", now_s)]
    change.add(rules.exclude_file, entries)
    assert excluded(rules, past) == {"n1": "excluded: Xid 79", "n2": "excluded: Xid 48"}
    change.add(rules.exclude_file, [Exclusion("n1", "Xid 79", now_s, now_s - 1)])
    assert excluded(rules, past) == {"n2": "excluded: Xid 48"}
    change.remove(rules.exclude_file, ["n2"])
    assert excluded(rules, past) == {}


def test_node_that_could_not_be_entered_stays_out(rules: Rules) -> None:
    assert excluded(rules, Past(barred=BROKEN, entered=frozenset({"n2"}))) == {"n1": "Xid 79"}


def test_nobody_with_a_fault_is_used_while_the_file_cannot_be_read(rules: Rules) -> None:
    rules.exclude_file.write_text("[[exclude]\n")
    assert excluded(rules, Past(barred=BROKEN, entered=frozenset(BROKEN))) == BROKEN


def test_what_cannot_be_read_is_said_with_what_follows(rules: Rules) -> None:
    assert unread(Rules()) is unread(rules) is None
    rules.exclude_file.write_text("[[exclude]]\nname = 3\n")
    assert unread(rules) == (
        f"{rules.exclude_file} line 1: the entry has a key 'name'; "
        "nodes that people have added to it since the launch are used"
    )
