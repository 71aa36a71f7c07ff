"""What a rule is: it looks at the state and tells what is over its limit now. Pure.

A rule keeps nothing and waits for nothing: how long something must last is written beside it and done
by the book (`dashboards.alerts.engine`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dashboards.alerts.rules.thresholds import Limits
from dashboards.model.fleet import fresh
from dashboards.model.samples import Disk, Gpu, Link, NodeSample

if TYPE_CHECKING:
    from dashboards.model.state import RunState, State

WARN, FAIL = "warn", "fail"
SEVERITIES = (WARN, FAIL)

Unit = tuple[str, str]
"""What an alert is about: (node, part of it). ("", "") is the run, ("", name) another single thing;
(node, "") the node itself, else "GPU 3", "/data", "mlx5_1/1"."""


Drawing = list[tuple[str, Gpu, float]]
"""(node, GPU, watts)."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Something over its limit now."""

    unit: Unit
    text: str  # evidence: what was measured, and against what
    severity: str = ""  # another one than the rule's
    after_s: float | None = None  # another one than the rule's
    clear_s: float | None = None  # another one than the rule's
    starts: bool = True  # False: keeps an alert that is there, makes none


@dataclass(frozen=True, slots=True)
class Kept:
    """What rules must know of earlier looks. Made anew when something changed, never changed."""

    links: Mapping[Unit, int] = field(default_factory=dict)  # how often it was lost
    were_up: frozenset[Unit] = frozenset()  # links that were up while we looked
    were_busy: frozenset[Unit] = frozenset()  # GPUs that computed with the others while we looked
    # (time, used bytes) of each file system, oldest first, at least some seconds apart.
    disks: Mapping[Unit, tuple[tuple[float, float], ...]] = field(default_factory=dict)


class Look:
    """One look at the state, with what several rules ask for. `live` are good readings of now."""

    def __init__(self, state: State, limits: Limits, kept: Kept) -> None:
        self.state, self.limits, self.kept = state, limits, kept
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


@dataclass(frozen=True, slots=True)
class Rule:
    """`look` tells what is over; for what it does not name, `known` says whether it could be seen.

    What is neither over nor known stays as it was: a silent node neither makes nor ends an alert.
    """

    id: str  # subject.name, stable: users silence by it
    severity: str
    meaning: str  # one sentence: what it is and why it matters
    look: Callable[[Look], Iterable[Sign]]
    known: Callable[[Look, Unit], bool]
    after_s: float  # over its limit this long makes an alert
    clear_s: float  # under it this long ends it
    command: str  # what to type next: {hosts} hostfile, {nodes} -w SET, {run} directory, {remote}
    threshold: str  # in words, for the documentation
    # Alerts of these ids about the same unit say it already; what this rule sees keeps them open.
    joins: tuple[str, ...] = ()
    could_not_ask: bool = False  # not a fault that was seen but something that could not be read
    at_once: bool = True  # one look is enough to tell, for whoever takes only one
    remote: str = ""  # what {remote} of the command runs on the nodes


_PARTS = tuple(f"GPU {index}" for index in range(64))


def gpu_part(index: int) -> str:
    return _PARTS[index] if 0 <= index < len(_PARTS) else f"GPU {index}"


def node_known(look: Look, unit: Unit) -> bool:
    """Whether the node gives readings now."""
    return unit[0] in look.live


def gpu_known(field_name: str) -> Callable[[Look, Unit], bool]:
    """Whether this figure of the GPU could be read now."""

    def known(look: Look, unit: Unit) -> bool:
        gpu = look.gpu(unit)
        return gpu is not None and not gpu.error and getattr(gpu, field_name) is not None

    return known


def read(value: float | None) -> float:
    """The value for comparing: NaN, which is neither over nor under, when it is not known."""
    return math.nan if value is None else value


def command_line(rule: Rule, source: str, nodes: str, part: str, run: str) -> str:
    """The line to type next; every word of the user's is quoted for the shell. `nodes` is folded."""
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
