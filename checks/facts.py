"""What is known about nodes: frozen facts that parsers make and rules read.

The lowest vocabulary of the house, not only of the checks. A value that could not be had is
`Unknown` with its reason, never 0 and never a guess. Bytes, watts, seconds, degrees Celsius.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Could not find out, and why."""

    reason: str


Maybe = Union[T, Unknown]  # noqa: UP007 - a generic alias of 3.10 needs Union

NOT_ASKED = Unknown("not asked")


@dataclass(frozen=True, slots=True)
class Section:
    """What one tool or file on a node gave: raw text, not yet understood."""

    state: Literal["ended", "missing", "timeout", "error"]
    rc: int | None
    out: str
    err: str
    seconds: float

    @property
    def why_not(self) -> str:
        """One line for a section that gave no usable text."""
        said = [line.strip() for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        if self.state == "ended":
            return f"exit {self.rc}: {said[0]}" if said else f"exit {self.rc} without a word"
        return said[-1] if said else self.state


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its driver describes it."""

    index: Maybe[int]
    uuid: Maybe[str]
    name: Maybe[str]
    driver: Maybe[str]
    bus_id: Maybe[str]
    power_w: Maybe[float]
    power_limit_w: Maybe[float]
    memory_used_bytes: Maybe[int]
    memory_total_bytes: Maybe[int]
    utilization_percent: Maybe[float]
    temperature_c: Maybe[float]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a GPU. Owner and age are unknown where /proc does not show it."""

    pid: int
    gpu_uuid: str
    used_bytes: Maybe[int]
    name: str
    user: Maybe[str]
    age_s: Maybe[float]
    command: Maybe[str]


GpuState = Literal[
    "ok",
    "partial",  # some GPUs answered, and there was an error text beside them
    "none",  # the driver works and has no device
    "no-tool",  # no nvidia-smi on the node
    "failed",  # nvidia-smi says in words why it cannot
    "hung",  # no answer before its deadline
    "unreadable",  # an answer that is none
]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPUs of a node, or what nvidia-smi said instead; `message` is its text, complete."""

    state: GpuState
    message: str = ""
    gpus: tuple[Gpu, ...] = ()
    processes: Maybe[tuple[GpuProcess, ...]] = NOT_ASKED
    on_pci: Maybe[int] = NOT_ASKED  # NVIDIA devices that the kernel sees on PCI, driver or not

    @property
    def summary(self) -> str:
        """The first sentence of the message."""
        return self.message.split("\n", 1)[0].split(". ", 1)[0]

    @property
    def has_hardware(self) -> bool:
        """Whether anything speaks for an NVIDIA GPU in the machine, be it broken."""
        if self.state in ("ok", "partial", "failed", "hung"):
            return True
        return not isinstance(self.on_pci, Unknown) and self.on_pci > 0

    @property
    def count(self) -> Maybe[int]:
        """GPUs that answer. No tool and no device is 0; a driver that fails is unknown."""
        if self.state in ("ok", "partial"):
            return len(self.gpus)
        if self.state in ("none", "no-tool"):
            return 0
        return Unknown(self.summary or self.state)


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds `asked`; `path` is the nearest folder that exists already."""

    asked: str
    path: str
    free_bytes: int
    total_bytes: int
    inodes_free: int
    inodes_total: int
    writable: bool
    is_folder: bool


@dataclass(frozen=True, slots=True)
class PythonEnv:
    """An interpreter and the versions in its environment; None: not installed there."""

    executable: str
    prefix: str
    version: str
    packages: Mapping[str, str | None]
    torch_cuda: str | None


Interpreter = Literal["works", "missing", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class Port:
    """Whether a port can be listened on, and by whom it is held."""

    free: bool
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    available_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Tells two machines apart: `boot_id` is new with every boot, machine-id survives cloning."""

    boot_id: Maybe[str]
    machine_id: Maybe[str]
    kernel: Maybe[str]
    cpus: Maybe[int]
    namespaces: str  # differs between containers of one machine


@dataclass(frozen=True, slots=True)
class Unreached:
    """The node gave no answer: phase of the connection, seconds in it, why, what to do."""

    phase: str
    seconds: float
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All that is known about one node."""

    name: str
    unreached: Unreached | None = None
    loopback: bool = False  # the hostfile's address is this machine itself
    noise: str = ""  # what the login shell printed before our payload
    hostname: Maybe[str] = NOT_ASKED
    user: Maybe[str] = NOT_ASKED
    python: Maybe[str] = NOT_ASKED  # the interpreter that payloads run on
    gpus: GpuFacts = GpuFacts("unreadable", "not asked")
    machine: Maybe[Machine] = NOT_ASKED
    memory: Maybe[Memory] = NOT_ASKED
    load_1min: Maybe[float] = NOT_ASKED
    software: Maybe[PythonEnv] = NOT_ASKED  # the interpreter that training runs on
    interpreter: Interpreter = "unknown"  # that same one: is it there at all
    disks: Mapping[str, Maybe[Disk]] = field(default_factory=dict)
    ports: Mapping[int, Maybe[Port]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """What a launch will ask of the nodes; the checks about it are skipped without this."""

    python: str  # path of the interpreter on the nodes
    port: int  # of the rendezvous, on the master
    slots: Mapping[str, int]  # ranks per node name
    device: Literal["cuda", "cpu", "auto"]  # auto: cuda where any node of the fleet has a GPU
    run_dir_parent: str
    min_free_bytes: int
    master: str | None = None  # node name; None: the first


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes asked, in the hostfile's order, and what is to be launched on them."""

    nodes: tuple[NodeFacts, ...]
    launch: LaunchNeeds | None = None

    @property
    def reached(self) -> tuple[NodeFacts, ...]:
        return tuple(node for node in self.nodes if node.unreached is None)

    @property
    def device(self) -> str:
        """cuda or cpu: what the launch asks for, or what the fleet has."""
        if self.launch is not None and self.launch.device != "auto":
            return self.launch.device
        return "cuda" if any(node.gpus.has_hardware for node in self.reached) else "cpu"


def to_json(value: Any) -> Any:
    """Plain data of facts: an unknown value is null, its reason stands in `unknown` beside it."""
    if isinstance(value, Unknown):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data: dict[str, Any] = {}
        reasons = {}
        for item in dataclasses.fields(value):
            content = getattr(value, item.name)
            data[item.name] = to_json(content)
            if isinstance(content, Unknown):
                reasons[item.name] = content.reason
        return {**data, "unknown": reasons} if reasons else data
    if isinstance(value, Mapping):
        return {str(key): to_json(content) for key, content in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(content) for content in value]
    return value
