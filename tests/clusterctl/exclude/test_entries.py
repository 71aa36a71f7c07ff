"""exclude.toml as people write it: read, or refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import HostfileError
from clusterctl.exclude.entries import ExcludeError, Exclusion, parse, read
from clusterctl.exclude.leave_out import leave_out
from clusterctl.nodes import Node

GOOD = """\
# asked the vendor on Monday
[[exclude]]
node = "n7"  # rack 3
reason = "Xid 79"
since = 2026-03-01T08:00:00Z
until = 2026-03-02T09:00:00+01:00
by = "ann@head"

[[ exclude ]]
node = "n2"
reason = 'fan'
"""


def test_entries_are_read_in_their_order_with_times_in_utc() -> None:
    assert parse(GOOD) == [
        Exclusion("n7", "Xid 79", 1772352000.0, 1772438400.0, "ann@head"),
        Exclusion("n2", "fan"),
    ]


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "exclude = []\n"])
def test_file_without_entries_excludes_nothing(text: str) -> None:
    assert parse(text) == []


def test_missing_file_excludes_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "exclude.toml") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[exclude]\n", "exclude.toml cannot be read: Expected ']]'"),
        ("[[exclude]]\nnode = n7\n", "(at line 2, column 8)"),
        ('[[exclude]]\nreason = "x"\n', "line 1: node of the entry is missing"),
        ('\n[[exclude]]\nnode = "n7"\n', "line 2: reason of the entry is missing"),
        ('[[exclude]]\nnode = "n[1-3]"\nreason = "x"\n', "line 1: node = 'n[1-3]' is not one node"),
        ('[[exclude]]\nnode = "-oProxy"\nreason = "x"\n', "line 1: host name '-oProxy' begins"),
        ('[[exclude]]\nnode = 7\nreason = "x"\n', "line 1: node of the entry is 7, not a text"),
        ('[[exclude]]\nnode = "n"\nreason = "a\\u001bb"\n', "line 1: reason of the entry holds"),
        ('[[exclude]]\nnode = "n"\nreason = "x"\nuntil = 2026-03-01\n', "until = 2026-03-01 lacks a time or its zone"),
        ('[[exclude]]\nnode = "n"\nreason = "x"\nuntl = 1\n', "line 1: the entry has a key 'untl'"),
        ('# x\n[exclud]\nnode = "n"\n', "line 2: 'exclud' is not known"),
        ('exclude = [{node = "n", reason = "x"}]\n', "each node needs its own [[exclude]]"),
        ("exclude = 3\n", "each node needs its own [[exclude]]"),
        (GOOD + '[[exclude]]\nnode = "n7"\nreason = "x"\n', "line 12: n7 is already excluded on line 2"),
    ],
)  # fmt: skip
def test_bad_file_is_one_sentence_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ExcludeError) as refused:
        parse(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "exclude.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ExcludeError, match="it is not text in UTF-8"):
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ExcludeError, match="it is a folder"):
        read(path)
    path.rmdir()
    path.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(ExcludeError, match="longer than 1 MiB"):
        read(path)


NODES = [Node("n1"), Node("n2"), Node("n7")]
BETWEEN_S = 1772400000.0


def test_excluded_nodes_are_left_out_and_said() -> None:
    chosen = leave_out(NODES, parse(GOOD), BETWEEN_S)
    assert [node.name for node in chosen.nodes] == ["n1"]
    assert chosen.sentences == (
        "excluded: n2, reason: fan; until it is removed",
        "excluded: n7 since 2026-03-01T08:00:00Z by ann@head, reason: Xid 79; until 2026-03-02T08:00:00Z",
    )  # fmt: skip


def test_entry_that_is_over_is_not_applied_and_said() -> None:
    chosen = leave_out([NODES[0], NODES[2]], parse(GOOD), 1772438400.0)
    assert [node.name for node in chosen.nodes] == ["n1", "n7"]
    assert chosen.sentences == (
        "n7 was excluded until 2026-03-02T08:00:00Z, which is over: it is used; reason then: Xid 79",
    )


def test_named_node_is_left_out_all_the_same_with_the_command_that_lets_it_in() -> None:
    chosen = leave_out(NODES[:2], parse(GOOD), BETWEEN_S, named=True)
    assert [node.name for node in chosen.nodes] == ["n1"]
    assert chosen.sentences[0].endswith("(clusterctl exclude remove n2 lets it in again)")


def test_no_node_left_is_refused_with_the_reason() -> None:
    with pytest.raises(HostfileError) as refused:
        leave_out(NODES[1:], parse(GOOD), BETWEEN_S)
    assert str(refused.value) == "no node is left: exclude.toml excludes n[2,7] (n2: fan)"


@pytest.mark.parametrize(
    ("entry", "node"), [("n2", "n2.lab.example"), ("n2.lab.example", "n2"), ("n2", "n2.a")]
)
def test_an_entry_that_may_mean_a_node_by_its_short_name_is_told(entry: str, node: str) -> None:
    entries = [Exclusion(entry, "Xid 79", None, None, "")]
    chosen = leave_out([Node("n1"), Node(node)], entries, 0.0)
    assert [one.name for one in chosen.nodes] == ["n1", node]
    (said,) = chosen.sentences
    assert said.startswith(
        f"{entry} is excluded (Xid 79) and the hostfile has {node}, which is used"
    )


@pytest.mark.parametrize(
    ("entry", "node"), [("n2.a", "n2.b"), ("10.0.0.1", "10.0.0.2"), ("n2", "n21.a")]
)
def test_entries_of_other_machines_are_no_concern(entry: str, node: str) -> None:
    chosen = leave_out([Node(node)], [Exclusion(entry, "Xid 79", None, None, "")], 0.0)
    assert chosen.sentences == ()
