"""What nodes without the shared folder send of their files: bounded in a second, and in all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.launch import journal
from clusterctl.launch.journal import Copies, Journal


def test_copies_of_a_node_end_at_a_total_that_counts_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "NODE_BYTES", 1000)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/0.log").write_text("x" * 300)  # of an earlier head
    copies = Copies(tmp_path, Journal(tmp_path))
    for _ in range(50):
        copies.append("ranks/0.log", "y" * 99 + "\n", "n1")
        copies.append("ranks/1.log", "z" * 99 + "\n", "n1")
        copies.append("ranks/2.log", "w" * 19 + "\n", "n2")
    sizes = [(tmp_path / f"ranks/{rank}.log").stat().st_size for rank in range(3)]
    assert sizes[0] + sizes[1] == 1000
    assert sizes[2] == 1000
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    texts = [(one["node"], one["text"]) for one in map(json.loads, lines)]
    assert all(" sends more than " in text for _, text in texts)
    assert [node for node, _ in texts] == ["n1", "n1"]
