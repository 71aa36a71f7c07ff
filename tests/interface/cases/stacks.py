"""clusterctl dump-stacks, on stacks that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.clusterctl.hostile.node import Orders
from tests.clusterctl.stacks import made
from tests.clusterctl.stacks.counting import SPINS, answering, places, with_gpus
from tests.clusterctl.stacks.ras_answers import Comm
from tests.clusterctl.stacks.ras_answers import as_json as ras_json
from tests.interface.cases import case
from tests.interface.machines import Answer, Cluster, packed, start
from tests.interface.shell import Shell

RIGHTS = {"uid": 1000, "scope": 0, "capable": False}
NO_COUNTERS = {"ras": [], "addresses": [], "inner": {}, "gpus": None}
FAST = "--interval 0.1"


def _cluster(shell: Shell, reports: list[made.Made]) -> Cluster:
    cluster = start(shell, *(report.name for report in reports))
    for report in reports:
        machine = cluster[report.name]

        def say(
            args: dict[str, Any], _orders: Orders, report: made.Made = report
        ) -> Iterator[Answer]:
            envelope = cluster[report.name].envelope("stacks")
            surroundings = {"logs": {}, "flight": {}, "kernel": [], "kernel_cut_s": None, "open": {}, "source": {}, "late": [], "counters": NO_COUNTERS}  # fmt: skip
            value = report.result().value or {}
            samples = [{"at_s": 0.1, "seconds": 0.1, **one} for one in value["samples"]]
            yield packed({**value, "samples": samples, "others": 0, "node": envelope["node"], "rights": RIGHTS, "seconds": 0.2, **surroundings, **report.more})  # fmt: skip

        machine.says = {"stacks": say}
    return cluster


def _hanging() -> list[made.Made]:
    """Four ranks of two nodes; rank 2 waits for its data."""
    return made.cluster(2, 2, 1, {2: made.WAIT_DATA})


@case("dump-stacks.hang")
def hang(shell: Shell) -> None:
    """One rank waits for data, the others for it."""
    _cluster(shell, _hanging())
    shell.run(f"clusterctl dump-stacks {FAST}")
    shell.run(f"clusterctl dump-stacks {FAST} --all")
    shell.run(f"clusterctl dump-stacks {FAST} -q")
    shell.run(f"clusterctl dump-stacks {FAST} --out dump --speedscope dump.json -q")


@case("dump-stacks.counts")
def counts(shell: Shell) -> None:
    """All stacks agree; NCCL's counts differ, then they are equal."""
    for behind in (1, 0):
        launched = [{"AllReduce": 700 - behind * (rank == 5)} for rank in range(8)]
        comm = Comm(0x27A079B828FF1A75, launched, places(8, 2))
        reports = answering(made.cluster(4, 2, 0), *[ras_json([comm])] * 2, silent=(3,))
        _cluster(shell, with_gpus(reports, [SPINS] * 8))
        shell.run(f"clusterctl dump-stacks {FAST} -v")
    shell.run(f"clusterctl dump-stacks {FAST} --json")


@case("dump-stacks.json")
def as_json(shell: Shell) -> None:
    """As JSON: one rank waits for data, one node is dead."""
    _cluster(shell, _hanging()).kill("node-001")
    shell.run(f"clusterctl dump-stacks {FAST} --json")


@case("dump-stacks.moving")
def moving(shell: Shell) -> None:
    """Ranks that compute."""
    reports = made.cluster(2, 2, 0, dict.fromkeys(range(4), made.FORWARD), ticks=200)
    _cluster(shell, reports)
    shell.run(f"clusterctl dump-stacks {FAST}")
    shell.run(f"clusterctl dump-stacks {FAST} -q")


@case("dump-stacks.none")
def none(shell: Shell) -> None:
    """Nothing there; all nodes dead; two reports compared."""
    cluster = _cluster(shell, [made.Made("n1", samples=0), made.Made("n2", samples=0)])
    shell.run(f"clusterctl dump-stacks {FAST}")
    shell.run(f"clusterctl dump-stacks {FAST} --match train.py")
    shell.run(f"clusterctl dump-stacks {FAST} --json")
    cluster.kill("n1")
    cluster.kill("n2")
    shell.run(f"clusterctl dump-stacks {FAST}")


@case("dump-stacks.diff")
def diff(shell: Shell) -> None:
    """Two reports compared."""
    _cluster(shell, _hanging())
    shell.quiet(f"clusterctl dump-stacks {FAST} --out before -q")
    _cluster(shell, made.cluster(2, 2, 1, {2: made.FORWARD}))
    shell.quiet(f"clusterctl dump-stacks {FAST} --out after -q")
    shell.run("clusterctl dump-stacks --diff before after")
    shell.run("clusterctl dump-stacks --diff before before")
    shell.run("clusterctl dump-stacks --diff before after --json")
    shell.write("no-report/report.json", "{}")
    shell.run("clusterctl dump-stacks --diff before no-report")
    shell.run("clusterctl dump-stacks --diff before missing")


@case("dump-stacks.usage")
def usage(shell: Shell) -> None:
    """Options that are no good."""
    start(shell, "n1")
    shell.run("clusterctl dump-stacks --run a --gpus")
    shell.run("clusterctl dump-stacks --samples 0")
    shell.run("clusterctl dump-stacks --ras 28028")
    shell.run("clusterctl dump-stacks --ras 127.0.0.1:28028 --no-ras")
    shell.run("clusterctl dump-stacks --sites missing.toml")
    shell.write("bad.toml", "[[site]]\nkind = 'code'\nwhere = 'x'\n")
    shell.run("clusterctl dump-stacks --sites bad.toml")
