"""clusterctl stop and clusterctl kill, on jobs that are only told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.clusterctl.hostile.node import Orders
from tests.interface.cases import case
from tests.interface.machines import Answer, Cluster, Machine, start
from tests.interface.shell import Shell

RUN = "run-1"


def row(pid: int, role: str, rank: int | None, **more: Any) -> dict[str, Any]:
    """A process of a run as the payload tells of it."""
    plain = {
        "pid": pid, "ppid": 1, "start": 100 + pid, "state": "S", "user": "me", "command": "python",
        "program": "python -m trainer.train stage1", "role": role, "index": None, "rank": rank, "world": 4,
        "run": RUN, "node": None, "run_dir": "/data/001-STDiT3", "age_s": 4000.0,
    }  # fmt: skip
    return {**plain, **more}


def _job(first: int) -> list[dict[str, Any]]:
    return [
        row(1000, "launcher", None, program="python -m trainer.starter"),
        row(1001, "trainer", first),
        row(1002, "trainer", first + 1),
        row(1003, "loader", first, index=0, ppid=1001),
    ]


def _answers(
    machine: Machine, rows: list[dict[str, Any]], **more: Any
) -> Callable[[dict[str, Any], Orders], Iterator[Answer]]:
    """What `kill` and `stop` say on a node with these processes; `more` replaces parts of how it ended."""

    def kill(args: dict[str, Any], _orders: Orders) -> Iterator[Answer]:
        if args["op"] == "look":
            found = {
                "rows": [{**one, "gpu_bytes": 0} for one in rows],
                "others": [],
                "waiting": [{**one, "node": machine.name} for one in more.get("waiting", ())],
                "machine": machine.name,
            }
            yield machine.envelope("kill", **{**found, "login": "me", "notes": [], **more.get("look", {})})  # fmt: skip
            return
        count = len(args["targets"])
        ended = {
            "left": [], "zombies": [], "gpu_left": [], "gpu_unknown": "", "unmarked": "", "asked": count,
            "missed": 0, "swept": 0, "forced": 0, "seconds": 1.2,
        }  # fmt: skip
        yield machine.envelope("kill", **{**ended, **more.get("ended", {})})

    return kill


def _stopping(
    machine: Machine, rows: list[dict[str, Any]], **more: Any
) -> Callable[[dict[str, Any], Orders], Iterator[Answer]]:
    beat = {"step": 40, "phase": "forward", "age_s": 0.3}

    def stop(args: dict[str, Any], _orders: Orders) -> Iterator[Answer]:
        if args["op"] == "look":
            found = [
                {**one, "asks": more.get("asks", True), "beat": beat} if one["role"] == "trainer" else one
                for one in rows
            ]  # fmt: skip
            waiting = [{**one, "node": machine.name} for one in more.get("waiting", ())]
            parts = {"rows": found, "others": [], "waiting": waiting, "machine": machine.name}
            yield machine.envelope("stop", **parts)
            return
        ended = {
            "left": [], "rest": 0, "asked": len(args["targets"]), "gone": 0, "unmarked": "",
            "saved": "/data/001-STDiT3/epoch0-global_step41", "seconds": 3.0,
        }  # fmt: skip
        yield machine.envelope("stop", **{**ended, **more.get("ended", {})})

    return stop


def _cluster(shell: Shell, count: int = 2, **more: Any) -> Cluster:
    """Nodes with two ranks each; `more` for the last one."""
    names = [f"n{number + 1}" for number in range(count)]
    cluster = start(shell, *names)
    for number, name in enumerate(names):
        machine, rows = cluster[name], _job(2 * number)
        own = more if number == count - 1 else {}
        machine.says = {"kill": _answers(machine, rows, **own), "stop": _stopping(machine, rows, **own)}  # fmt: skip
    return cluster


WAITS = {
    "run": RUN, "job": "1", "run_dir": "/data/001-STDiT3", "head": "me@head, process 77", "attempt": 1, "since_s": 1.79e9,
    "text": "1 node can be used of the 2 that are needed (n2: it is out of reach)", "user": "me",
}  # fmt: skip


def _waiting(shell: Shell) -> Cluster:
    """A run between two attempts, which only the nodes tell of."""
    cluster = start(shell, "n1", "n2")
    for name in ("n1", "n2"):
        machine = cluster[name]
        stop = _stopping(machine, [], waiting=[WAITS], ended={"saved": None})
        machine.says = {"kill": _answers(machine, [], waiting=[WAITS]), "stop": stop}
    return cluster


@case("kill.waiting")
def kill_waiting(shell: Shell) -> None:
    """A run that waits for nodes is ended: no process of it need be there."""
    _waiting(shell)
    shell.run("clusterctl kill")
    shell.run("clusterctl kill --yes")
    shell.run("clusterctl kill --yes --json")


@case("stop.waiting")
def stop_waiting(shell: Shell) -> None:
    """A run that waits for nodes is ended; one that no node knows is remembered."""
    _waiting(shell)
    shell.run("clusterctl stop --yes")
    shell.run("clusterctl stop --run run-3 --yes")


def _empty(shell: Shell) -> Cluster:
    cluster = start(shell, "n1", "n2")
    for name in ("n1", "n2"):
        machine = cluster[name]
        machine.says = {"kill": _answers(machine, []), "stop": _stopping(machine, [])}
    return cluster


@case("kill.good")
def kill(shell: Shell) -> None:
    """A run on two nodes is ended."""
    _cluster(shell)
    shell.run("clusterctl kill --dry-run")
    shell.run("clusterctl kill --dry-run -v")
    shell.run("clusterctl kill --yes")
    shell.run("clusterctl kill --yes -q")
    shell.run("clusterctl kill --yes --signal KILL --match train")


@case("kill.json")
def kill_json(shell: Shell) -> None:
    """As JSON: the plan, the end, something that is left and a dead node."""
    left = {"pid": 1001, "ppid": 1, "state": "D", "command": "python", "waits_in": "nfs", "rank": 2, "age_s": 1.0, "why": "sleeps in the kernel (nfs)"}  # fmt: skip
    _cluster(shell)
    shell.run("clusterctl kill --dry-run --json")
    shell.run("clusterctl kill --yes --json")
    cluster = _cluster(
        shell, 3, ended={"left": [left], "gpu_left": [{"pid": 1002, "bytes": 1 << 30}]}
    )
    cluster.kill("n1")
    shell.run("clusterctl kill --yes --json")


@case("kill.bad")
def kill_bad(shell: Shell) -> None:
    """What is left, what nobody can tell, a dead node, others' processes, no yes."""
    left = {"pid": 1001, "ppid": 1, "state": "D", "command": "python", "waits_in": "nfs", "rank": 2, "age_s": 1.0, "why": "sleeps in the kernel (nfs)"}  # fmt: skip
    _cluster(shell)
    shell.run("clusterctl kill")
    _cluster(
        shell, ended={"left": [left], "gpu_left": [{"pid": 1002, "bytes": 3 << 30}], "forced": 1}
    )
    shell.run("clusterctl kill --yes")
    zombie = {"pid": 1002, "ppid": 1, "command": "python"}
    _cluster(shell, ended={"gpu_unknown": "nvidia-smi: no end in 10 s", "zombies": [zombie]})
    shell.run("clusterctl kill --yes")
    others = [row(2000, "trainer", 0, user="you")]
    cluster = _cluster(
        shell, look={"others": others, "notes": ["/proc hides other users' processes"]}
    )
    cluster.kill("n1")
    shell.run("clusterctl kill --yes")
    shell.run("clusterctl kill --dry-run -w n1")


@case("kill.none")
def kill_none(shell: Shell) -> None:
    """Nothing is there, or more than one run."""
    _empty(shell)
    shell.run("clusterctl kill")
    shell.run("clusterctl kill --json")
    shell.run("clusterctl kill --match train.py")
    shell.run("clusterctl kill --gpus")
    shell.run("clusterctl kill --run run-3")
    cluster = _cluster(shell)
    other = [row(1001, "trainer", 0, run="run-2")]
    cluster["n2"].says["kill"] = _answers(cluster["n2"], other)
    shell.run("clusterctl kill --yes")
    shell.run("clusterctl kill --yes --all-runs")


@case("kill.usage")
def kill_usage(shell: Shell) -> None:
    """Ways to say which job that do not go together, bad expressions, bad signals."""
    start(shell, "n1")
    shell.run("clusterctl kill --run a --gpus")
    shell.run("clusterctl kill --match 'a('")
    shell.run("clusterctl kill --match 'a*'")
    shell.run("clusterctl kill --signal STOP")
    shell.run("clusterctl kill --signal 99")
    shell.run("clusterctl kill --grace soon")


@case("stop.good")
def stop(shell: Shell) -> None:
    """A run on two nodes saves and ends."""
    _cluster(shell)
    shell.run("clusterctl stop --dry-run")
    shell.run("clusterctl stop --yes")
    shell.run("clusterctl stop --yes -q")
    shell.run("clusterctl stop --yes --json")


@case("stop.bad")
def stop_bad(shell: Shell) -> None:
    """Ranks that still run, that cannot save, a dead node, nothing there, no yes."""
    _cluster(shell)
    shell.run("clusterctl stop")
    beat = {"step": 41, "phase": "save", "age_s": 9.0}
    left = {"pid": 1001, "ppid": 1, "state": "S", "command": "python", "waits_in": None, "rank": 2, "age_s": 1.0, "beat": beat, "why": ""}  # fmt: skip
    _cluster(shell, ended={"left": [left], "saved": None})
    shell.run("clusterctl stop --yes")
    shell.run("clusterctl stop --yes --json")
    _cluster(shell, asks=False)
    shell.run("clusterctl stop --yes")
    _cluster(shell).kill("n1")
    shell.run("clusterctl stop --yes")
    _empty(shell)
    shell.run("clusterctl stop")
    shell.run("clusterctl stop --json")
