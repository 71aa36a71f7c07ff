"""clusterctl gpus."""

from __future__ import annotations

from tests.captures import fake_nvidia_smi as fake
from tests.checks.envelopes import raw
from tests.interface.cases import case
from tests.interface.machines import Cluster, start
from tests.interface.shell import Shell


def _gpus(cluster: Cluster, name: str, csv: str, apps: str | None = None, rc: int = 0) -> None:
    cluster[name].sections |= {"gpus": raw(csv, rc), "gpu_details": raw(fake.details(csv), rc)}
    if apps is not None:
        cluster[name].sections["gpu_processes"] = raw(apps)


@case("gpus.good")
def good(shell: Shell) -> None:
    """Three nodes of eight GPUs, one of them at work."""
    cluster = start(shell, "n1", "n2", "n3")
    _gpus(cluster, "n2", fake.h100(8, busy=True), fake.capture("h100-sxm-x8.apps.csv"))
    shell.run("clusterctl gpus")
    shell.run("clusterctl gpus --no-fold -q")
    shell.run("clusterctl gpus --no-fold --processes")
    shell.run("clusterctl gpus --watch --for 0.1 --interval 5")


@case("gpus.json")
def as_json(shell: Shell) -> None:
    """As JSON: a node at work, one with seven GPUs, a dead one; then JSON lines."""
    cluster = start(shell, "n1", "n2", "n3", "n4")
    _gpus(cluster, "n2", fake.h100(8, busy=True), fake.capture("h100-sxm-x8.apps.csv"))
    _gpus(cluster, "n3", fake.h100(7))
    cluster.kill("n4")
    shell.run("clusterctl gpus --json")
    shell.run("clusterctl gpus --json --watch --for 0.1 --interval 5 -w n1")


@case("gpus.bad")
def bad(shell: Shell) -> None:
    """A missing GPU, a broken driver, a hung nvidia-smi, a value that cannot be read, a dead node."""
    cluster = start(shell, "n1", "n2", "n3", "n4", "n5", "n6", "n7")
    _gpus(cluster, "n2", fake.h100(7))
    _gpus(cluster, "n3", fake.capture("driver-failed.txt"), rc=9)
    hung = raw("", None, "timeout", "no end in 10 s, killed")
    cluster["n4"].sections |= {"gpus": hung, "gpu_details": hung, "gpu_processes": hung}
    _gpus(cluster, "n5", fake.h100(8).replace("85.48 W", "[Unknown Error]"))
    _gpus(cluster, "n6", fake.capture("lost-gpu.txt"), rc=15)
    cluster.kill("n7")
    shell.run("clusterctl gpus")
    shell.run("clusterctl gpus -q")
    shell.run("clusterctl gpus -v -w n3")
    shell.run("clusterctl gpus -w n[1,7]")
    shell.run("clusterctl gpus --watch --for 0.1 --interval 5 -w n[1,7]")


@case("gpus.none")
def none(shell: Shell) -> None:
    """Nodes without a driver."""
    cluster = start(shell, "n1", "n2")
    missing = raw("", None, "missing", "not found: nvidia-smi")
    for name in ("n1", "n2"):
        cluster[name].sections |= {
            "gpus": missing,
            "gpu_details": missing,
            "pci": raw("#devices\t40"),
        }
        cluster[name].sections |= {
            "gpu_processes": missing,
            "nvlink": missing,
            "topology": missing,
            "nvidia_proc": missing,
        }
    shell.run("clusterctl gpus")
    shell.run("clusterctl gpus --processes")
    shell.run("clusterctl gpus --json")


@case("gpus.usage")
def usage(shell: Shell) -> None:
    """Options that do not go together, a profile that is none."""
    start(shell, "n1", "n2")
    shell.run("clusterctl gpus --for 3")
    shell.run("clusterctl gpus --watch --interval 0.1")
    shell.run("clusterctl gpus --profile missing.toml")
    shell.write("bad.toml", "[expected]\ngpus = [\n")
    shell.run("clusterctl gpus --profile bad.toml")
    shell.write("nine.toml", '[expected]\n"gpu.count_majority" = "9"\n')
    shell.run("clusterctl gpus --profile nine.toml")
