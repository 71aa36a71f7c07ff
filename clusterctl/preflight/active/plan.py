"""What the active tests will do, how long it can take, and when they must not begin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from checks.facts import Fleet, NodeFacts, Unknown
from checks.rules.gpu import describe
from clusterctl.errors import Declined
from clusterctl.nodes import counted, fold
from clusterctl.preflight.active.fault_isolation import most_rounds, ring_rounds

TESTS = {
    "port": ("active.port",),
    "token": ("active.token", "active.read"),
    "matmul": ("active.matmul",),
    "allreduce": ("active.allreduce",),
}
"""In the order in which they run, what is cheap and explains the rest first; and their checks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is tested, with what, and how long each step may take; seconds."""

    nodes: tuple[str, ...]
    device: Literal["cuda", "cpu"]
    devices: Mapping[str, int]  # GPUs of each node; 1 on a CPU
    python: str
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    shared: Path | None = None
    tests: tuple[str, ...] = tuple(TESTS)
    left_out: Mapping[str, str] = field(default_factory=dict)  # nodes and why
    start_s: float = 90.0  # import torch from a cold shared folder, CUDA contexts
    matmul_s: float = 2.0
    group_s: float = 15.0  # for a group to meet and to sum; grows with the ranks
    token_s: float = 10.0  # for a token to be seen
    blocks: int = 64  # MiB to read

    @property
    def bytes(self) -> int:
        """Of the big all-reduce."""
        return 256 << 20 if self.device == "cuda" else 1 << 20

    def group_limit_s(self, ranks: int) -> float:
        """NCCL takes about a second for each few dozen ranks to meet."""
        return self.group_s + 0.05 * ranks

    def lines(self) -> list[str]:
        """The plan for people, a line for each step."""
        count = len(self.nodes)
        total = sum(self.devices[node] for node in self.nodes)
        what = f"{total} GPUs" if self.device == "cuda" else "CPU"
        lines = [f"active tests on {fold(self.nodes)} ({counted(count, 'node')}, {what}):"]
        if "port" in self.tests:
            lines.append(
                f"  port        each listens on {self.port}; the next connects, all to the first"
            )
        if "token" in self.tests and self.shared is not None:
            lines.append(
                f"  token       {self.nodes[0]} writes {self.blocks} MiB, "
                f"all see and read it: {self.shared}"
            )
        if "matmul" in self.tests:
            lines.append(f"  matmul      on every device for {self.matmul_s:g} s, slow ones again")
        if "allreduce" in self.tests and count > 1:
            rounds, most = len(ring_rounds(self.nodes)) + 1, most_rounds(count)
            lines.append(
                f"  all-reduce  {self.bytes >> 20} MiB by pairs, then all: {rounds} rounds, "
                f"{most} at most to name one fault"
            )
        if {"matmul", "allreduce"} & set(self.tests):
            lines.append(f"  torch of    {self.python}")
        quick, worst = self.seconds()
        lines.append(
            f"  about {quick:.0f} s where all is well, at most {worst / 60:.0f} min; "
            "nothing stays behind"
        )
        if self.left_out:
            lines += [f"  left out: {node}: {why}" for node, why in self.left_out.items()]
        return lines

    def seconds(self) -> tuple[float, float]:
        """(where all is well, at the very most)."""
        count, ranks = len(self.nodes), sum(self.devices.values())
        quick, worst = 5.0 + 0.02 * count, 30.0
        if "port" in self.tests:
            quick, worst = quick + 1, worst + 15
        if "token" in self.tests and self.shared is not None:
            quick, worst = quick + 3, worst + 2 * self.token_s + 60
        if "matmul" in self.tests:
            quick, worst = (
                quick + self.matmul_s + 10,
                worst + self.start_s + 2 * (self.matmul_s + 30),
            )
        if "allreduce" in self.tests and count > 1:
            rounds = len(ring_rounds(self.nodes)) + 1
            quick += 2.0 * rounds + 0.02 * ranks
            worst += most_rounds(count) * (self.group_limit_s(ranks) + 10)
        return quick, math.ceil(worst)


def refuse_busy(nodes: Sequence[NodeFacts]) -> None:
    """Raises `Declined` that names the processes when a GPU has one: a test would slow it down."""
    busy = [
        f"{node.name}: {describe(node.gpus.processes)}, pid "
        + " ".join(str(pid) for pid in dict.fromkeys(one.pid for one in node.gpus.processes))
        for node in nodes
        if not isinstance(node.gpus.processes, Unknown) and node.gpus.processes
    ]
    if busy:
        names = fold([line.split(":")[0] for line in busy])
        more = f"; and {len(busy) - 3} more nodes" if len(busy) > 3 else ""
        raise Declined(
            f"nothing was tested, GPUs are busy: {'; '.join(busy[:3])}{more}",
            hint=f"leave them out: -x {names}; or end what holds them: clusterctl kill --gpus",
        )


def make_plan(
    fleet: Fleet,
    *,
    python: str,
    port: int,
    env: Mapping[str, str] | None = None,
    shared: Path | None = None,
    tests: Sequence[str] = tuple(TESTS),
    patience_s: float = 15.0,
) -> Plan:
    """What to do with the nodes that preflight has reached. Raises `Declined` for busy GPUs.

    A node whose GPUs cannot be asked who is on them is left out, and so is one without a GPU among
    nodes that have some.
    """
    device: Literal["cuda", "cpu"] = "cuda" if fleet.device == "cuda" else "cpu"
    left_out = {node.name: "not reached" for node in fleet.nodes if node.unreached is not None}
    nodes = [node for node in fleet.nodes if node.unreached is None]
    devices = {node.name: 1 for node in nodes}
    if device == "cuda":
        refuse_busy(nodes)
        for node in nodes:
            devices[node.name] = len(node.gpus.gpus)
            if not node.gpus.gpus:
                left_out[node.name] = (
                    f"no GPU answers there: {node.gpus.summary or node.gpus.state}"
                )
            elif isinstance(node.gpus.processes, Unknown):
                why = node.gpus.processes.reason
                left_out[node.name] = f"who is on its GPUs could not be found out: {why}"
    names = tuple(node.name for node in nodes if node.name not in left_out)
    return Plan(
        names,
        device,
        {name: devices[name] for name in names},
        python,
        port,
        dict(env or {}),
        shared,
        tuple(tests),
        left_out,
        group_s=patience_s,
    )
