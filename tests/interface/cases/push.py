"""clusterctl push, to a real ssh server on this machine."""

from __future__ import annotations

from pathlib import Path

from clusterctl.transport.loopback.nodes import LoopbackCluster
from tests.interface.cases import case
from tests.interface.shell import Shell


def _source(shell: Shell) -> None:
    shell.write("folder/a.txt", "a" * 1000)
    shell.write("folder/deep/b.txt", "b")


@case("push.good")
def good(shell: Shell) -> None:
    """A file: new, already there, replaced; a folder; a path that is not a folder."""
    _source(shell)
    with LoopbackCluster(["n1"], Path("loopback").absolute()) as nodes:
        Path("nodes.txt").write_text(nodes.hostfile.read_text())
        shell.keep("DEST", str(shell.folder / "there"))
        shell.run("clusterctl push folder/a.txt DEST/a.txt --yes")
        shell.run("clusterctl push folder/a.txt DEST/a.txt --yes")
        shell.write("folder/a.txt", "other")
        shell.run("clusterctl push folder/a.txt DEST/ --yes --json")
        shell.run("clusterctl push folder DEST/folder --yes")
        shell.run("clusterctl push folder DEST/a.txt --yes")
        shell.run("clusterctl push folder DEST/a.txt --yes --json")


@case("push.plan")
def plan(shell: Shell) -> None:
    """What would be done, and what is refused before anything is."""
    _source(shell)
    shell.write("nodes.txt", "n[1-3]\n")
    shell.run("clusterctl push folder/a.txt /data/a.txt --dry-run")
    shell.run("clusterctl push folder /data/ --dry-run")
    shell.run("clusterctl push folder /data/ --dry-run --json")
    shell.run("clusterctl push folder /data/")
    shell.run("clusterctl push missing /data/ --yes")
    shell.run("clusterctl push folder '' --yes")
    shell.run("clusterctl push folder")
    shell.run("clusterctl push folder /data/ missing.txt --yes")
