"""clusterctl launch up to the moment in which it would start something, and clusterctl demo."""

from __future__ import annotations

from tests.checks.envelopes import raw
from tests.interface.cases import case
from tests.interface.machines import start
from tests.interface.shell import Shell

LINE = "clusterctl launch c.py nodes.txt --python /venv/bin/python --outputs /data"
VOLATILE = (r"\.plan\.(run_id|job_id|ports.*)",)


def _config(shell: Shell) -> None:
    data = "dataset = dict(data_path='/data/clips.csv')"
    shell.write("c.py", f"model = dict(type='STDiT3-XL/2')\n{data}\n")


@case("launch.plan")
def plan(shell: Shell) -> None:
    """The plan, its environment and commands; nodes asked, and not."""
    _config(shell)
    start(shell, "n1", "n2")
    shell.run(f"{LINE} --dry-run --lr 1e-4 --dataset.data-path /data/clips.csv")
    shell.run(f"{LINE} --dry-run --skip-preflight --nproc_per_node 2 --nccl h100-ib --env A=1")
    shell.run(f"{LINE} --dry-run --skip-preflight --device cpu -q")
    shell.run(f"{LINE} --dry-run --env-from-facts -v")


@case("launch.unknown")
def unknown(shell: Shell) -> None:
    """A dry run of nodes that do not answer: with GPUs seen on others, and without."""
    _config(shell)
    cluster = start(shell, "n1", "n2")
    cluster.kill("n2")
    shell.run(f"{LINE} --dry-run --json", volatile=VOLATILE)
    cluster.kill("n1")
    shell.run(f"{LINE} --dry-run")
    shell.run(f"{LINE} --dry-run --device cpu -q")


@case("launch.json")
def as_json(shell: Shell) -> None:
    """The plan as JSON."""
    _config(shell)
    start(shell, "n1", "n2")
    shell.run(f"{LINE} --dry-run --lr 1e-4 --json", volatile=VOLATILE)


@case("launch.no-go")
def no_go(shell: Shell) -> None:
    """Preflight says no: no interpreter, GPUs in use, a dead node, too little room."""
    _config(shell)
    cluster = start(shell, "n1", "n2", "n3", "n4")
    cluster["n2"].sections["python"] = raw("", None, "missing", "not found: /venv/bin/python")
    cluster["n3"].sections["gpu_processes"] = raw(
        "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "GPU-b42dd28e-ffdd-8720-1df0-98bd8cdc05b1, 88121, /opt/venv/bin/python, 71202 MiB\n"
    )
    cluster.kill("n4")
    shell.run(f"{LINE}")
    shell.run(f"{LINE} --json -w n[1-2]")
    shell.run(f"{LINE} -w n3")
    shell.run(f"{LINE} -w n4")
    shell.run(f"{LINE} -w n1 --min-free 1e6")
    shell.run(f"{LINE} -w n4 --env-from-facts")


@case("launch.usage")
def usage(shell: Shell) -> None:
    """Options, configs and variables that are no good."""
    _config(shell)
    start(shell, "n1", "n2")
    shell.run("clusterctl launch")
    shell.run("clusterctl launch nothing --dry-run --skip-preflight")
    shell.run(f"{LINE} --nproc_per_nod 2")
    shell.run(f"{LINE} --dry-run --lrr 3")
    shell.run("clusterctl launch c.py --nosuch nodes.txt")
    shell.run(f"{LINE} --dry-run --skip-preflight --nccl fast")
    shell.run(f"{LINE} --dry-run --skip-preflight --env 'A B=1'")
    shell.run(f"{LINE} --dry-run --skip-preflight --env NOT_SET_HERE")
    shell.run(f"{LINE} --dry-run --skip-preflight --env API_KEY=secret -q")
    shell.run(f"{LINE} --dry-run --skip-preflight --share no-such-group")
    shell.run("clusterctl launch c.py --dry-run --skip-preflight --python python3")
    shell.run(f"{LINE} --dry-run --skip-preflight -w n7")


@case("demo.usage")
def demo(shell: Shell) -> None:
    """Options that are no good."""
    shell.run("clusterctl demo --steps 0")
    shell.run("clusterctl demo --seed x")
    shell.run("clusterctl demo extra")
