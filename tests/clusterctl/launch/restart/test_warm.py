"""Which spares import what ranks need while a failed attempt is being stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.warm import likely
from clusterctl.nodes import Node

SPARES = [Node("s1"), Node("s2")]


@pytest.mark.parametrize(
    ("lost", "unproved", "asked"),
    [
        (["node-1"], [], ["s1"]),
        (["node-1"], ["s1"], ["s2"]),
        (["node-1", "node-2"], [], ["s1", "s2"]),
        ([], [], ["s1"]),  # a crash: its node may turn out to be the cause
        (["node-1"], ["s1", "s2"], []),
    ],
)
def test_as_many_as_nodes_were_lost(bench, lost: list[str], unproved: list[str], asked) -> None:
    nodes = [replace(node, name=f"node-{i + 1}") for i, node in enumerate(bench.nodes[:2])]
    plan = bench.plan("pass", nodes=nodes)
    past = Past(unproved=dict.fromkeys(unproved, "not reached"))
    found = likely(plan, bench.rules(plan, SPARES), past, lost)
    assert [node.name for node in found] == asked


def test_nobody_is_asked_without_spares(bench) -> None:
    plan = bench.plan("pass")
    assert likely(plan, bench.rules(plan), Past(), [plan.nodes[0].name]) == []
