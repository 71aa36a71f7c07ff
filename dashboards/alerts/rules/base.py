"""What rules are given: the state of now, and helpers to read it. Pure.

A rule keeps nothing and waits for nothing: it has fields for how long something must last, and the
book (`dashboards.alerts.engine`) applies them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable

from dashboards.model.alert_book import Rule, RuleMemory, Unit
from dashboards.model.fleet import fresh
from dashboards.model.samples import Disk, Gpu, Link, NodeSample
from dashboards.model.state import RunState, State
from dashboards.model.thresholds import Limits

Drawing = list[tuple[str, Gpu, float]]
"""(node, GPU, watts)."""


class RuleContext:
    """The state of now, with what several rules ask for. `live` are good readings of now."""

    def __init__(self, state: State, limits: Limits, memory: RuleMemory) -> None:
        self.state, self.limits, self.memory = state, limits, memory
        self.now_s = state.now_s
        self.live: dict[str, NodeSample] = {
            sample.node: sample for sample in fresh(state.nodes.values(), state)
        }
        self._gpus: list[tuple[str, Gpu]] | None = None
        self.in_use: tuple[Drawing, float] | None = None  # kept by the rules of GPUs

    @property
    def run(self) -> RunState | None:
        return self.state.run

    @property
    def gpus(self) -> list[tuple[str, Gpu]]:
        """(node, GPU) of all readings of now."""
        if self._gpus is None:
            self._gpus = [
                (name, gpu) for name, node in self.live.items() for gpu in node.gpus or ()
            ]
        return self._gpus

    def gpu(self, unit: Unit) -> Gpu | None:
        """The reading of a GPU; None when there is none now."""
        node = self.live.get(unit[0])
        return next(
            (g for g in (node.gpus if node else None) or () if gpu_part(g.index) == unit[1]), None
        )

    def link(self, unit: Unit) -> Link | None:
        node = self.live.get(unit[0])
        return next(
            (link for link in (node.links if node else None) or () if link.name == unit[1]), None
        )

    def disk(self, unit: Unit) -> Disk | None:
        node = self.live.get(unit[0])
        return next(
            (disk for disk in (node.disks if node else None) or () if disk.path == unit[1]), None
        )


_PARTS = tuple(f"GPU {index}" for index in range(64))


def gpu_part(index: int) -> str:
    return _PARTS[index] if 0 <= index < len(_PARTS) else f"GPU {index}"


def node_known(context: RuleContext, unit: Unit) -> bool:
    """Whether the node gives readings now."""
    return unit[0] in context.live


def gpu_known(field_name: str) -> Callable[[RuleContext, Unit], bool]:
    """Whether this figure of the GPU could be read now."""

    def known(context: RuleContext, unit: Unit) -> bool:
        gpu = context.gpu(unit)
        return gpu is not None and not gpu.error and getattr(gpu, field_name) is not None

    return known


def read(value: float | None) -> float:
    """The value for comparing: NaN, which is neither over nor under, when it is not known."""
    return math.nan if value is None else value


def command_line(rule: Rule, source: str, nodes: str, part: str, run: str) -> str:
    """The command to type next, quoted for the shell. `nodes` is folded."""
    values = {
        "hosts": shlex.quote(hostfile_of(source) or "nodes.txt"),
        "nodes": f"-w {shlex.quote(nodes)}" if nodes else "",
        "run": shlex.quote(run or "outputs/RUN"),
        "remote": shlex.quote(rule.remote.format(part=shlex.quote(part))),
    }
    return rule.command.format(**values).replace("  ", " ").strip()


def hostfile_of(source: str) -> str:
    """The hostfile in a feed's description of itself; "" for a demo or a replay."""
    first = source.split(" + ")[0]
    return "" if first in ("", "demo", "replay") or first.startswith("replay") else first
