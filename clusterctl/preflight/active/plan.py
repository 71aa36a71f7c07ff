"""What the active tests will do, how long it can take, and when they must not start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from checks import units
from checks.facts import Fleet, NodeFacts, Unknown, or_none
from checks.rules.gpu import describe
from checks.units import counted
from clusterctl.errors import Declined
from clusterctl.nodes import fold, grouped
from clusterctl.preflight.active.fault_isolation import most_rounds, ring_rounds

PRODUCTS_SLACK_S = 60.0  # 8 ranks of a node make their matrices at once
CPU_PRODUCTS_S = 2.0  # a product there is small, and the cores are shared
LOCATE_S = 90.0  # to find the wrong values of those that differ from the majority
COPIES_S = 60.0
MOST_INSIDE = 3  # rounds inside the nodes before one is named: a busy machine fails now and then
TESTS = {
    "port": ("active.port",),
    "token": ("active.token", "active.read"),
    "matmul": ("active.matmul",),
    "products": ("active.compute",),
    "copies": ("active.copy",),
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
    products_s: float = 6.0  # of products that are compared bit by bit
    group_s: float = 15.0  # for a group to meet and to sum; grows with the ranks
    token_s: float = 10.0  # for a token to be seen
    blocks: int = 64  # MiB to read

    @property
    def bytes(self) -> int:
        """Of the big all-reduce."""
        return 256 << 20 if self.device == "cuda" else 1 << 20

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """Of the pattern that each device copies, and of that between devices of a node."""
        return (256 << 20, 64 << 20) if self.device == "cuda" else (4 << 20, 1 << 20)

    @property
    def needs_torch(self) -> bool:
        return bool({"matmul", "products", "copies"} & set(self.tests)) or self.has_sums

    def device_names(self, node: str) -> list[str]:
        count = self.devices[node]
        is_one_cpu = self.device == "cpu" and count == 1
        return ["cpu"] if is_one_cpu else [f"{self.device}:{at}" for at in range(count)]

    @property
    def shared_nodes(self) -> list[str]:
        """Nodes with several devices, which sum with each other before nodes do."""
        return [node for node in self.nodes if self.devices[node] > 1]

    @property
    def has_sums(self) -> bool:
        """Whether there is an all-reduce to do: with one device alone there is none."""
        return "allreduce" in self.tests and (len(self.nodes) > 1 or bool(self.shared_nodes))

    def group_limit_s(self, ranks: int) -> float:
        """NCCL takes about a second for each few dozen ranks to meet."""
        return self.group_s + 0.05 * ranks

    def lines(self) -> list[str]:
        """The plan for people, a line for each step."""
        what = f"{sum(self.devices.values())} GPUs" if self.device == "cuda" else "CPU"
        nodes = f"{fold(self.nodes)} ({counted(len(self.nodes), 'node')}, {what})"
        lines = [f"active tests on {nodes}:", *(f"  {line}" for line, _, _ in self._steps())]
        if self.needs_torch or "allreduce" in self.tests:
            lines.append(f"  torch of    {self.python}")
        quick_s, worst_s = self.seconds()
        end = f"at most {units.duration(worst_s)}; nothing stays behind"
        lines.append(f"  about {units.duration(quick_s)} or less where all is well, {end}")
        return lines + self.left_out_lines()

    def left_out_lines(self) -> list[str]:
        """Which nodes no test is for and why, those of one reason in one line."""
        reasons = grouped((why, node) for node, why in self.left_out.items())
        return [f"  left out: {fold(nodes)}: {why}" for why, nodes in reasons.items()]

    def seconds(self) -> tuple[float, float]:
        """(where all is well, at the very most)."""
        steps = list(self._steps())
        imports_s = 5.0 if self.device == "cpu" else 10.0  # torch, and the start of CUDA
        start_s = (imports_s, self.start_s) if self.needs_torch else (0.0, 0.0)
        quick_s = 5.0 + 0.02 * len(self.nodes) + start_s[0] + sum(step[1] for step in steps)
        return quick_s, math.ceil(30.0 + start_s[1] + sum(step[2] for step in steps))

    def _steps(self) -> Iterator[tuple[str, float, float]]:
        """(line, seconds where all is well, seconds at the very most) of each test."""
        count, ranks = len(self.nodes), sum(self.devices.values())
        if "port" in self.tests:
            line = f"port        each listens on {self.port}; the next connects, all to the first"
            yield line, 1, 15
        if "token" in self.tests and self.shared is not None:
            line = f"{self.nodes[0]} writes {units.size(self.blocks << 20)}"
            line = f"token       {line}, all see and read it: {self.shared}"
            yield line, 3, 2 * self.token_s + 60
        if "matmul" in self.tests:
            line = (
                f"matmul      on every device for {units.duration(self.matmul_s)}, slow ones again"
            )
            yield line, self.matmul_s, 2 * (self.matmul_s + 30)
        if "products" in self.tests:
            line = f"seeded ones for {units.duration(self.products_s)}, compared bit by bit"
            made_s = 1.0 if self.device == "cpu" else 10.0  # matrices, in the memory of each GPU
            most_s = self.products_s + PRODUCTS_SLACK_S + LOCATE_S
            yield f"products    {line}", self.products_s + made_s, most_s
        if "copies" in self.tests:
            line = f"{units.size(self.copied_bytes[0])} within each device"
            line = f"copies      {line}, to it and back, and between them"
            yield line, 1.0 if self.device == "cpu" else 5.0, 2 * COPIES_S
        if "allreduce" in self.tests and not self.has_sums:
            yield "all-reduce  skipped: one node with one device has none to sum with", 0, 0
        if self.has_sums and self.shared_nodes:
            line = f"{units.size(self.bytes)} inside each node: 1 round, {MOST_INSIDE} at most"
            yield (
                f"all-reduce  {line}",
                3.0,
                MOST_INSIDE * (self.group_limit_s(max(self.devices.values())) + 10),
            )
        if self.has_sums and count > 1:
            rounds, most = len(ring_rounds(self.nodes)) + 1, most_rounds(count)
            line = f"{rounds} rounds, {most} at most to name one fault"
            line = f"all-reduce  {units.size(self.bytes)} by pairs, then all: {line}"
            yield line, 2.0 * rounds + 0.02 * ranks, most * (self.group_limit_s(ranks) + 10)


def chosen_tests(only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Tests of which any check is wanted by --check and --skip."""

    def is_wanted(id: str) -> bool:
        names = {id, id.split(".")[0]}
        return (not only or not names.isdisjoint(only)) and names.isdisjoint(without)

    return [test for test, ids in TESTS.items() if any(map(is_wanted, ids))]


def machines(fleet: Fleet) -> dict[str, str]:
    """Nodes with one network between them are names of one machine: they cannot share a port."""
    return {
        node.name: f"{node.boot_id} {(node.namespaces.split() or [''])[0]}"
        for node in fleet.reached
        if not isinstance(node.boot_id, Unknown)
    }


def refuse_busy(nodes: Sequence[NodeFacts]) -> None:
    """Raises `Declined` that names the processes when a GPU has one: a test would slow it down."""
    busy = {}
    for node in nodes:
        if processes := or_none(node.gpus.processes):
            pids = " ".join(str(pid) for pid in dict.fromkeys(one.pid for one in processes))
            busy[node.name] = f"{node.name}: {describe(processes)}, pid {pids}"
    if busy:
        more = f"; and {len(busy) - 3} more nodes" if len(busy) > 3 else ""
        leave = f"leave them out: -x {fold(busy)}"
        raise Declined(
            f"nothing was tested, GPUs are busy: {'; '.join(list(busy.values())[:3])}{more}",
            hint=f"{leave}; or end what holds them: clusterctl kill --gpus",
        )


def make_plan(
    fleet: Fleet,
    *,
    shared: Path | None = None,
    tests: Sequence[str] = tuple(TESTS),
    patience_s: float = 15.0,
) -> Plan:
    """What to do with the nodes that preflight has reached. Raises `Declined` for busy GPUs.

    A node whose GPU processes are unknown is left out, and so is one without a GPU among nodes that
    have some.
    """
    launch = fleet.launch
    assert launch is not None
    assert launch.python is not None
    device: Literal["cuda", "cpu"] = "cuda" if fleet.device == "cuda" else "cpu"
    left_out = {node.name: "not reached" for node in fleet.nodes if node.unreached is not None}
    devices = {node.name: 1 for node in fleet.reached}
    if device == "cuda":
        refuse_busy(fleet.reached)
        devices = {node.name: len(node.gpus.gpus) for node in fleet.reached}
        for node in fleet.reached:
            gpus = node.gpus
            if not gpus.gpus:
                left_out[node.name] = f"no GPU answers there: {gpus.summary or gpus.state}"
            elif isinstance(gpus.processes, Unknown):
                why = gpus.processes.reason
                left_out[node.name] = f"who is on its GPUs could not be found out: {why}"
    devices = {name: count for name, count in devices.items() if name not in left_out}
    nodes, ranks = tuple(devices), (launch.python, launch.port, launch.env)
    made = Plan(nodes, device, devices, *ranks, shared, tuple(tests), left_out, group_s=patience_s)
    return made if device == "cuda" else replace(made, products_s=CPU_PRODUCTS_S)
