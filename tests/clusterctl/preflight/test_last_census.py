"""What the head remembers between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.facts import Fabric, Previous, Unknown
from clusterctl.nodes import Node
from clusterctl.preflight.last_census import compare
from tests.checks import healthy

NODE = Node("n1", host="10.0.0.1")


def look(path: Path, node: Node = NODE) -> Previous | Unknown:
    """What is known of the look before this one."""
    (facts,), error = compare(path, [node], [healthy.full("n1")])
    assert error is None
    return facts.previous


def test_counters_and_clock_come_back_by_boot(tmp_path: Path) -> None:
    path = tmp_path / "state" / "last-look.json"
    facts = healthy.full("n1")
    assert isinstance(look(path), Unknown)
    found = look(path)
    assert isinstance(found, Previous)
    assert (found.boot_id, found.wall_minus_boot_s) == ("boot-n1", 1.8e9 - 9e4)
    assert isinstance(facts.fabric, Fabric)
    assert found.counters["mlx5_0:1"] == {"link_downed": 0, "symbol_error": 3}
    other = Node("n1", host="10.0.0.2")  # another machine under the same name
    assert isinstance(look(path, other), Unknown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1, "nodes": 5}',
        '{"schema": 2}',
        '{"schema": 1, "nodes": {"n1 10.0.0.1:22": {}}}',
        '{"schema": 1, "nodes": {"n1 10.0.0.1:22": {"time_s": "x"}}}',
        '{"schema": 1, "nodes": {"n1 10.0.0.1:22": {"boot_id": "b", "wall_minus_boot_s": NaN, "counters": {}, "time_s": 1}}}',
        '{"schema": 1, "nodes": {"n1 10.0.0.1:22": {"boot_id": "b", "wall_minus_boot_s": 1, "counters": {}, "time_s": 1e999}}}',
        '{"schema": 1, "nodes": {"n2 10.0.0.2:22": {"time_s": []}, "n3 n3:22": 5}}',
    ],
)
def test_broken_memory_is_no_memory(tmp_path: Path, text: str) -> None:
    path = tmp_path / "last-look.json"
    path.write_text(text)
    assert isinstance(look(path), Unknown)
    assert isinstance(look(path), Previous)


def test_folder_that_cannot_be_written_is_an_error_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compare(tmp_path / "file" / "x.json", [], [])[1] is not None
