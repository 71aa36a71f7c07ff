"""What the head remembers between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.facts import Fabric, Previous, Unknown
from clusterctl.nodes import Node
from clusterctl.preflight import last_census as history
from tests.checks import healthy

NODE = Node("n1", host="10.0.0.1")


def test_counters_and_clock_come_back_by_boot(tmp_path: Path) -> None:
    path = tmp_path / "state" / "last-look.json"
    facts = healthy.full("n1")
    assert history.remember(path, {}, [(NODE, facts)]) is None
    found = history.previous(history.load(path), NODE, 9e9)
    assert isinstance(found, Previous)
    assert (found.boot_id, found.wall_minus_boot_s) == ("boot-n1", 1.8e9 - 9e4)
    assert isinstance(facts.fabric, Fabric)
    assert found.counters["mlx5_0:1"] == {"link_downed": 0, "symbol_error": 3}
    other = Node("n1", host="10.0.0.2")  # another machine under the same name
    assert isinstance(history.previous(history.load(path), other, 9e9), Unknown)


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
    assert isinstance(history.previous(history.load(path), NODE, 0.0), Unknown)
    assert history.remember(path, history.load(path), [(NODE, healthy.full("n1"))]) is None
    assert isinstance(history.previous(history.load(path), NODE, 9e9), Previous)


def test_folder_that_cannot_be_written_is_an_error_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert history.remember(tmp_path / "file" / "x.json", {}, []) is not None
