"""clusterctl preflight."""

from __future__ import annotations

import json

from checks.runner import all_checks
from tests.checks.envelopes import raw
from tests.interface.cases import case
from tests.interface.machines import Cluster, start
from tests.interface.shell import Shell

# Of a head that is busy these say nothing about nodes.
NODES = (
    "--python /venv/bin/python --outputs /data --workdir /data --skip time.skew,ssh.connect_time"
)
TRAINER = "--launch 'stage1 --dataset.data-path /data/clips.csv'"


def _lose_gpu(cluster: Cluster, name: str) -> None:
    nvml = json.loads(cluster[name].section("nvml", nvml=True)["out"])
    del nvml["gpus"][7]
    cluster[name].sections["nvml"] = raw(json.dumps(nvml))


@case("preflight.good")
def good(shell: Shell) -> None:
    """Healthy nodes: go."""
    start(shell, "n1", "n2", "n3")
    shell.run(f"clusterctl preflight {NODES}")
    shell.run(f"clusterctl preflight {NODES} -q")
    shell.run(f"clusterctl preflight {NODES} -v")
    shell.run(
        f"clusterctl preflight {NODES} --record good.toml --write-good good.txt --junit j.xml"
    )


@case("preflight.bad")
def bad(shell: Shell) -> None:
    """A missing GPU, a noisy shell, a full disk, no interpreter, a dead node: no-go."""
    cluster = start(shell, "n1", "n2", "n3", "n4", "n5")
    _lose_gpu(cluster, "n2")
    cluster["n3"].noise = "Welcome to n3"
    cluster["n4"].sections["python"] = raw("", None, "missing", "not found: /venv/bin/python")
    cluster.kill("n5")
    shell.run(f"clusterctl preflight {NODES}")
    shell.run(f"clusterctl preflight {NODES} -w n[1,3]")
    shell.run(f"clusterctl preflight {NODES} -w n[1,5]")
    shell.run(f"clusterctl preflight {NODES} -w n5")
    shell.run(f"clusterctl preflight {NODES} -w n[1-2] --severity gpu.count_majority=warn")


@case("preflight.json")
def as_json(shell: Shell) -> None:
    """As JSON: a missing GPU and a dead node."""
    cluster = start(shell, "n1", "n2", "n3", "n4")
    _lose_gpu(cluster, "n2")
    cluster.kill("n4")
    shell.run(f"clusterctl preflight {NODES} --json")
    shell.run(f"clusterctl preflight {NODES} --json -w n[1,3]")


@case("preflight.checks")
def checks(shell: Shell) -> None:
    """All checks in a line each, and as JSON."""
    shell.run("clusterctl preflight --list")
    shell.run("clusterctl preflight --list --json")


@case("preflight.explain")
def explain(shell: Shell) -> None:
    """What is said about each check."""
    for name in all_checks():
        shell.run(f"clusterctl preflight --explain {name}")
    shell.run("clusterctl preflight --explain time.sync --json")


@case("preflight.usage")
def usage(shell: Shell) -> None:
    """Checks that are not there, options that are no good, active tests without a yes."""
    start(shell, "n1", "n2")
    shell.run("clusterctl preflight --explain time.snyc")
    shell.run("clusterctl preflight --check gpu.drivr")
    shell.run("clusterctl preflight --severity gpu.driver=loud")
    shell.run("clusterctl preflight --severity gpu.cuont=skip")
    shell.run("clusterctl preflight --launch '--lr 1'")
    shell.run('clusterctl preflight --launch "stage1 \'x"')
    shell.run("clusterctl preflight --shared missing")
    shell.run("clusterctl preflight --env 'A B=1'")
    shell.run("clusterctl preflight --nccl fast")
    shell.run("clusterctl preflight --profile missing.toml")
    shell.run(f"clusterctl preflight {NODES} --active")
    shell.run(f"clusterctl preflight {NODES} --write-good missing/good.txt")
    shell.run(f"clusterctl preflight {NODES} --junit missing/j.xml")
