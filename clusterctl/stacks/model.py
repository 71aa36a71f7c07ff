"""What was found of a job: every process with its stack, its progress and its kernel state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from clusterctl.jobs.processes import label
from clusterctl.nodes import grouped
from clusterctl.stacks.frames import Stack
from clusterctl.stacks.node_counters import NodeCounters
from clusterctl.stacks.wait_sites import WAITS_FOR_PEERS, Kind

_STORAGE = re.compile(
    r"fuse|request_wait_answer|nfs|rpc_wait|cifs|smb|ceph|lustre|gpfs|folio_wait|wait_on_page"
    r"|io_schedule|blk_|jbd2|xfs_|ext4_|rq_qos"
)


class Progress(str, Enum):
    """What a process did between the samples."""

    STUCK = "stuck"
    SPINNING = "spinning"  # uses CPU in the same functions
    MOVING = "moving"
    GONE = "gone"
    UNSURE = "unsure"

    __str__ = str.__str__


STANDS = (Progress.STUCK, Progress.SPINNING)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread in the last sample."""

    tid: int
    name: str
    stack: Stack
    kind: Kind
    owns_gil: bool


@dataclass(slots=True, eq=False)
class Proc:
    """One process over all samples."""

    node: str
    pid: int
    ppid: int
    rank: int | None
    role: str
    index: int | None
    user: str
    program: str
    state: str | None  # of the last sample: R S D T Z; None: gone
    kind: Kind
    stack: Stack
    progress: Progress
    cpu_share: float  # of the whole process between first and last sample, 1 is one core
    seconds: float  # between its first and last sample
    how: str  # py-spy, faulthandler, kernel
    error: str
    threads: tuple[Thread, ...] = ()
    wchan: str | None = None
    kernel_stack: str | None = None
    is_frozen: bool = False  # by its cgroup
    beats: tuple[dict[str, Any], ...] = ()  # of each sample that had one
    clip: dict[str, Any] | None = None
    files: tuple[str, ...] = ()
    repaired: bool = False
    owns_gil: bool = False
    site_index: int = 0  # of the frame that decided the kind
    operation: str = "?"  # what it waits in, where it waits: all_reduce, backward
    caller: str = "?"  # the user's frame that called it

    def where(self, limit: int = 4) -> str:
        """The site and the user's frames around it; from the innermost frame for its own code."""
        own = self.kind in (Kind.WORK, Kind.CHECKPOINT, Kind.CODE, Kind.LOG)
        return self.stack.text(0 if own else self.site_index, limit)

    @property
    def label(self) -> str:
        return label(self.rank, self.role, self.index)

    @property
    def beat(self) -> dict[str, Any] | None:
        return self.beats[-1] if self.beats else None

    @property
    def age_s(self) -> float:
        """Seconds since it began what its decoder or its heartbeat reports; 0 without both."""
        reported = self.clip or self.beat
        return float(reported["age_s"]) if reported else 0.0

    @property
    def stood_s(self) -> float:
        """Seconds for which it is known to be where it is."""
        beat_s = self.beat["age_s"] if self.beat else 0.0
        return max(self.seconds if self.progress == Progress.STUCK else 0.0, beat_s, self.age_s)

    @property
    def waits_for_peers(self) -> bool:
        return self.kind in WAITS_FOR_PEERS

    @property
    def in_storage(self) -> bool:
        """Sleeps in the kernel for a file system or disk."""
        text = f"{self.wchan or ''} {' '.join((self.kernel_stack or '').splitlines()[:6])}"
        return self.state == "D" and bool(_STORAGE.search(text)) and not self.is_frozen

    @property
    def is_halted(self) -> bool:
        """Stopped, frozen, or asleep in the kernel through all samples."""
        if self.role in ("tracker", "shell", "logger", "compiler"):
            return False
        sleeps = self.state == "D" and self.progress == Progress.STUCK
        return sleeps or self.state in ("T", "t") or self.is_frozen

    @property
    def saves(self) -> bool:
        """Whether it saves a checkpoint, by its stack or its heartbeat."""
        reported = self.beat and self.beat["phase"] == "checkpoint" and not self.waits_for_peers
        return self.kind == Kind.CHECKPOINT or bool(reported)

    @property
    def has_moved(self) -> bool:
        """By its heartbeats where it writes them: another step or phase, or the same one again."""
        if len(self.beats) < 2:
            return self.progress == Progress.MOVING
        first, last = self.beats[0], self.beats[-1]
        changed = any(first[key] != last[key] for key in ("step", "phase"))
        return changed or bool(last["age_s"] < self.seconds - 0.01)  # the phase started again

    def file(self) -> str | None:
        """The file it works on: the one our decoder reports, else the first open one."""
        if self.clip:
            return str(self.clip["path"])
        return self.files[0] if self.files else None


@dataclass(slots=True)
class NodeView:
    """What one node reported; `silent` is why it reported nothing."""

    name: str
    procs: list[Proc] = field(default_factory=list)
    silent: str | None = None
    py_spy: str | None = None
    rights: dict[str, Any] = field(default_factory=dict)
    logs: dict[int, list[str]] = field(default_factory=dict)  # by rank
    flight: dict[int, dict[str, Any]] = field(default_factory=dict)  # by rank
    kernel: list[tuple[float, str]] = field(default_factory=list)  # (age in s, line)
    counters: NodeCounters = field(default_factory=NodeCounters)
    kernel_cut_s: float | None = None  # how far back its log was read, where that is no full hour
    seconds: float = 0.0
    late: list[str] = field(default_factory=list)
    others: int = 0


@dataclass
class JobSnapshot:
    nodes: list[NodeView]
    world: int | None
    runs: tuple[str, ...]
    interval_s: float
    samples: int
    seconds: float = 0.0
    taken_s: float = 0.0  # unix time, for people

    @cached_property
    def procs(self) -> list[Proc]:
        return [proc for node in self.nodes for proc in node.procs]

    @cached_property
    def trainers(self) -> list[Proc]:
        """Ranks, in order, with those that have ended."""
        found = [p for p in self.procs if p.role == "trainer"]
        return sorted(found, key=lambda p: (p.rank is None, p.rank or 0, p.pid))

    @cached_property
    def alive(self) -> list[Proc]:
        return [p for p in self.trainers if p.progress != Progress.GONE]

    @property
    def silent(self) -> list[NodeView]:
        return [node for node in self.nodes if node.silent is not None]

    @cached_property
    def missing(self) -> list[int]:
        """Ranks of which no trainer is alive; only where the world's size is known."""
        seen = {p.rank for p in self.alive}
        return [rank for rank in range(self.world or 0) if rank not in seen]

    @property
    def twice(self) -> dict[int, list[str]]:
        """Ranks that run on several nodes, with these nodes: then more than one job was found."""
        homes = grouped((p.rank, p.node) for p in self.alive if p.rank is not None)
        return {rank: names for rank, names in homes.items() if len(names) > 1}

    def loaders(self, trainer: Proc) -> list[Proc]:
        """Loader processes of a trainer: its children, or by rank where a fork server is used."""
        mine = [p for p in self.procs if p.role == "loader" and p.node == trainer.node]
        own = [p for p in mine if p.ppid == trainer.pid]
        return own or [p for p in mine if trainer.rank is not None and p.rank == trainer.rank]
