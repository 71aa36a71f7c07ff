"""The plan: what it says, how long it takes, whom it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from checks.facts import GpuFacts, GpuProcess, Unknown, Unreached
from clusterctl.errors import Declined
from clusterctl.preflight.active.plan import chosen_tests, make_plan
from tests.checks import healthy as h


def plan(fleet=None, **more):
    return make_plan(fleet or h.fleet(), **more)


def test_says_what_it_will_do_and_how_long() -> None:
    text = "\n".join(plan(shared=Path("/data")).lines())
    assert "active tests on n[1-4] (4 nodes, 32 GPUs):" in text
    for words in ("each listens on 29500", "n1 writes 64 MiB, all see and read it: /data", "torch of    /venv/bin/python",
                  "256 MiB by pairs, then all: 3 rounds, 14 at most", "nothing stays behind"):  # fmt: skip
        assert words in text
    quick, worst = plan().seconds()
    assert 5 < quick < 90 < worst


def test_estimate_of_nodes_without_gpus_is_near_what_they_take() -> None:
    """Three of them took 15 s where the plan said "about 46 s"."""
    needs = h.needs(device="cpu")
    fleet = h.fleet(needs, **{name: {"gpus": GpuFacts("no-tool")} for name in h.NAMES})
    made = plan(dataclasses.replace(fleet, nodes=fleet.nodes[:3]))
    assert len(made.nodes) == 3
    assert 10 < made.seconds()[0] < 30
    assert f"about {made.seconds()[0]:.0f} s or less where all is well" in "\n".join(made.lines())


def test_busy_gpus_are_refused_and_their_processes_named() -> None:
    process = GpuProcess(88121, "GPU-1", 1 << 30, "python", "alice", 11000.0, "python train.py")
    busy = h.fleet(n3={"gpus": h.gpu_facts(processes=(process,))})
    with pytest.raises(Declined) as error:
        plan(busy)
    assert "n3: 1 process on the GPUs: alice python (3 h 03 min), pid 88121" in str(error.value)
    assert error.value.exit_code == 4
    assert "-x n3" in str(error.value.hint)


def test_nodes_that_cannot_be_asked_about_their_gpus_are_left_out_with_the_reason() -> None:
    hung = GpuFacts("hung", "nvidia-smi: no end in 10 s")
    unsure = dataclasses.replace(h.gpu_facts(), processes=Unknown("no end in 10 s"))
    fleet = h.fleet(
        n2={"gpus": hung}, n3={"gpus": unsure}, n4={"unreached": Unreached("tcp", 3.0, "silent")}
    )
    made = plan(fleet)
    assert made.nodes == ("n1",)
    assert set(made.left_out) == {"n2", "n3", "n4"}
    assert "could not be found out: no end in 10 s" in made.left_out["n3"]


def test_on_a_cpu_every_node_is_one_rank_and_nobody_asks_about_gpus() -> None:
    made = plan(h.fleet(h.needs(device="cpu"), n3={"gpus": GpuFacts("no-tool")}))
    assert (made.device, made.devices) == ("cpu", dict.fromkeys(h.NAMES, 1))


@pytest.mark.parametrize(
    ("only", "without", "chosen"),
    [
        ([], [], ["port", "token", "matmul", "products", "copies", "allreduce"]),
        (["active.matmul"], [], ["matmul"]),
        (["active.compute"], [], ["products"]),
        (["gpu"], [], []),
        (
            ["active"],
            ["active.allreduce", "active.token"],
            ["port", "token", "matmul", "products", "copies"],
        ),
        ([], ["active"], []),
    ],
)
def test_checks_that_are_wanted_choose_the_tests(only, without, chosen) -> None:
    assert chosen_tests(only, without) == chosen
