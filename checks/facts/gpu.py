"""The GPUs of a node, as their driver describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from checks.facts.unknown import NOT_ASKED, Maybe, Unknown, known, then

# Bits of nvmlDeviceGetCurrentClocksEventReasons; nvidia-smi's names are in parsers/gpu_health.py.
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x100: "display clock",
}


def broken(*values: object) -> Literal["", "reset", "lost"]:
    """What the driver says of a GPU in place of values: it requires a reset, or it is lost."""
    words = [one.reason.lower() for one in values if isinstance(one, Unknown)]
    if any("gpu is lost" in one for one in words):
        return "lost"
    return "reset" if any("requires reset" in one for one in words) else ""


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
    channel_repair: Maybe[bool] = NOT_ASKED  # a memory channel waits for a reset, B200 and newer
    tpc_repair: Maybe[bool] = NOT_ASKED  # a part of the processor waits for one
    recovery_action: Maybe[str] = NOT_ASKED  # None, Reset, Reboot, Drain P2P, Drain and Reset
    reset_required: Maybe[bool] = NOT_ASKED
    throttle: Maybe[tuple[str, ...]] = NOT_ASKED  # active reasons, as in parsers.gpu_health
    margin_c: Maybe[float] = NOT_ASKED  # degrees left to the slowdown
    power_default_w: Maybe[float] = NOT_ASKED
    pcie_width: Maybe[int] = NOT_ASKED
    pcie_width_max: Maybe[int] = NOT_ASKED
    pcie_gen: Maybe[int] = NOT_ASKED
    pcie_gen_max: Maybe[int] = NOT_ASKED
    max_sm_mhz: Maybe[float] = NOT_ASKED
    fabric_state: Maybe[str] = NOT_ASKED  # Completed, In Progress; only with NVSwitch
    fabric_status: Maybe[str] = NOT_ASKED
    fabric_health: Maybe[tuple[str, ...]] = NOT_ASKED  # what is bad: `Route Unhealthy: True`
    virtualization: Maybe[str] = NOT_ASKED  # None; in a virtual machine: Pass-Through, VGPU

    @property
    def is_virtual(self) -> bool:
        """In a virtual machine, whose host may own NVSwitch and the fabric manager."""
        return self.virtualization in ("Pass-Through", "VGPU")


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

    @property
    def broken(self) -> Literal["", "reset", "lost"]:
        """Whether the driver says so in place of values."""
        own = (self.name, self.power_w, self.memory_used_bytes, self.temperature_c)
        health = self.health
        if isinstance(health, Unknown):
            return broken(*own)
        return broken(*own, health.persistence, health.compute_mode, health.ecc, health.pcie_width)

    @property
    def figures(self) -> dict[str, Maybe[float]]:
        """What each card has, by its word."""
        return {
            "index": self.index,
            "power": self.power_w,
            "power limit": self.power_limit_w,
            "memory": self.memory_used_bytes,
            "memory in all": self.memory_total_bytes,
            "use": self.utilization_percent,
            "temperature": self.temperature_c,
        }

    def label(self, position: int) -> str:
        """The driver's number; the position in the list where the driver gives none."""
        return str(position if isinstance(self.index, Unknown) else self.index)


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
    run: Maybe[str | None] = NOT_ASKED  # CLUSTERCTL_RUN of its environment; None: not one of ours
    rank: Maybe[int | None] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class KernelModule:
    """The driver's kernel module as /proc shows it."""

    version: str
    gpus: int  # that it has taken


GpuState = Literal[
    "ok",
    "partial",  # some GPUs answered, and there was an error text beside them
    "none",  # the driver works and has no device
    "no-tool",  # no nvidia-smi on the node
    "failed",  # an error message of nvidia-smi
    "hung",  # no answer before its deadline
    "unreadable",  # text that is no answer
]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPUs of a node, or the error of nvidia-smi: its whole text is `message`."""

    state: GpuState
    message: str = ""
    gpus: tuple[Gpu, ...] = ()
    processes: Maybe[tuple[GpuProcess, ...]] = NOT_ASKED
    on_pci: Maybe[int] = NOT_ASKED  # NVIDIA devices that the kernel sees on PCI, driver or not
    module: Maybe[KernelModule] = NOT_ASKED  # of the driver, whatever nvidia-smi says
    nvswitches: Maybe[int] = NOT_ASKED  # NVSwitch chips on PCI
    nvlinks: Maybe[tuple[NvLinks, ...]] = NOT_ASKED
    fabric_manager: Maybe[str] = NOT_ASKED  # word of systemctl: active, inactive, failed
    pairs: Maybe[Mapping[str, str]] = NOT_ASKED  # "0-1" -> NV18, PIX, ... of topo -m
    warnings: tuple[str, ...] = ()  # of nvidia-smi, beside GPUs that all answer

    @property
    def summary(self) -> str:
        """The first sentence of the message."""
        return self.message.split("\n", 1)[0].split(". ", 1)[0]

    @property
    def has_hardware(self) -> bool:
        """Whether the driver or PCI shows an NVIDIA GPU in the machine, even a broken one."""
        in_module = then(self.module, lambda module: module.gpus)
        seen = any(known((self.on_pci, in_module)))
        return self.state in ("ok", "partial", "failed", "hung") or seen

    @property
    def driver(self) -> Maybe[str]:
        """The driver's version: of a GPU that answers, else of the kernel module."""
        answers = known(gpu.driver for gpu in self.gpus)
        return answers[0] if answers else then(self.module, lambda module: module.version)

    @property
    def is_pci_unread(self) -> bool:
        """Whether the list of PCI devices could not be read; a machine may have none."""
        return isinstance(self.on_pci, Unknown) and not self.on_pci.is_absence

    @property
    def count(self) -> Maybe[int]:
        """GPUs that answer. No tool and no device is 0; a driver that fails is unknown."""
        if self.state in ("ok", "partial"):
            return len(self.gpus)
        if self.state in ("none", "no-tool"):
            return 0
        return Unknown(self.summary or self.state)
