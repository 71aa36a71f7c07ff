"""The classes of causes that end an attempt of a run, and what each means for the next one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from clusterctl.dataclass_json import LEFT_OUT, Misshapen, decode, encode
from clusterctl.node_name import NodeName


class Kind(str, Enum):
    """A class of causes, as `incidents.jsonl` names it.

    is_deterministic: the same input gives it again, so a restart alone does not help.
    is_of_node: another node may not have it. is_consequence: it always has another root.
    The distinctions are those of the registry of nvidia-resiliency-ext's restart agent.
    """

    meaning: str
    is_deterministic: bool
    is_of_node: bool
    is_consequence: bool

    def __new__(cls, value: str, meaning: str, marks: str = "") -> Kind:
        kind = str.__new__(cls, value)
        kind._value_, kind.meaning = value, meaning
        kind.is_deterministic = "deterministic" in marks
        kind.is_of_node = "node" in marks
        kind.is_consequence = "consequence" in marks
        return kind

    WORKER_EXCEPTION = (
        "worker-exception",
        "a rank's program raised an error; `detail` is its type, `file` its place",
        "deterministic",
    )
    REFUSED = (
        "refused",
        "the trainer refused what it was given, or could not go on with it, and gives a hint",
        "deterministic",
    )
    WORKER_DIED = "worker-died", "a process of a rank's data loader was ended"
    OOM_KERNEL = (
        "oom-kernel",
        "the kernel ended a rank for want of memory, by the cgroup's count or the kernel's log",
    )
    CUDA_OOM = "cuda-oom", "a GPU's memory is too small", "deterministic"
    CUDA_ERROR = "cuda-error", "CUDA, cuDNN, cuBLAS or NCCL failed"
    SIGNAL = (
        "signal",
        "a signal ended a rank, or what starts a node's ranks; its number follows: `signal-9`",
    )
    HANG = "hang", "no step within the limit; what hangs follows: `hang-data`"
    NODE_UNREACHABLE = "node-unreachable", "a node cannot be asked any more", "node"
    NODE_STOPPED = (
        "node-stopped",
        "a node was shut down or started again in order, or its agent was ended by SIGTERM",
        "node",
    )
    XID = "xid", "the NVIDIA driver logged an error; its number follows: `xid-79`", "node"
    DISK_FULL = "disk-full", "no space left, or a quota is used up", "deterministic"
    STORAGE = "storage-error", "a file system failed: a stale handle, an input or output error"
    CHECKPOINT_INVALID = (
        "checkpoint-invalid",
        "a checkpoint or weights are damaged, incomplete or of another model",
        "deterministic",
    )
    MISSING_FILE = "missing-file", "a file or folder is not there", "deterministic"
    DIVERGED = "diverged", "loss, gradients or weights are not finite", "deterministic"
    ENVIRONMENT = "environment", "a package or library is missing, or does not fit", "deterministic"
    SERVICE = "service-unreachable", "a service outside of the run, as W&B, did not answer"
    PORT_TAKEN = "port-taken", "another program has the port where ranks meet"
    USER_STOP = "user-stop", "Ctrl-C, `clusterctl stop` or `clusterctl kill`"
    NCCL_WATCHDOG = "nccl-watchdog", "NCCL's watchdog gave up a collective", "consequence"
    PEER_LOST = "peer-lost", "the connection to another rank ended", "consequence"
    UNKNOWN = "unknown", "nothing says why"

    __str__ = str.__str__


LOST = (Kind.NODE_UNREACHABLE, Kind.NODE_STOPPED)  # the node is gone, whatever it was


class Source(str, Enum):
    """Where a line of evidence is from."""

    RANK_LOG = "rank log"
    STARTER_LOG = "starter's log"
    EXIT_CODE = "exit code"
    KERNEL = "kernel"
    VERDICT = "verdict"  # of the stacks
    CONNECTION = "connection"  # of the head to an agent
    USER = "user"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Evidence:
    source: Source
    line: str


@dataclass(frozen=True, slots=True)
class Fact:
    """What somebody other than a rank has stated: the kernel, a cgroup, a clock.

    `at_s` is on the head's monotonic clock, as that of a `Death`; None for the time of the death.
    """

    kind: Kind
    node: str
    evidence: Evidence
    detail: str = ""
    rank: int | None = None  # None: of the whole node
    at_s: float | None = None


_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank or a node failed. `is_root` is False for what another cause has brought about."""

    kind: Kind
    detail: str = ""  # of a signal its number, of an exception its type, of a hang what hangs
    node: NodeName | None = None
    rank: int | None = None
    evidence: Evidence | None = None
    is_root: bool = True
    is_of_node: bool = False
    file: str = ""  # of an exception: `train.py:45`, its innermost frame
    note: str = ""  # what is likely but not proved
    # Monotonic, when the head heard of it.
    at_s: float | None = field(default=None, compare=False, metadata=LEFT_OUT)

    @property
    def name(self) -> str:
        """The class with what belongs to it: signal-9, xid-79, hang-data, worker-exception."""
        has_number = self.kind in (Kind.SIGNAL, Kind.XID, Kind.HANG) and self.detail
        return f"{self.kind}-{self.detail}" if has_number else str(self.kind)

    @property
    def is_deterministic(self) -> bool:
        """Whether the same input gives it again, wherever the ranks run."""
        return self.kind.is_deterministic and not self.is_of_node

    @property
    def signature(self) -> str:
        """Equal for two attempts that failed alike.

        Numbers such as steps and addresses do not count, nor do node and rank: after a restart
        another rank may report the same.
        """
        if self.kind in (Kind.SIGNAL, Kind.XID, Kind.HANG):
            return self.name
        said = self.evidence if self.evidence and self.evidence.source != Source.EXIT_CODE else None
        return f"{self.name} {_NUMBERS.sub('#', said.line) if said else ''}".strip()

    @property
    def sentence(self) -> str:
        """`worker-exception on rank 3 (node-2): ValueError: no frames`."""
        place = f"rank {self.rank}" if self.rank is not None else self.node or ""
        place += f" ({self.node})" if self.rank is not None and self.node else ""
        on = f" on {place}" if place else ""
        said = f": {self.evidence.line}" if self.evidence else ""
        return f"{self.name}{on}{said}{f' ({self.note})' if self.note else ''}"

    @classmethod
    def from_json(cls, data: Any) -> Cause:
        """What `to_json` has written, but for its time. Raises `Misshapen`."""
        if not isinstance(data, Mapping):
            raise Misshapen("an object", data)
        name, detail = data.get("class"), data.get("detail")
        kind = next((kind for kind in Kind if name in (f"{kind}-{detail}", str(kind))), None)
        if kind is None:
            raise Misshapen("a cause", name, ".class")
        return decode(cls, {**data, "kind": str(kind)})

    def to_json(self) -> dict[str, Any]:
        """Keys are only ever added (docs/reference/run-directory.md)."""
        return {"class": self.name, **{name: encode(getattr(self, name)) for name in _KEYS}}


_OF_CLASS = ("is_deterministic", "is_of_node")
_KEYS = ("detail", "file", "is_root", *_OF_CLASS, "node", "rank", "evidence", "note")
