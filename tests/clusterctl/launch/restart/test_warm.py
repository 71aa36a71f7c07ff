"""Which spares import what ranks need, and how long that stands by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.launch.leftovers import prove_gone
from clusterctl.launch.restart import warm
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.warm import WarmSpares, likely
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.launch.harness import LIMITS, tagged, wait_until

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


def test_first_spare_stands_by_until_the_run_ends(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "EVERY_S", 0.2)
    first, *spares = bench.nodes
    plan = bench.plan("pass", nodes=[first])
    spares = WarmSpares(
        plan, Cluster(bench.nodes, ParamikoTransport(), LIMITS), bench.rules(plan, spares), Past()
    )
    assert tagged(plan.run_id) == []
    spares.begin()
    (starter,) = wait_until(lambda: tagged(plan.run_id))
    spares.need([])  # the attempt fails: what stands by is what is needed
    spares.close()
    spares.wait()
    assert tagged(plan.run_id) == [starter]
    assert spares.asked == {bench.nodes[1].name}
    prove_gone(plan, Cluster(bench.nodes, ParamikoTransport(), LIMITS))
    assert tagged(plan.run_id) == []


@pytest.mark.long
def test_nothing_stands_by_where_nothing_is_restarted(bench) -> None:
    first, *spares = bench.nodes
    plan = bench.plan("pass", nodes=[first])
    idle = WarmSpares(
        plan,
        Cluster(bench.nodes, ParamikoTransport(), LIMITS),
        bench.rules(plan, spares, max_restarts=0),
        Past(),
    )
    idle.begin()
    idle.need(["lost"])
    idle.wait()
    assert idle.asked == set()
