"""What a feed can say: readings of a node, a node's silence, records of a run, the time.

`at_s` is always the head's clock, in seconds of unix time that never jumps (feeds.Clock), at the
moment the head learned of it. Shares are 0 to 1. None is "could not find out" and never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.telemetry import Event, StepRecord


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

    @property
    def memory(self) -> float | None:
        """Share of its memory that is used."""
        return share(self.memory_used_bytes, self.memory_total_bytes)


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What one node said about itself."""

    node: str
    at_s: float
    cpu: float | None = None
    cpus: int | None = None
    load1: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    network_bytes_s: float | None = None  # received and sent, without loopback
    gpus: tuple[Gpu, ...] | None = ()  # () there are none; None could not find out
    gpu_error: str = ""  # why None

    @property
    def memory(self) -> float | None:
        """Share of the node's memory that is used."""
        return share(self.memory_used_bytes, self.memory_total_bytes)


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node that gives no readings: in which phase of talking to it, and why."""

    node: str
    at_s: float
    phase: str  # of transport.base.PHASES
    message: str


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A run directory is being read; what was known of another run is dropped."""

    directory: str
    name: str
    at_s: float
    nodes: tuple[str, ...] = ()  # as planned by the launcher, in the order of ranks
    ranks: tuple[int, ...] = ()  # how many ranks each of them has


@dataclass(frozen=True, slots=True)
class StepSample:
    record: StepRecord
    at_s: float


@dataclass(frozen=True, slots=True)
class EventSample:
    """Something that happened to the run; `source` is the file it stands in."""

    event: Event
    at_s: float
    source: str = "telemetry"


@dataclass(frozen=True, slots=True)
class Tick:
    """The time; comes last in every round."""

    now_s: float


Sample = NodeSample | NodeDown | RunOpened | StepSample | EventSample | Tick


def share(used: float | None, total: float | None) -> float | None:
    return used / total if used is not None and total else None
