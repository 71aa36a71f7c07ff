"""What is no fault where the whole fleet has it: members of a pool, narrow slots, one PTP service."""

from __future__ import annotations

import dataclasses

import pytest

from checks.facts import Fleet, GpuHealth, NodeFacts, TimeSource, Unknown
from checks.parsers.clock import read_sources
from checks.runner import run_checks
from tests.checks import healthy as h
from tests.checks.captures import recorded
from tests.checks.sections import node


def sources_of_pool() -> list[tuple[TimeSource, ...]]:
    parts = recorded("chrony/pool-four-nodes.sources.txt").split("# n")[1:]
    found = [read_sources(part.partition("\n")[2]) for part in parts]
    assert not any(isinstance(one, Unknown) for one in found)
    return [one for one in found if not isinstance(one, Unknown)]


def verdicts(nodes: list[NodeFacts], check: str) -> list[str]:
    return [one.verdict.value for one in run_checks(Fleet(tuple(nodes)), only=[check]).findings]


def with_sources(lists: list[tuple[TimeSource, ...]]) -> list[NodeFacts]:
    return [
        node(f"n{number}", clock=h.clock(sources=one)) for number, one in enumerate(lists, start=1)
    ]


def test_members_of_a_public_pool_are_not_compared() -> None:
    assert set(verdicts(with_sources(sources_of_pool()), "time.sources")) == {"PASS"}


def test_other_servers_than_most_nodes_are_told_all_the_same() -> None:
    first, *_, last = sources_of_pool()
    assert "WARN" in verdicts(with_sources([first, first, first, last]), "time.sources")
    private = [
        tuple(dataclasses.replace(one, address=f"10.0.{node}.{at}") for at, one in enumerate(first))
        for node in range(4)
    ]
    assert "WARN" in verdicts(with_sources(private), "time.sources")
    single = [one[:1] for one in sources_of_pool()]
    assert "WARN" in verdicts(with_sources(single), "time.sources")


PTP = (TimeSource("PTP0", "selected", 0, 4.0, 0o377, 1.0, 1e-7, 2e-5),)


@pytest.mark.parametrize(
    ("daemons", "sources", "verdict"),
    [
        (("chronyd", "phc2sys", "ptp4l", "timemaster"), PTP, "PASS"),
        (("chronyd", "ptp4l"), PTP, "PASS"),
        (("chronyd", "phc2sys", "ptp4l"), PTP, "FAIL"),
        (("chronyd", "ptp4l"), h.clock().sources, "FAIL"),
        (("chronyd", "ntpd", "timemaster", "systemd-timesyn"), PTP, "FAIL"),
        (("phc2sys", "ptp4l"), PTP, "PASS"),
    ],
)
def test_daemons_that_one_service_runs_are_one(
    daemons: tuple[str, ...], sources: tuple[TimeSource, ...], verdict: str
) -> None:
    nodes = [node(name, clock=h.clock(daemons=daemons, sources=sources)) for name in ("n1", "n2")]
    assert set(verdicts(nodes, "time.daemons")) == {verdict}


def narrow(count: int) -> NodeFacts:
    facts = h.gpu_facts()
    gpus = [
        dataclasses.replace(gpu, health=dataclasses.replace(gpu.health, pcie_width=8))
        if at < count and isinstance(gpu.health, GpuHealth)
        else gpu
        for at, gpu in enumerate(facts.gpus)
    ]
    return node("n1", gpus=dataclasses.replace(facts, gpus=tuple(gpus)))


def test_slots_that_are_all_narrow_are_a_warning_and_one_card_a_fault() -> None:
    assert verdicts([narrow(8)], "gpu.pcie") == ["WARN"]
    assert verdicts([narrow(1)], "gpu.pcie") == ["FAIL"]
