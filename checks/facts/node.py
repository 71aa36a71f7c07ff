"""All that is known about one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from checks.facts.gpu import GpuFacts
from checks.facts.machine import (
    Clock,
    Disk,
    FileSeen,
    GitState,
    Interpreter,
    KernelLog,
    Machine,
    Memory,
    Mount,
    ProcessTable,
    PythonEnv,
    ShellLimits,
    System,
    TorchGpus,
)
from checks.facts.network import Fabric, Network, Port
from checks.facts.unknown import NOT_ASKED, Maybe, Unknown, then

GPUS_NOT_ASKED = GpuFacts("unreadable", NOT_ASKED.reason)


@dataclass(frozen=True, slots=True)
class Previous:
    """The head's record of the last census of this node."""

    boot_id: str
    wall_minus_boot_s: Maybe[float]
    counters: Mapping[str, Mapping[str, int]]  # port name -> counter -> value
    age_s: float


@dataclass(frozen=True, slots=True)
class PastFault:
    """An incident of a run whose root was on this node, or a check that it began to fail."""

    kind: Literal["incident", "check"]
    what: str  # class of the incident, or id of the check
    age_s: float
    date: str  # 2026-03-01
    run: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """What the cluster's ledger has of this node, since it was last repaired."""

    faults: tuple[PastFault, ...] = ()  # oldest first
    exclusions_age_s: tuple[float, ...] = ()
    skipped: int = 0  # lines of the ledger that could not be read, of whatever node


@dataclass(frozen=True, slots=True)
class Unreached:
    """The node gave no answer: phase of the connection, seconds in it, why, what to do."""

    phase: str
    seconds: float
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.phase}: {self.message}"


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
    history: Maybe[History] = NOT_ASKED
    gpus: GpuFacts = GPUS_NOT_ASKED
    machine: Maybe[Machine] = NOT_ASKED
    memory: Maybe[Memory] = NOT_ASKED
    load_1min: Maybe[float] = NOT_ASKED
    software: Maybe[PythonEnv] = NOT_ASKED  # the interpreter that training runs on
    torch_gpus: Maybe[TorchGpus] = NOT_ASKED  # asked where a driver is loaded
    interpreter: Interpreter = "unknown"  # that same one: is it there at all
    disks: Mapping[str, Maybe[Disk]] = field(default_factory=dict)
    ports: Mapping[int, Maybe[Port]] = field(default_factory=dict)
    connect_s: Maybe[float] = NOT_ASKED  # from the first packet to the login
    fabric: Maybe[Fabric] = NOT_ASKED
    clock: Maybe[Clock] = NOT_ASKED
    kernel_log: Maybe[KernelLog] = NOT_ASKED
    shell_limits: Maybe[ShellLimits] = NOT_ASKED
    mounts: Maybe[tuple[Mount, ...]] = NOT_ASKED
    network: Maybe[Network] = NOT_ASKED
    processes: Maybe[ProcessTable] = NOT_ASKED
    system: Maybe[System] = NOT_ASKED
    git: Maybe[GitState] = NOT_ASKED
    files: Maybe[Mapping[str, FileSeen]] = NOT_ASKED
    token: Maybe[str] = NOT_ASKED  # what the node reads in the shared folder's token file
    token_s: Maybe[float] = NOT_ASKED
    wandb: Maybe[bool] = NOT_ASKED  # a login is there; the key itself never leaves the node
    previous: Maybe[Previous] = NOT_ASKED

    @property
    def boot_id(self) -> Maybe[str]:
        return then(self.machine, lambda machine: machine.boot_id)

    @property
    def namespaces(self) -> str:
        """Differs between containers of one machine; empty where it is not known."""
        return "" if isinstance(self.machine, Unknown) else self.machine.namespaces

    @property
    def last_look(self) -> Previous | None:
        """The record of the previous census, if the node was not booted since."""
        before = self.previous
        if isinstance(before, Unknown) or before.boot_id != self.boot_id:
            return None
        return before

    @property
    def lacks_interpreter(self) -> bool:
        """The interpreter of training is not there or does not run."""
        return self.interpreter in ("missing", "broken")
