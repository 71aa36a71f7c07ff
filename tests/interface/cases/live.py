"""clusterctl top, watch and export: replayed runs, the invented cluster, nodes that answer."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clusterctl.hostile.node import Orders
from tests.dashboards.runs import BEGAN, record, write_run
from tests.interface.cases import case
from tests.interface.machines import Answer, start
from tests.interface.shell import Shell
from trainer.runlog.telemetry import Writer

RUN = "outputs/001-STDiT3-demo"
# Of the invented cluster, whose figures go with the time.
INVENTED = (r"\.nodes\[\]\.reading\..*", r"\.run\..*", r"\.usage\..*", r"\.odd\[\].*")
READING = {
    "cpus": 64, "driver": "565.57.01", "up": 90000.0, "cpu": 0.25, "load1": 3.5, "mem": [4096, 65536], "net": 1.5,
    "gpus": 2, "g0": [300.0, 99, 40960, 55, 1755, 0, 9000], "g1": [310.0, 98, 40960, 57, 1755, 0, 9000],
    "h0": ["NVIDIA H100 80GB HBM3", 700, 81559, "00000000:18:00.0", 0, 18, 18],
    "h1": ["NVIDIA H100 80GB HBM3", 700, 81559, "00000000:2A:00.0", 0, 18, 18],
    "links": 1, "L0": ["eth0", "Ethernet", "up", 25, 0], "l0": [1.0, 1.0, 0], "disks": [["/", 1000, 2000, ""]],
    "procs": [],
}  # fmt: skip


def _says(reading: dict[str, Any]) -> Any:
    """A watcher that is never told apart from ours by its clock: questions for the time stay open."""

    def watch(_args: dict[str, Any], orders: Orders) -> Iterator[Answer]:
        yield {"n": 1, "key": reading}
        for number in range(2, 10_000):
            try:
                if not orders.get(timeout=0.01):
                    return
            except queue.Empty:
                yield {"n": number, "d": {}}

    return watch


def _stalled(folder: Path) -> None:
    """200 steps, then three minutes without one, then ten seconds of steps."""
    write_run(folder, steps=200)
    writer = Writer(folder)
    for step in range(201, 234):
        writer.write(record(step, time_s=BEGAN + 4 + step * 0.3 + 180))
    writer.close()


@case("top.replay")
def replay(shell: Shell) -> None:
    """The end of a finished run, and of one that stalled."""
    write_run(Path(RUN), steps=300, total=300)
    shell.run(f"clusterctl top --replay {RUN}")
    shell.run(f"clusterctl top --replay {RUN} -q")
    shell.run(f"clusterctl top --replay {RUN} --json")
    shell.run("clusterctl top --once")


@case("top.nodes")
def nodes(shell: Shell) -> None:
    """Nodes that answer, a GPU that is an error, a dead node."""
    cluster = start(shell, "n1", "n2", "n3")
    cluster["n1"].says = {"watch": _says(READING)}
    cluster["n2"].says = {"watch": _says({**READING, "g1": "GPU is lost"})}
    cluster.kill("n3")
    shell.run("clusterctl top --once -w n1")
    shell.run("clusterctl top --once")
    shell.run("clusterctl top --once -q")
    shell.run("clusterctl top --json")


@case("top.demo")
def demo(shell: Shell) -> None:
    """The invented cluster as JSON."""
    shell.run("clusterctl top --demo --json", volatile=INVENTED)


@case("top.usage")
def usage(shell: Shell) -> None:
    """Options that do not go together, folders that hold no run."""
    write_run(Path(RUN), steps=5)
    shell.run("clusterctl top --web --once")
    shell.run("clusterctl top --record a.rec --once")
    shell.run("clusterctl top --demo --theme clusterctl-dya")
    shell.run(f"clusterctl top --record a.rec --replay {RUN}")
    shell.run("clusterctl top --speed 3")
    shell.run(f"clusterctl top --demo --replay {RUN}")
    shell.run("clusterctl top --replay missing")
    shell.write("none.rec", "nothing")
    shell.run("clusterctl top --replay none.rec")
    shell.run("clusterctl top --run missing")
    shell.run("clusterctl top missing.txt -w n1")
    shell.run("clusterctl top missing.txt --run outputs --once")


@case("watch.replay")
def watch(shell: Shell) -> None:
    """A run that stalled: lines, JSON lines, chosen alerts, a hook."""
    _stalled(Path(RUN))
    shell.run(f"clusterctl watch --replay {RUN}")
    shell.run(f"clusterctl watch --replay {RUN} -v")
    shell.run(f"clusterctl watch --replay {RUN} -q")
    shell.run(f"clusterctl watch --replay {RUN} --json")
    shell.run(f"clusterctl watch --replay {RUN} --check gpu")
    shell.run(f"clusterctl watch --replay {RUN} --exec 'false x'")


@case("watch.nodes")
def watched(shell: Shell) -> None:
    """One look at a node that has lost a GPU, at a dead one; of both at once the first to answer is first."""
    cluster = start(shell, "n1", "n2", "n3")
    cluster["n1"].says = {"watch": _says(READING)}
    cluster["n2"].says = {"watch": _says({**READING, "g1": "GPU is lost"})}
    cluster.kill("n3")
    shell.run("clusterctl watch --once --interval 0.2 -w n[1-2]")
    shell.run("clusterctl watch --once --interval 0.2 --json -w n[1,3]")


@case("watch.list")
def alerts(shell: Shell) -> None:
    """All alerts."""
    shell.run("clusterctl watch --list")
    shell.run("clusterctl watch --list --json")


@case("watch.usage")
def watch_usage(shell: Shell) -> None:
    """Options that do not go together, alerts and hooks that are not there."""
    write_run(Path(RUN), steps=5)
    shell.run(f"clusterctl watch --record a.rec --replay {RUN}")
    shell.run("clusterctl watch --once --for 3")
    shell.run(f"clusterctl watch --replay {RUN} --check gpu.misssing")
    shell.run(f"clusterctl watch --replay {RUN} --skip nothing")
    shell.run(f"clusterctl watch --replay {RUN} --exec no-such-program")
    shell.run(f"clusterctl watch --replay {RUN} --exec ''")
    shell.run("clusterctl watch --replay missing")
    shell.run("clusterctl watch missing.txt -w n1 --once")


@case("export.once")
def export(shell: Shell) -> None:
    """Metrics of nodes, written once."""
    cluster = start(shell, "n1", "n2")
    cluster["n1"].says = {"watch": _says(READING)}
    cluster.kill("n2")
    shell.run("clusterctl export --once - --interval 0.2")


@case("export.print")
def printed(shell: Shell) -> None:
    """Prometheus' rules."""
    shell.run("clusterctl export --print rules")


@case("export.board")
def board(shell: Shell) -> None:
    """The board for Grafana."""
    shell.run("clusterctl export --print board")


@case("export.usage")
def export_usage(shell: Shell) -> None:
    """Options that are no good."""
    shell.write("nodes.txt", "n1\n")
    shell.run("clusterctl export --json")
    shell.run("clusterctl export --listen here")
    shell.run("clusterctl export --listen 127.0.0.1:99999")
    shell.run("clusterctl export --once missing/x.prom")
    shell.run("clusterctl export --print nothing")
