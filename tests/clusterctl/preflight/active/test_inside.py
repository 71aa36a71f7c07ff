"""All-reduce inside each node: what is planned, who is named, over a stand-in for the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from checks.facts import Active, Collectives
from checks.finding import Finding, Verdict
from checks.runner import run_checks
from clusterctl.preflight.active.collectives import try_links
from clusterctl.preflight.active.plan import Plan
from tests.checks import active_cases


def plan(nodes: int, devices: int) -> Plan:
    names = tuple(f"n{number + 1}" for number in range(nodes))
    return Plan(names, "cuda", dict.fromkeys(names, devices), "/venv/bin/python", 29500)


def lines(made: Plan) -> list[str]:
    return [line.strip() for line in made.lines() if line.strip().startswith("all-reduce")]


PAIRS_2 = "all-reduce  256 MiB by pairs, then all: 2 rounds, 12 at most to name one fault"
PAIRS_3 = "all-reduce  256 MiB by pairs, then all: 4 rounds, 14 at most to name one fault"
INSIDE = "all-reduce  256 MiB inside each node: 1 round, 3 at most"
SKIPPED = "all-reduce  skipped: one node with one device has none to sum with"


@pytest.mark.parametrize(
    ("nodes", "devices", "said"),
    [
        (1, 8, [INSIDE]),
        (1, 1, [SKIPPED]),
        (2, 1, [PAIRS_2]),
        (2, 8, [INSIDE, PAIRS_2]),
        (3, 8, [INSIDE, PAIRS_3]),
    ],
)
def test_plan_says_what_is_summed(nodes: int, devices: int, said: list[str]) -> None:
    made = plan(nodes, devices)
    assert lines(made) == said
    assert made.has_sums == (said != [SKIPPED])


class Nodes:
    """Answers orders as nodes would; `inside_s` and `errors` by node are of groups of one node."""

    def __init__(
        self, inside_s: Mapping[str, float] = {}, errors: Mapping[str, list[str]] = {}
    ) -> None:
        self.inside_s, self.errors = inside_s, {name: list(them) for name, them in errors.items()}
        self.lost: dict[str, str] = {}
        self.groups: list[int] = []  # ranks of each order to sum

    def ask(self, orders: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        return {name: self._answer(name, order) for name, order in orders.items()}

    def _answer(self, name: str, order: Mapping[str, Any]) -> dict[str, Any]:
        if order["op"] == "start":
            return {"ranks": [{"device": one} for one in order["devices"]]}
        first = order["orders"][0]
        if first["do"] == "host":
            return {"answers": [{"port": 4000}]}
        ranks = len(order["orders"])
        self.groups.append(first["world"])
        is_alone = first["world"] == ranks
        if is_alone and self.errors.get(name):
            error = {"error": self.errors[name].pop(0), "seconds": 1.0}
            return {"answers": [error] * ranks}
        reduce_s = self.inside_s.get(name, 0.001) if is_alone else 0.01
        return {"answers": [{"reduce_s": reduce_s, "seconds": 1.0}] * ranks}


def summed(made: Plan, nodes: Nodes, unable: Mapping[str, str] = {}) -> Collectives:
    addresses = {name: f"10.0.0.{number}" for number, name in enumerate(made.nodes)}
    return try_links(nodes, made, addresses, unable, 0.5, lambda _: None)  # type: ignore[arg-type]


def findings(found: Collectives) -> list[Finding]:
    active = Active("cuda", collectives=found)
    return list(run_checks(active_cases.fleet(active), only=["active.allreduce"]).findings)


def test_a_node_alone_sums_inside_and_has_a_figure() -> None:
    nodes = Nodes()
    found = summed(plan(1, 8), nodes)
    assert nodes.groups == [8]
    assert found.inside_bytes_s["n1"] == pytest.approx(2 * 7 / 8 * (256 << 20) / 0.001)
    (one,) = findings(found)
    assert (one.verdict, one.evidence) == (
        Verdict.PASS, "its GPUs sum with each other, 438 GiB/s",
    )  # fmt: skip


@pytest.mark.parametrize("count", [2, 3])
def test_nodes_sum_inside_before_they_sum_with_others(count: int) -> None:
    nodes = Nodes()
    found = summed(plan(count, 8), nodes)
    assert nodes.groups[: count + 2] == [8] * count + [16, 16]
    assert not found.bad_nodes
    for one in findings(found):
        assert one.verdict is Verdict.PASS
        assert one.evidence.startswith("sums with the others, ")
        assert one.evidence.endswith("; its GPUs sum with each other, 438 GiB/s")


def test_a_node_without_a_sum_of_its_own_is_named_and_left_out_of_the_pairs() -> None:
    nodes = Nodes(errors={"n2": ["NCCL error: unhandled cuda error"] * 3})
    found = summed(plan(3, 8), nodes)
    assert found.bad_nodes == {"n2": "inside the node, alone: n2: NCCL error: unhandled cuda error"}
    assert nodes.groups == [8, 8, 8, 8, 8, 16, 16]  # n1 and n3 go on as a pair
    assert {one.nodes: one.verdict for one in findings(found)} == {
        ("n1",): Verdict.PASS, ("n2",): Verdict.FAIL, ("n3",): Verdict.PASS,
    }  # fmt: skip


def test_one_failure_is_tried_again_before_it_counts() -> None:
    found = summed(plan(3, 8), Nodes(errors={"n2": ["connection reset"]}))
    assert not found.bad_nodes
    assert set(found.inside_bytes_s) == {"n1", "n2", "n3"}


def test_a_node_that_sums_over_pcie_is_named_beside_others() -> None:
    found = summed(plan(3, 8), Nodes(inside_s={"n3": 0.02}))
    assert found.bad_nodes == {
        "n3": "inside the node, alone: 21.9 GiB/s, the middle node has 438 GiB/s"
    }


def test_who_is_left_without_a_partner_is_not_called_good() -> None:
    found = summed(plan(2, 8), Nodes(errors={"n2": ["no"] * 3}))
    assert set(found.bad_nodes) == {"n2"}
    assert found.unknown == {"n1": "no other node is left to sum with"}
    lost = summed(plan(2, 1), Nodes(), unable={"n2": "torch is not installed"})
    assert set(lost.unknown) == {"n1", "n2"}
    assert {one.verdict for one in findings(lost)} == {Verdict.UNKNOWN}
