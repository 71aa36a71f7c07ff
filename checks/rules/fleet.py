"""What the GPUs of all nodes should share; the majority is the baseline, or a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from checks.facts import NOT_ASKED, Fleet, Gpu, GpuHealth, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.rules.gpu_health import unread
from checks.runner import check, compare, majority


@check(
    "fleet.driver_equal",
    scope="fleet",
    bad="FAIL if it is not the majority's",
    how="driver version of NVML or nvidia-smi",
    fix="install the driver of the others, then reboot",
)
def driver_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same NVIDIA driver: NCCL and CUDA behave by it."""
    yield from compare(
        fleet,
        _common(lambda gpu: gpu.driver, "no GPU names its driver"),
        "NVIDIA driver",
        fix="install the driver of the others, then reboot",
        because="gpu.driver",
        expected=limits.expected.get("fleet.driver_equal"),
    )


@check(
    "gpu.model_equal",
    scope="fleet",
    bad="FAIL if it is not the majority's",
    how="product name",
    fix="leave the node out: -x; or launch on equal nodes only",
)
def model_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same GPU model: the slowest sets the pace, the smallest the batch."""
    yield from compare(
        fleet,
        _common(lambda gpu: gpu.name, "no GPU names its model"),
        "GPU model",
        fix="leave the node out: -x",
        because="gpu.driver",
        expected=limits.expected.get("gpu.model_equal"),
    )


@check(
    "gpu.vbios_equal",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="VBIOS version",
    fix="the vendor's firmware update",
)
def vbios_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same VBIOS: clocks and power limits come from it."""
    yield from _firmware(fleet, limits, "gpu.vbios_equal", "VBIOS", lambda health: health.vbios)


@check(
    "gpu.inforom_equal",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="InfoROM image version",
    fix="the vendor's firmware update",
)
def inforom_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same InfoROM image: a card that was replaced shows here."""
    yield from _firmware(
        fleet, limits, "gpu.inforom_equal", "InfoROM", lambda health: health.inforom
    )


@check(
    "gpu.power_limit",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the fleet's most common, FAIL under 0.8 of it",
    how="power limit of each GPU",
    fix="sudo nvidia-smi -pl WATTS",
)
def power_limit(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same power limit: a capped GPU is a slow one."""
    by_gpu = {
        f"{node.name} {position}": gpu.power_limit_w
        for node in fleet.reached
        for position, gpu in enumerate(node.gpus.gpus)
        if not isinstance(gpu.power_limit_w, Unknown)
    }
    most = majority(by_gpu).value
    for node in fleet.reached:
        names, gpus = (node.name,), node.gpus.gpus
        known = [
            (position, gpu.power_limit_w)
            for position, gpu in enumerate(gpus)
            if not isinstance(gpu.power_limit_w, Unknown)
        ]
        if node.gpus.state in ("none", "no-tool"):
            yield skip("no GPU", nodes=names)
        elif not gpus:
            yield unknown(f"GPUs: {node.gpus.summary}", nodes=names, because="gpu.driver")
        elif not known and (blind := unread(*(gpu.power_limit_w for gpu in gpus))) is not None:
            yield unknown(f"power limit: {blind.reason}", nodes=names)
        elif not known or most is None:
            yield skip("no power limit is known, or none is common", nodes=names)
        else:
            other = [(position, watts) for position, watts in known if watts != most]
            blind = unread(*(gpu.power_limit_w for gpu in gpus))
            if not other and blind is not None:
                yield unknown(f"power limit: {blind.reason}", nodes=names)
                continue
            if not other and node.gpus.state == "partial":
                why = f"the other GPUs: {node.gpus.summary}"
                yield unknown(why, nodes=names, because="gpu.driver")
                continue
            if not other:
                yield passed(f"power limit {most:g} W", nodes=names, value=f"{most:g}")
                continue
            low = min(watts for _, watts in other)
            which = ",".join(str(position) for position, _ in other)
            bad = fail if low < limits.gpu_power_limit_fail_share * most else warn
            yield bad(
                f"GPU {which}: power limit {low:g} W, most GPUs have {most:g} W",
                nodes=names,
                value=f"{low:g}",
                expected=f"{most:g}",
                source="majority",
                fix=f"sudo nvidia-smi -pl {most:g}",
            )


def _firmware(
    fleet: Fleet, limits: Profile, id: str, what: str, read: Callable[[GpuHealth], Any]
) -> Iterator[Finding]:
    def of(gpu: Gpu) -> Any:
        return gpu.health if isinstance(gpu.health, Unknown) else read(gpu.health)

    yield from compare(
        fleet,
        _common(of, f"no GPU names its {what}", absent_is_none=True),
        what,
        bad=warn,
        fix="the vendor's firmware update, in the next maintenance",
        because="gpu.driver",
        expected=limits.expected.get(id),
    )


def _common(
    read: Callable[[Gpu], Any], nothing: str, absent_is_none: bool = False
) -> Callable[[NodeFacts], Any]:
    """Reader for `compare`: the values of a node's GPUs, joined when they differ."""

    def of(node: NodeFacts) -> Any:
        if node.gpus.state in ("none", "no-tool"):
            return None
        values = [read(gpu) for gpu in node.gpus.gpus]
        if NOT_ASKED in values:
            return NOT_ASKED
        blind = unread(*values)
        if blind is not None:
            return blind
        if node.gpus.state == "partial":
            return Unknown(f"the other GPUs: {node.gpus.summary}")
        known = {value for value in values if not isinstance(value, Unknown)}
        if known:
            return ", ".join(sorted(known))
        if absent_is_none and node.gpus.gpus:
            return None
        return Unknown(node.gpus.summary or nothing)

    return of
