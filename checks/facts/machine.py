"""The machine under a node: kernel, memory, limits, processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checks.facts.unknown import NOT_ASKED, Maybe, Unknown


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    available_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`boot_id` identifies a machine: it is new with every boot; a machine-id survives cloning."""

    boot_id: Maybe[str]
    kernel: Maybe[str]
    cpus: Maybe[int]
    namespaces: str  # differs between containers of one machine


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A line of the kernel's log that matters. `kind` is one of checks.parsers.kernel_log."""

    kind: str
    line: str
    age_s: Maybe[float]
    subject: str = ""  # GPU's PCI address, network interface, mount, process
    xid: int | None = None

    @property
    def is_recent(self) -> bool:
        """Of the last 24 hours, or of an unknown time."""
        return isinstance(self.age_s, Unknown) or self.age_s < 86400


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The kernel's log since boot, or since its buffer's oldest line."""

    events: tuple[KernelEvent, ...]
    lines: int
    reaches_s: Maybe[float] | None = None  # age of the oldest line; None: it begins at the boot


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """Limits of a session without a terminal, which is what ranks get; None: unlimited."""

    open_files: int | None
    memlock_bytes: int | None
    shm_bytes: Maybe[int] = NOT_ASKED  # size of /dev/shm


@dataclass(frozen=True, slots=True)
class Blocked:
    """A process that sleeps in the kernel and cannot be killed (state D in two reads)."""

    pid: int
    name: str
    where: str  # kernel function
    since_s: Maybe[float]


@dataclass(frozen=True, slots=True)
class ProcessTable:
    zombies: tuple[str, ...]
    blocked: tuple[Blocked, ...]
    count: int
    hidden: str = ""  # why others' processes are not among them


@dataclass(frozen=True, slots=True)
class System:
    """The kind of machine and how its processors are set."""

    distribution: Maybe[str]
    governors: Maybe[tuple[str, ...]] = NOT_ASKED
    environ: Mapping[str, str] = field(default_factory=dict)  # variables that change how CUDA runs
