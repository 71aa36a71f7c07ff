"""gpu.nvlink: links that a model's wiring leaves off, and links that are off on one GPU alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from checks.facts import GpuFacts, NvLinks
from checks.finding import Action, Finding
from checks.runner import run_checks
from tests.checks import healthy as h

NVL, PCIE, HBM = "NVIDIA H100 NVL", "NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3"
V100 = "Tesla V100-SXM2-32GB"
UNUSED = (4, 5, 10, 11, 16, 17)  # links of an H100 NVL that its bridges leave off
ALL_OFF = tuple(range(12))


def gpus(name: str, off: Sequence[Sequence[int]], of: int = 18, **pairs: str) -> GpuFacts:
    """GPUs of a name, each with the links that are off; pairs as `p01="NV12"`."""
    base = h.gpu_facts(len(off))
    return dataclasses.replace(
        base,
        gpus=tuple(dataclasses.replace(gpu, name=name) for gpu in base.gpus),
        nvlinks=tuple(NvLinks(n, of - len(one), tuple(one)) for n, one in enumerate(off)),
        pairs={f"{pair[1]}-{pair[2]}": kind for pair, kind in pairs.items()},
    )


def judged(*nodes: GpuFacts) -> list[Finding]:
    facts = {name: {"gpus": one} for name, one in zip(h.NAMES, nodes, strict=False)}
    fleet = dataclasses.replace(h.fleet(**facts), nodes=h.fleet(**facts).nodes[: len(nodes)])
    found = run_checks(fleet, only=["gpu.nvlink"]).findings
    by_node = {name: one for one in found for name in one.nodes}
    return [by_node[name] for name in h.NAMES[: len(nodes)]]


def verdicts(*nodes: GpuFacts) -> list[str]:
    return [one.verdict.value for one in judged(*nodes)]


def test_links_that_the_bridges_of_a_model_leave_off_are_no_fault() -> None:
    pair = gpus(NVL, [UNUSED] * 2, p01="NV12", p10="NV12")
    assert verdicts(pair) == ["PASS"]
    assert verdicts(pair, pair) == ["PASS", "PASS"]
    four = gpus(NVL, [UNUSED] * 4, p01="NV12", p23="NV12", p02="SYS", p03="SYS")
    assert verdicts(four, four) == ["PASS", "PASS"]  # a bridge joins two of them
    other = gpus("NVIDIA RTX A6000", [(3,)] * 2, of=4, p01="NV3")
    assert verdicts(other, other) == ["PASS", "PASS"]


def test_a_link_that_is_off_on_one_card_of_equals_is_a_fault_of_the_bridge() -> None:
    pair = gpus(NVL, [UNUSED] * 2, p01="NV12")
    worse = gpus(NVL, [UNUSED, (*UNUSED, 7)], p01="NV11")
    found = judged(pair, worse)
    assert [one.verdict.value for one in found] == ["PASS", "FAIL"]
    assert (found[1].evidence, found[1].action) == (
        "GPU 1: link 4,5,10,11,16,17,7 inactive", Action.SERVICE,
    )  # fmt: skip
    assert "bridge" in (found[1].fix or "")
    both_ends = gpus(NVL, [(*UNUSED, 7)] * 2, p01="NV11")
    assert verdicts(pair, both_ends) == ["PASS", "FAIL"]
    # Alone nobody can tell it from the wiring of a bridge.
    alone = judged(gpus("NVIDIA RTX A6000", [(3,)] * 2, of=4, p01="NV3"))[0]
    assert (alone.verdict.value, alone.action) == ("WARN", Action.NONE)


def test_cards_without_a_bridge_are_no_fault() -> None:
    two = gpus(PCIE, [ALL_OFF] * 2, of=12, p01="SYS", p10="SYS")
    assert verdicts(two, two) == ["SKIP", "SKIP"]
    assert verdicts(gpus(PCIE, [(-1,)], of=1)) == ["SKIP"]  # one card has no other to join
    alone = judged(two)[0]
    assert (alone.verdict.value, alone.action) == ("WARN", Action.NONE)
    assert "bridge" in (alone.fix or "")
    bridged = gpus(PCIE, [()] * 2, of=12, p01="NV12")
    assert verdicts(bridged, two) == ["PASS", "FAIL"]  # others of its model have one
    assert verdicts(bridged, gpus(PCIE, [ALL_OFF], of=12)) == ["PASS", "SKIP"]


def test_a_board_with_links_off_is_a_fault() -> None:
    dead = gpus(HBM, [tuple(range(18))] * 8)
    found = judged(dead, dead)
    assert [(one.verdict.value, one.action) for one in found] == [("FAIL", Action.REBOOT)] * 2
    assert verdicts(gpus(HBM, [(-1,)], of=1)) == ["FAIL"]
    one_off = gpus(HBM, [(), (3,), *[()] * 6])
    assert verdicts(gpus(HBM, [()] * 8), one_off) == ["PASS", "FAIL"]
    assert verdicts(gpus(HBM, [(3,)] * 8)) == ["FAIL"]
    # The same on two nodes: the board is wired so, or all have the fault.
    assert verdicts(*[gpus(HBM, [(3,)] * 8)] * 2) == ["WARN", "WARN"]


def test_a_board_on_which_not_all_pairs_are_joined_is_judged_by_other_nodes() -> None:
    cube = gpus(V100, [()] * 8, of=6, p01="NV1", p03="NV2", p05="SYS")
    assert verdicts(cube, cube) == ["PASS", "PASS"]
    worse = gpus(V100, [()] * 8, of=6, p01="SYS", p03="NV2", p05="SYS")
    assert verdicts(cube, worse) == ["PASS", "FAIL"]
    half = gpus(V100, [(2, 4), (1, 3), (0, 5), (2, 3)], of=6, p01="NV1")
    assert verdicts(half, half) == ["PASS", "PASS"]  # the same slice of a board on each node
    grown = gpus("NVIDIA GH200 480GB", [tuple(range(18))])
    assert verdicts(grown, grown) == ["WARN", "WARN"]  # may stand alone: nobody can tell
