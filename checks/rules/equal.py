"""What all nodes should share; the majority is the baseline, or a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from checks.compare import Reader, compare
from checks.facts import NOT_ASKED, Fleet, GitState, Gpu, Maybe, NodeFacts, Unknown
from checks.finding import Finding, fail, warn
from checks.registry import check
from checks.rules.gpu_health import unread
from checks.rules.software import working_copy


def _of_gpus(read: Callable[[Gpu], Maybe[str]], nothing: str | None = None) -> Reader:
    """The values of a node's GPUs, joined when they differ.

    `nothing` is the reason where no GPU has a value; without it such a node is left out.
    """

    def common(node: NodeFacts) -> Maybe[str] | None:
        gpus = node.gpus
        values = [read(gpu) for gpu in gpus.gpus]
        if gpus.state in ("none", "no-tool"):
            return None
        if NOT_ASKED in values:
            return NOT_ASKED
        if lost := unread(*values):
            return lost
        if gpus.state == "partial":
            return Unknown(f"the other GPUs: {gpus.summary}")
        if known := {value for value in values if isinstance(value, str)}:
            return ", ".join(sorted(known))
        if gpus.gpus and nothing is None:
            return None
        return Unknown(gpus.summary or nothing or "no GPU")

    return common


def _of_health(field: str) -> Reader:
    def read(gpu: Gpu) -> Any:
        return getattr(gpu.health, field, gpu.health)  # the Unknown has no such field

    return _of_gpus(read)


def _firmware(node: NodeFacts) -> Maybe[str] | None:
    if isinstance(node.fabric, Unknown):
        return node.fabric
    found = set()
    for port in node.fabric.ports:
        values = port.firmware, port.model
        if lost := unread(*values):
            return Unknown(f"{port.name}: {lost}")
        if not any(isinstance(value, Unknown) for value in values):
            found.add(f"{port.model} {port.firmware}")
    return ", ".join(sorted(found)) or None


def _of_interfaces(field: str) -> Reader:
    """`eth0 1500, ib0 4092` of the interfaces that are in use."""

    def joined(node: NodeFacts) -> Maybe[str] | None:
        if isinstance(node.network, Unknown):
            return node.network
        if node.network.unlisted is not None:
            return node.network.unlisted
        used = (i for i in node.network.interfaces if i.up and i.is_hardware and i.addresses)
        values = {one.name: getattr(one, field) for one in used}
        for name, value in values.items():
            if lost := unread(value):
                return Unknown(f"{name}: {lost}")
        known = (f"{name} {v}" for name, v in values.items() if not isinstance(v, Unknown))
        return ", ".join(known) or None

    return joined


def _commit(node: NodeFacts) -> Maybe[str] | None:
    git = working_copy(node)
    return git.commit[:12] if isinstance(git, GitState) else git


class _Shared(NamedTuple):
    """A check that all nodes have one value; a WARN of it alone stops no launch."""

    id: str
    what: str
    bad: Callable[..., Finding]
    summary: str
    how: str
    fix: str
    read: Reader
    because: str | None = None

    def register(self) -> None:
        def rule(fleet: Fleet, expected: str | None) -> Iterator[Finding]:
            return compare(
                fleet, self.read, self.what, bad=self.bad, because=self.because, expected=expected
            )

        bad = f"{'WARN' if self.bad is warn else 'FAIL'} if it is not the majority's"
        texts = {"summary": self.summary, "bad": bad, "how": self.how, "fix": self.fix}
        check(self.id, "fleet", advisory=self.bad is warn, **texts)(rule)


_ALL = (
    _Shared("fleet.driver_equal", "NVIDIA driver", fail, "The same NVIDIA driver: NCCL and CUDA behave by it.",
            "driver version of NVML or nvidia-smi", "install the driver of the others, then reboot",
            _of_gpus(lambda gpu: gpu.driver, "no GPU names its driver"), "gpu.driver"),
    _Shared("gpu.model_equal", "GPU model", fail, "The same GPU model: the slowest sets the pace, the smallest the batch.",
            "product name", "leave the node out: -x; or launch on equal nodes only",
            _of_gpus(lambda gpu: gpu.name, "no GPU names its model"), "gpu.driver"),
    _Shared("gpu.vbios_equal", "VBIOS", warn, "The same VBIOS: clocks and power limits come from it.",
            "VBIOS version", "the vendor's firmware update, in the next maintenance", _of_health("vbios"), "gpu.driver"),
    _Shared("gpu.inforom_equal", "InfoROM", warn, "The same InfoROM image: a card that was replaced shows here.",
            "InfoROM image version", "the vendor's firmware update, in the next maintenance", _of_health("inforom"), "gpu.driver"),
    _Shared("ib.firmware_equal", "firmware", warn, "The same card firmware on all nodes.",
            "fw_ver of each card, by model", "mlxfwmanager -u, in the next maintenance", _firmware),
    _Shared("host.kernel_equal", "kernel", warn, "The same kernel: driver modules and network stacks behave by it.",
            "uname -r", "the same packages, then reboot", lambda node: getattr(node.machine, "kernel", node.machine)),
    _Shared("host.os_equal", "distribution", warn, "The same distribution.",
            "/etc/os-release", "the same image on all nodes", lambda node: getattr(node.system, "distribution", node.system)),
    _Shared("net.mtu", "MTU", warn, "The same MTU: large packets to a node with a smaller one vanish, small ones arrive.",
            "/sys/class/net/*/mtu of interfaces with a device and an address", "sudo ip link set dev NAME mtu N", _of_interfaces("mtu")),
    _Shared("net.speed", "Mb/s of", warn, "The same link speed: a card that came up at 1 Gb/s carries data and checkpoints.",
            "/sys/class/net/*/speed of interfaces with a device and an address", "cable, or the switch's port; ethtool NAME",
            _of_interfaces("speed_mbps")),
    _Shared("software.git_commit", "commit", fail, "The same commit of the code.", "git rev-parse HEAD in the folder that the launch starts in",
            "git checkout the others' commit there, or one shared folder", _commit),
)  # fmt: skip
for _shared in _ALL:
    _shared.register()
