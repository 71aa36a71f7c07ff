"""What rules are given: the state of now, and helpers to read it. Pure.

A rule keeps nothing and waits for nothing: it has fields for how long something must last, which
`dashboards.alerts.engine` applies.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Literal

from dashboards.model.alert_book import Rule, RuleMemory, Unit
from dashboards.model.outliers import busy_power_w
from dashboards.model.samples import Gpu, Link, NodeSample
from dashboards.model.state import State
from dashboards.model.thresholds import Limits

Powers = list[tuple[Unit, Gpu, float]]
"""(unit, GPU, watts)."""


class RuleContext:
    """The state of now, with what several rules ask for. `live` are good readings of now, and
    `run` is None while its files cannot be read to their end: what they say is of earlier."""

    def __init__(self, state: State, limits: Limits, memory: RuleMemory) -> None:
        self.state, self.limits, self.memory = state, limits, memory
        self.now_s = state.now_s
        self.run = None if state.run is None or state.run.unread else state.run
        self.running = None if self.run is None or self.run.ended else self.run  # until it ends
        going_on = state.run is not None and not state.run.ended
        self.planned = frozenset(state.run.planned if state.run and going_on else ())  # its nodes
        self.live: dict[str, NodeSample] = {sample.node: sample for sample in state.live()}

    @cached_property
    def gpus(self) -> list[tuple[Unit, Gpu]]:
        """All GPUs that have a reading now."""
        gpus = ((name, gpu) for name, node in self.live.items() for gpu in node.gpus or ())
        return [(gpu_unit(name, gpu.index), gpu) for name, gpu in gpus]

    @cached_property
    def in_use(self) -> tuple[Powers, float]:
        """GPUs with a process on them, and the median power; NaN while they are not busy.

        A GPU without memory in use is rightly idle; a rank that hangs keeps its memory.
        """
        part = [
            (unit, gpu, gpu.power_w)
            for unit, gpu in self.gpus
            if gpu.power_w is not None
            and not gpu.error
            and (gpu.memory_used_bytes is None or gpu.memory_used_bytes > self.limits.used_bytes)
            and (not self.planned or unit[0] in self.planned)
        ]
        limit_w = part[0][1].power_limit_w if part else None
        middle = busy_power_w([power for _, _, power in part], limit_w, self.limits)
        return part, math.nan if middle is None else middle

    def part(self, unit: Unit, parts: Parts) -> Any:
        """The reading of a GPU, link or disk; None when there is none now."""
        found = getattr(self.live.get(unit[0]), parts, None) or ()
        return next((one for one in found if NAMES[parts](one) == unit[1]), None)


UNKNOWN = frozenset(["", "?", "unknown"])  # could not be read, or the driver does not report it
UP = frozenset(["active", "up", "linkup", "Active", "ACTIVE", "LinkUp"])
# 20 minutes of every file system of 1,000 nodes are some ten thousand numbers.
DISK_EVERY_S = 60.0


@lru_cache(64)
def gpu_part(index: int) -> str:
    return f"GPU {index}"


@lru_cache(1 << 16)  # of every GPU at every tick
def gpu_unit(node: str, index: int) -> Unit:
    return node, gpu_part(index)


Parts = Literal["gpus", "links", "disks"]
NAMES: dict[Parts, Callable[[Any], str]] = {
    "gpus": lambda gpu: gpu_part(gpu.index),
    "links": attrgetter("name"),
    "disks": attrgetter("path"),
}
Known = Callable[[RuleContext, Unit], bool]


def always_known(context: RuleContext, unit: Unit) -> bool:
    return True


def run_known(context: RuleContext, unit: Unit) -> bool:
    """Whether what the files of the run say is of now."""
    return context.run is not None or context.state.run is None


def node_known(context: RuleContext, unit: Unit) -> bool:
    """Whether the node gives readings now."""
    return unit[0] in context.live


def node_has(field: str) -> Known:
    """Whether the node has this figure now."""
    return lambda context, unit: getattr(context.live.get(unit[0]), field, None) is not None


def part_has(parts: Parts, field: str) -> Known:
    """Whether the GPU, link or disk has this figure now."""
    return lambda context, unit: getattr(context.part(unit, parts), field, None) is not None


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
    return "" if first == "demo" or first.startswith("replay") else first


def is_up(link: Link) -> bool:
    return link.state in UP or link.state.lower() in UP


def is_down(link: Link) -> bool:
    return not is_up(link) and link.state.lower() not in UNKNOWN


def keep(context: RuleContext) -> RuleMemory:
    """What rules must know of this tick at the next one; the same object if nothing has changed."""
    earlier = context.memory
    links: dict[Unit, int] = {}
    ups: set[Unit] = set()
    disks: dict[Unit, tuple[tuple[float, float], ...]] = {}
    for name, node in context.live.items():
        for link in node.links or ():
            unit = (name, link.name)
            if link.downs is not None and earlier.links.get(unit) != link.downs:
                links[unit] = link.downs
            if unit not in earlier.were_up and is_up(link):
                ups.add(unit)
        for one in node.disks or ():
            if one.used_bytes is None:
                continue
            past = earlier.disks.get((name, one.path), ())
            if not past or context.now_s - past[-1][0] >= DISK_EVERY_S:
                new = (context.now_s, one.used_bytes)
                disks[name, one.path] = _longer(past, new, context.limits.disk_pace_s)
    were_busy = _busy(context)
    if not (links or ups or disks) and were_busy is earlier.were_busy:
        return earlier
    return RuleMemory(
        links={**earlier.links, **links} if links else earlier.links,
        were_up=earlier.were_up | ups if ups else earlier.were_up,
        were_busy=were_busy,
        disks={**earlier.disks, **disks} if disks else earlier.disks,
    )


def _busy(context: RuleContext) -> frozenset[Unit]:
    """GPUs that computed with the others and are still in use; the same object if unchanged."""
    known, limits = context.memory.were_busy, context.limits
    part, middle = context.in_use
    limit_w, least = limits.idle_share * middle, limits.used_bytes
    busy = {unit for unit, _, power in part if power >= limit_w and unit not in known}
    free = {
        unit
        for unit, gpu in context.gpus
        if gpu.memory_used_bytes is not None and gpu.memory_used_bytes <= least and unit in known
    }
    return (known | busy) - free if busy or free else known


def _longer(
    past: Sequence[tuple[float, float]], now: tuple[float, float], window_s: float
) -> tuple[tuple[float, float], ...]:
    # After files were deleted the pace before that does not count.
    recent = [] if past and now[1] < 0.98 * past[-1][1] else past
    return (*(one for one in recent if now[0] - one[0] <= window_s), now)
