"""What a feed reports: readings of a node, its failure, records of a run, the time.

`at_s` is the head's clock when the sample arrived, in seconds of unix time that never jumps
(`feeds.run_dir.steady_clock`). Shares are 0 to 1. None is "could not find out", never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from checks.reference.nvlink_models import is_wired
from clusterctl.node_name import NodeName
from trainer.runlog.telemetry import Event, StepRecord


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's reading; `error` says why it has none (lost, requires reset)."""

    index: int
    name: str = ""
    power_w: float | None = None
    power_limit_w: float | None = None
    util: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_c: float | None = None
    sm_mhz: float | None = None
    error: str = ""
    throttle: str | None = None  # why its clocks are held down; "" they are not
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded
    nvlinks: tuple[int, int] | None = None  # (active, present)
    energy_j: float | None = None  # the card's own counter, since the driver was loaded

    @property
    def memory(self) -> float | None:
        """Share of its memory that is used."""
        return share(self.memory_used_bytes, self.memory_total_bytes)

    def lacks_nvlinks(self, equals: Iterable[Gpu]) -> bool:
        """Links are off that its board wires, or that others of its model have up."""
        if self.nvlinks is None or self.nvlinks[0] >= self.nvlinks[1]:
            return False
        same = (one for one in equals if one.name == self.name and one.nvlinks is not None)
        most = max((one.nvlinks[0] for one in same if one.nvlinks), default=0)
        return is_wired(self.name) or self.nvlinks[0] < most


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds memory of a GPU; `run` and `rank` as its environment tells them."""

    pid: int
    user: str
    name: str
    gpu: int | None = None  # None: the driver does not say which
    memory_bytes: float | None = None
    run: str = ""  # tag of the launcher; "" none, or not allowed to read it
    rank: int | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A port of the network between nodes, with what went through it since the last reading."""

    name: str  # mlx5_1/1, eth0
    kind: str  # "ib" or "eth"
    state: str  # Active, Down, up: the kernel's word
    rate_gbps: float | None = None  # what it is trained to
    rx_bytes_s: float | None = None
    tx_bytes_s: float | None = None
    errors_min: float | None = None  # new errors in the last minute
    downs: int | None = None  # how often it was lost since boot


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system; both figures None when it could not be read; without an error it hangs."""

    path: str
    used_bytes: float | None = None
    total_bytes: float | None = None
    error: str = ""  # why it could not be asked

    @property
    def hangs(self) -> bool:
        """Whether it does not answer."""
        return self.used_bytes is None and self.total_bytes is None and not self.error

    @property
    def full(self) -> float | None:
        """Share of it that is used."""
        return share(self.used_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the NVIDIA driver wrote into the kernel's log."""

    at_s: float  # head's clock
    gpu: int | None
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What one node said about itself. None where the node could not find out."""

    node: NodeName
    at_s: float
    cpu: float | None = None
    cpus: int | None = None
    load1: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    network_bytes_s: float | None = None  # received and sent, without loopback
    gpus: tuple[Gpu, ...] | None = ()  # () there are none; None could not find out
    gpu_error: str = ""  # why None
    processes: tuple[Process, ...] | None = None  # on its GPUs
    links: tuple[Link, ...] | None = None
    disks: tuple[Disk, ...] | None = None
    clock_offset_s: float | None = None  # node minus head, by the stream's round trip
    clock_bound_s: float | None = None  # the offset may be off by this much
    clock_step_s: float | None = None  # wall against monotonic clock since the last reading
    up_s: float | None = None
    driver: str = ""
    xids: tuple[Xid, ...] | None = None  # since the watch began and shortly before, oldest first
    log_error: str = ""  # why the kernel's log, which has them, cannot be read

    @property
    def memory(self) -> float | None:
        """Share of the node's memory that is used."""
        return share(self.memory_used_bytes, self.memory_total_bytes)

    @property
    def load_per_core(self) -> float | None:
        return share(self.load1, self.cpus)

    @property
    def network_mb_s(self) -> float | None:
        return None if self.network_bytes_s is None else self.network_bytes_s / 1e6


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node that gives no readings: in which phase of talking to it, and why."""

    node: NodeName
    at_s: float
    phase: str  # of transport.base.PHASES
    message: str


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A run directory is being read; what was known of another run is dropped."""

    directory: str
    name: str
    at_s: float
    nodes: tuple[NodeName, ...] = ()  # as planned by the launcher, in the order of ranks
    ranks: tuple[int, ...] = ()  # how many ranks each of them has


READING = "its files are being read"  # for the first time


@dataclass(frozen=True, slots=True)
class RunRead:
    """How far a run is known: to the end of its files, or why not. What was known stays."""

    at_s: float
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class StepSample:
    record: StepRecord
    at_s: float


@dataclass(frozen=True, slots=True)
class EventSample:
    """Something that happened to the run; `source` is its file: telemetry, journal, incidents."""

    event: Event
    at_s: float
    source: str = "telemetry"


@dataclass(frozen=True, slots=True)
class Tick:
    """The time; comes last in every round."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Restored:
    """Everything at another time, where a replay was moved to. `state` is a `state.State`."""

    state: Any


NodeReport = NodeSample | NodeDown
RunReport = RunOpened | RunRead | StepSample | EventSample
Sample = NodeReport | RunReport | Tick | Restored
Clock = Callable[[], float]


class Feed(Protocol):
    """A source of samples. It gathers them in its own threads; `drain` is called once a tick."""

    nodes: tuple[str, ...]  # in the hostfile's order
    source: str  # for the header

    def start(self) -> None: ...

    def drain(self) -> list[Sample]:
        """Samples since the last call, oldest first. Never waits."""

    def now(self) -> float:
        """The time to compare the samples of this feed with."""

    def settled(self) -> bool:
        """Whether all of its sources have answered or failed once."""
        return True

    def reads(self) -> bool:
        """Whether one that has not settled gets on: a run of weeks takes half a minute to read."""
        return False

    def close(self) -> None:
        """End threads and connections; returns within seconds."""
        return


def share(used: float | None, total: float | None) -> float | None:
    return used / total if used is not None and total else None
