"""clusterctl run: real shells, on nodes that are this machine."""

from __future__ import annotations

from pathlib import Path

from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.interface.cases import case
from tests.interface.machines import DEAD
from tests.interface.shell import Shell


def _nodes(shell: Shell) -> LocalCluster:
    return patch(shell.patches, LocalCluster(Path.cwd(), ["n1", "n2"]))


@case("run.good")
def good(shell: Shell) -> None:
    """Equal answers, different ones, none."""
    _nodes(shell)
    shell.run("clusterctl run 'echo hello; echo again' nodes.txt")
    shell.run("clusterctl run 'echo $NODE' --no-fold")
    shell.run("clusterctl run 'echo one; echo $NODE' --diff -v")
    shell.run("clusterctl run 'echo $NODE' --json")
    shell.run("clusterctl run true -q")


@case("run.bad")
def bad(shell: Shell) -> None:
    """A command that fails, one that takes too long, a dead node, no command."""
    nodes = _nodes(shell)
    shell.run("clusterctl run 'echo out; echo err >&2; [ $NODE = n1 ] || exit 3'")
    shell.run("clusterctl run 'kill -9 $$' -w n1")
    shell.run("clusterctl run 'exec sleep 60' -w n1 --command-timeout 0.3")
    nodes.nodes["n2"] = DEAD
    shell.run("clusterctl run 'echo hello'")
    shell.run("clusterctl run 'echo hello' -q")
    shell.run("clusterctl run 'echo hello' --json")
    shell.run("clusterctl run")
