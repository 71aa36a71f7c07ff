"""clusterctl fabric and clusterctl env."""

from __future__ import annotations

from tests.checks.envelopes import raw, sections
from tests.interface.cases import case
from tests.interface.machines import start
from tests.interface.shell import Shell


def _without_port(name: str) -> dict[str, object]:
    """The cards' tree with one port down."""
    text = sections()["ib"]["out"].replace(f"{name}/ports/1/state\t4: ACTIVE", f"{name}/ports/1/state\t1: DOWN")  # fmt: skip
    return raw(text)


@case("fabric.good")
def good(shell: Shell) -> None:
    """Cards that agree."""
    start(shell, "n1", "n2")
    shell.run("clusterctl fabric --growth 0")
    shell.run("clusterctl fabric --growth 0 -v --no-fold --no-history")
    shell.run("clusterctl fabric --growth 0 -q")


@case("fabric.bad")
def bad(shell: Shell) -> None:
    """A port that is down, a node without cards, a dead node."""
    cluster = start(shell, "n1", "n2", "n3", "n4", "n5")
    cluster["n2"].sections["ib"] = _without_port("mlx5_4")
    cluster["n3"].sections["ib"] = raw("#devices\t0\n")
    cluster.kill("n4")
    shell.run("clusterctl fabric --growth 0")
    shell.run("clusterctl fabric --growth 0 -w n[1,4]")


@case("fabric.json")
def as_json(shell: Shell) -> None:
    """As JSON: a port that is down, a dead node."""
    cluster = start(shell, "n1", "n2", "n3")
    cluster["n2"].sections["ib"] = _without_port("mlx5_4")
    cluster.kill("n3")
    shell.run("clusterctl fabric --growth 0 --json")


@case("env.good")
def env(shell: Shell) -> None:
    """The environment of nodes that agree."""
    start(shell, "n1", "n2")
    shell.run("clusterctl env")
    shell.run("clusterctl env -q")
    shell.run("clusterctl env --json")
    shell.run("clusterctl env --device cpu")


@case("env.bad")
def env_bad(shell: Shell) -> None:
    """Nodes that disagree, a dead node, nobody."""
    cluster = start(shell, "n1", "n2", "n3")
    cluster["n2"].sections["ib"] = _without_port("mlx5_4")
    shell.run("clusterctl env -w n[1-2]")
    cluster.kill("n3")
    shell.run("clusterctl env -w n[1,3]")
    shell.run("clusterctl env -w n[1,3] --json")
    shell.run("clusterctl env -w n3")
    shell.run("clusterctl env --device tpu")
