"""The machine under a node: kernel, memory, limits, processes, clock, file systems, software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from checks.facts.unknown import NOT_ASKED, Maybe, Unknown, then


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


@dataclass(frozen=True, slots=True)
class ChronyTracking:
    """`chronyc tracking`. Offsets are positive where this node's clock is ahead of true time."""

    ref_id: str  # 00000000: none, 7F7F0101: its own clock
    ref_name: str
    stratum: int
    ref_time_s: float
    offset_s: float
    last_offset_s: float
    rms_offset_s: float
    frequency_ppm: float
    skew_ppm: float
    root_delay_s: float
    root_dispersion_s: float
    update_interval_s: float
    leap: str  # Normal, Insert second, Delete second, Not synchronised

    @property
    def root_distance_s(self) -> float:
        """The bound on the error that the chain of servers may have."""
        return self.root_delay_s / 2 + self.root_dispersion_s

    @property
    def is_local(self) -> bool:
        """It serves its own clock: it reports Normal and follows nothing (`local stratum 10`)."""
        return self.ref_id.upper() == "7F7F0101"


@dataclass(frozen=True, slots=True)
class TimeSource:
    """A server that a time daemon listens to."""

    address: str
    # selected, combined, excluded, falseticker, unreachable, rejected (ntpq's blank, but it
    # answers), not usable (chronyc's ?, but it answers), jittery, pps
    state: str
    stratum: int
    poll_s: float
    reach: int  # eight bits, newest lowest: 255 is all of the last eight answers
    last_rx_s: Maybe[float]
    offset_s: Maybe[float]  # positive: this node is ahead of that server
    error_s: Maybe[float]
    is_own_clock: bool = False  # ntpd's driver of the local clock, 127.127.1.x: it follows nothing


@dataclass(frozen=True, slots=True)
class Exchange:
    """The node's clock against the head's, over the open channel; the truth is within `error_s`."""

    offset_s: float  # positive: the node is ahead
    error_s: float  # half of the shortest round trip
    samples: int


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's clock, what steers it, and how it ran during the census."""

    time_s: Maybe[float] = NOT_ASKED
    boottime_s: Maybe[float] = NOT_ASKED
    moved_s: Maybe[float] = NOT_ASKED  # wall against boot time during the payload; below 0: back
    kernel_synced: Maybe[bool] = NOT_ASKED  # adjtimex without STA_UNSYNC
    kernel_max_error_s: Maybe[float] = NOT_ASKED  # grows by 0.5 ms a second that nobody steers
    ntp_synchronized: Maybe[bool] = NOT_ASKED  # timedatectl
    tracking: Maybe[ChronyTracking] = NOT_ASKED
    sources: Maybe[tuple[TimeSource, ...]] = NOT_ASKED  # chronyc's, else ntpq's
    daemons: Maybe[tuple[str, ...]] = NOT_ASKED  # programs that steer a clock and run now
    clocksource: Maybe[str] = NOT_ASKED
    log_ahead_s: Maybe[float] = NOT_ASKED  # newest file in /var/log against now; above 0: future
    exchange: Maybe[Exchange] = NOT_ASKED

    @property
    def wall_minus_boot_s(self) -> Maybe[float]:
        """Changes only when the clock is stepped: slewing moves both."""
        return then(
            self.time_s, lambda wall_s: then(self.boottime_s, lambda boot_s: wall_s - boot_s)
        )


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

    @property
    def used_share(self) -> float:
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def inodes_used_share(self) -> float:
        return 1 - self.inodes_free / self.inodes_total if self.inodes_total else 0.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system; `disk` is Unknown where statfs gave no answer in time."""

    path: str
    kind: str  # ext4, nfs4, fuse.sshfs
    source: str
    read_only: bool
    disk: Maybe[Disk]

    @property
    def is_network(self) -> bool:
        kind = self.kind.lower()
        others = ("lustre", "beegfs", "gpfs", "wekafs", "glusterfs", "virtiofs")
        return kind in others or kind.startswith(("nfs", "fuse", "cifs", "smb", "ceph", "9p"))


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or folder that the launch names; of a folder all files together."""

    exists: bool
    is_folder: bool = False
    size_bytes: int = 0
    files: int = 1
    has_more: bool = False  # more files than were counted: the size is not that of all


@dataclass(frozen=True, slots=True)
class PythonEnv:
    """An interpreter and the versions in its environment; None: not installed there."""

    executable: str
    prefix: str
    version: str
    packages: Mapping[str, str | None]
    torch_cuda: Maybe[str | None]  # None: a torch for the CPU
    installed: Mapping[str, str] = field(default_factory=dict)  # every distribution there


@dataclass(frozen=True, slots=True)
class TorchGpus:
    """What torch itself says of the node's GPUs: how many it can use, else why none."""

    count: int
    reason: str = ""  # torch's own words


Interpreter = Literal["works", "missing", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class GitState:
    """The working copy that the launch starts in."""

    commit: str
    changed: tuple[str, ...]  # files with changes that are not committed
