"""What is known about nodes: frozen facts that parsers make and rules read.

The lowest vocabulary of the house, not only of the checks. A value that could not be had is
`Unknown` with its reason, never 0 and never a guess. Bytes, watts, seconds, degrees Celsius.
Long, because it is the one place where a name is looked up; there is no code to speak of in it.
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
class GpuHealth:
    """What a driver knows about the state of one GPU beyond its load (`nvidia-smi -q`, NVML)."""

    cuda: Maybe[str] = NOT_ASKED  # newest CUDA that the driver serves
    vbios: Maybe[str] = NOT_ASKED
    inforom: Maybe[str] = NOT_ASKED
    gsp: Maybe[str] = NOT_ASKED
    persistence: Maybe[bool] = NOT_ASKED
    mig: Maybe[bool] = NOT_ASKED
    compute_mode: Maybe[str] = NOT_ASKED  # Default, Exclusive_Process, Prohibited
    ecc: Maybe[bool] = NOT_ASKED
    corrected_volatile: Maybe[int] = NOT_ASKED  # since the driver was loaded
    uncorrected_volatile: Maybe[int] = NOT_ASKED
    sram_uncorrected_aggregate: Maybe[int] = NOT_ASKED  # in the GPU's life
    sram_threshold_exceeded: Maybe[bool] = NOT_ASKED
    remapped_uncorrectable: Maybe[int] = NOT_ASKED  # rows
    remap_pending: Maybe[bool] = NOT_ASKED
    remap_failure: Maybe[bool] = NOT_ASKED
    pages_pending: Maybe[bool] = NOT_ASKED  # retired pages, V100 and older
    recovery_action: Maybe[str] = NOT_ASKED  # None, Reset, Reboot, Drain P2P, Drain and Reset
    reset_required: Maybe[bool] = NOT_ASKED
    throttle: Maybe[tuple[str, ...]] = NOT_ASKED  # active reasons, names of checks.parse.gpu_health
    margin_c: Maybe[float] = NOT_ASKED  # degrees left to the slowdown
    power_default_w: Maybe[float] = NOT_ASKED
    pcie_width: Maybe[int] = NOT_ASKED
    pcie_width_max: Maybe[int] = NOT_ASKED
    pcie_gen: Maybe[int] = NOT_ASKED
    pcie_gen_max: Maybe[int] = NOT_ASKED
    max_sm_mhz: Maybe[float] = NOT_ASKED
    fabric_state: Maybe[str] = NOT_ASKED  # Completed, In Progress; only with NVSwitch
    fabric_status: Maybe[str] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class NvLinks:
    """The NVLinks of one GPU; links that are off are named by number."""

    gpu: int
    active: int
    inactive: tuple[int, ...]
    speed_gbytes: Maybe[float] = NOT_ASKED  # of one link


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
    health: Maybe[GpuHealth] = NOT_ASKED


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
    nvswitches: Maybe[int] = NOT_ASKED  # NVSwitch chips on PCI
    nvlinks: Maybe[tuple[NvLinks, ...]] = NOT_ASKED
    fabric_manager: Maybe[str] = NOT_ASKED  # what systemctl says: active, inactive, failed
    pairs: Maybe[Mapping[str, str]] = NOT_ASKED  # "0-1" -> NV18, PIX, ... of topo -m

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
    installed: Mapping[str, str] = field(default_factory=dict)  # every distribution there


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
class Gid:
    """An entry of a port's GID table."""

    index: int
    gid: str
    type: Maybe[str]  # "RoCE v2", "IB/RoCE v1"
    netdev: Maybe[str] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class IbPort:
    """One port of an InfiniBand or RoCE card, from sysfs; `ibdev2netdev` shows the IP side only."""

    device: str  # mlx5_0
    port: int
    state: Maybe[str]  # ACTIVE, ARMED, INIT, DOWN
    phys_state: Maybe[str]  # LinkUp, Polling, Disabled
    rate_gbps: Maybe[float]
    link_layer: Maybe[str]  # InfiniBand, Ethernet
    netdev: Maybe[str] = NOT_ASKED
    lid: Maybe[int] = NOT_ASKED
    sm_lid: Maybe[int] = NOT_ASKED
    counters: Mapping[str, int] = field(default_factory=dict)  # since the driver was loaded
    growth: Maybe[Mapping[str, int]] = NOT_ASKED  # of error counters between two reads
    firmware: Maybe[str] = NOT_ASKED
    guid: Maybe[str] = NOT_ASKED
    board_id: Maybe[str] = NOT_ASKED
    model: Maybe[str] = NOT_ASKED  # hca_type
    gids: tuple[Gid, ...] = ()
    numa_node: Maybe[int] = NOT_ASKED

    @property
    def name(self) -> str:
        """mlx5_0:1, as NCCL_IB_HCA may write it."""
        return f"{self.device}:{self.port}"

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE" and self.phys_state == "LinkUp"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The InfiniBand and RoCE ports of a node; none is an answer too."""

    ports: tuple[IbPort, ...] = ()
    peermem: Maybe[bool] = NOT_ASKED  # kernel module nvidia_peermem
    growth_s: Maybe[float] = NOT_ASKED  # seconds between the two reads of the counters


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
        """It serves its own clock: says Normal and follows nothing (`local stratum 10`)."""
        return self.ref_id.upper() == "7F7F0101"


@dataclass(frozen=True, slots=True)
class TimeSource:
    """A server that a time daemon listens to."""

    address: str
    state: str  # selected, combined, excluded, falseticker, unreachable, jittery, pps
    stratum: int
    poll_s: float
    reach: int  # eight bits, newest lowest: 255 is all of the last eight answers
    last_rx_s: Maybe[float]
    offset_s: Maybe[float]  # positive: this node is ahead of that server
    error_s: Maybe[float]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The node's clock against the head's, over the open channel; the truth is within `error_s`."""

    offset_s: float  # positive: the node is ahead
    error_s: float  # half of the shortest round trip
    samples: int


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's clock, who steers it, and how it ran while we looked."""

    time_s: Maybe[float] = NOT_ASKED
    boottime_s: Maybe[float] = NOT_ASKED
    moved_s: Maybe[float] = NOT_ASKED  # wall against boot time during the payload; below 0: back
    kernel_synced: Maybe[bool] = NOT_ASKED  # adjtimex without STA_UNSYNC
    ntp_synchronized: Maybe[bool] = NOT_ASKED  # timedatectl
    tracking: Maybe[ChronyTracking] = NOT_ASKED
    sources: Maybe[tuple[TimeSource, ...]] = NOT_ASKED  # chronyc's, else ntpq's
    daemons: Maybe[tuple[str, ...]] = NOT_ASKED  # programs that steer a clock and run now
    clocksource: Maybe[str] = NOT_ASKED
    log_ahead_s: Maybe[float] = (
        NOT_ASKED  # newest journal entry against now; above 0: from the future
    )
    exchange: Maybe[Exchange] = NOT_ASKED

    @property
    def wall_minus_boot_s(self) -> Maybe[float]:
        """Changes only when the clock is stepped: slewing moves both."""
        for value in (self.time_s, self.boottime_s):
            if isinstance(value, Unknown):
                return value
        assert isinstance(self.time_s, float)
        assert isinstance(self.boottime_s, float)
        return self.time_s - self.boottime_s


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A line of the kernel's log that means something. `kind` is a word of checks.parse.kernel_log."""

    kind: str
    line: str
    age_s: Maybe[float]
    subject: str = ""  # GPU's PCI address, network interface, mount, process
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class KernelLog:
    """What the kernel said since boot, as far as its buffer reaches."""

    events: tuple[KernelEvent, ...]
    lines: int


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """Limits of a session without a terminal, which is what ranks get; None: unlimited."""

    open_files: int | None
    processes: int | None
    memlock_bytes: int | None
    shm_bytes: Maybe[int] = NOT_ASKED  # size of /dev/shm
    shm_free_bytes: Maybe[int] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system; `room` is Unknown where statfs gave no answer in time."""

    path: str
    kind: str  # ext4, nfs4, fuse.sshfs
    source: str
    read_only: bool
    room: Maybe[Disk]

    @property
    def is_network(self) -> bool:
        kind = self.kind.lower()
        return kind.startswith(("nfs", "fuse", "cifs", "smb", "ceph", "9p")) or kind in (
            "lustre", "beegfs", "gpfs", "wekafs", "glusterfs", "virtiofs",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface and its addresses with prefix length."""

    name: str
    up: bool
    mtu: Maybe[int]
    speed_mbps: Maybe[int]
    addresses: tuple[str, ...] = ()
    is_hardware: bool = False  # not a bridge, tunnel or container's cable


@dataclass(frozen=True, slots=True)
class Network:
    interfaces: tuple[Interface, ...]
    names: Mapping[str, Maybe[tuple[str, ...]]] = field(default_factory=dict)  # name -> addresses
    reach: Maybe[str] = NOT_ASKED  # the port where ranks meet: connected, refused, or why not


@dataclass(frozen=True, slots=True)
class Blocked:
    """A process that sleeps in the kernel and cannot be killed (state D in two looks)."""

    pid: int
    name: str
    where: str  # kernel function
    since_s: Maybe[float]


@dataclass(frozen=True, slots=True)
class ProcessTable:
    zombies: tuple[str, ...]
    blocked: tuple[Blocked, ...]
    count: int


@dataclass(frozen=True, slots=True)
class System:
    """The kind of machine and how its processors are set."""

    distribution: Maybe[str]
    governors: Maybe[tuple[str, ...]] = NOT_ASKED
    environ: Mapping[str, str] = field(default_factory=dict)  # variables that change how CUDA runs


@dataclass(frozen=True, slots=True)
class GitState:
    """The working copy that the launch starts in."""

    commit: str
    changed: tuple[str, ...]  # files with changes that are not committed


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or folder that the launch names; of a folder all files together."""

    exists: bool
    is_folder: bool = False
    size_bytes: int = 0
    files: int = 1


@dataclass(frozen=True, slots=True)
class Previous:
    """The last look at this node, as the head remembers it."""

    boot_id: str
    wall_minus_boot_s: Maybe[float]
    counters: Mapping[str, Mapping[str, int]]  # port name -> counter -> value
    age_s: float


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
    files: Mapping[str, Maybe[FileSeen]] = field(default_factory=dict)
    token: Maybe[str] = NOT_ASKED  # what the node reads in the shared folder's token file
    token_s: Maybe[float] = NOT_ASKED
    wandb: Maybe[bool] = NOT_ASKED  # a login is there; the key itself never leaves the node
    previous: Maybe[Previous] = NOT_ASKED


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
    env: Mapping[str, str] = field(default_factory=dict)  # of the ranks, as far as it is decided
    files: tuple[str, ...] = ()  # data, checkpoint, model cache: there and of one size everywhere
    wandb: bool = False  # the run reports to Weights & Biases
    config: str = ""  # what is to be launched, for messages


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes asked, in the hostfile's order, and what is to be launched on them."""

    nodes: tuple[NodeFacts, ...]
    launch: LaunchNeeds | None = None
    token: str | None = None  # what the head wrote into the shared folder

    @property
    def one_machine(self) -> bool:
        """All nodes are one machine under several names: one clock, one kernel, one fabric."""
        boots = {
            None if isinstance(node.machine, Unknown) else node.machine.boot_id
            for node in self.reached
        }
        return len(self.reached) > 1 and len(boots) == 1 and isinstance(next(iter(boots)), str)

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
