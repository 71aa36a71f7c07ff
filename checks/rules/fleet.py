"""What the GPUs of all nodes should share; the majority is the baseline, or a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.compare import each_node, majority, same
from checks.facts import NOT_ASKED, Fleet, GpuFacts, GpuHealth, Maybe, NodeFacts, Unknown, known
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import check
from checks.rules.gpu import no_answer, silent_others
from checks.rules.gpu_health import unread


@check("fleet.driver_equal", "fleet")
@same("NVIDIA driver", because="gpu.driver")
def driver_equal(node: NodeFacts) -> Maybe[str] | None:
    """The same NVIDIA driver: NCCL and CUDA behave by it.

    Bad: FAIL if it is not the majority's
    How: driver version of NVML or nvidia-smi
    Fix: install the driver of the others, then reboot
    """
    return _common(node, [gpu.driver for gpu in node.gpus.gpus], "no GPU names its driver")


@check("gpu.model_equal", "fleet")
@same("GPU model", because="gpu.driver")
def model_equal(node: NodeFacts) -> Maybe[str] | None:
    """The same GPU model: the slowest sets the pace, the smallest the batch.

    Bad: FAIL if it is not the majority's
    How: product name
    Fix: leave the node out: -x; or launch on equal nodes only
    """
    return _common(node, [gpu.name for gpu in node.gpus.gpus], "no GPU names its model")


@check("gpu.vbios_equal", "fleet", advisory=True)
@same("VBIOS", bad=warn, because="gpu.driver")
def vbios_equal(node: NodeFacts) -> Maybe[str] | None:
    """The same VBIOS: clocks and power limits come from it.

    Bad: WARN if it is not the majority's
    How: VBIOS version
    Fix: the vendor's firmware update, in the next maintenance
    """
    values = [one if isinstance(one, Unknown) else one.vbios for one in _healths(node)]
    return _common(node, values)


@check("gpu.inforom_equal", "fleet", advisory=True)
@same("InfoROM", bad=warn, because="gpu.driver")
def inforom_equal(node: NodeFacts) -> Maybe[str] | None:
    """The same InfoROM image: a card that was replaced shows here.

    Bad: WARN if it is not the majority's
    How: InfoROM image version
    Fix: the vendor's firmware update, in the next maintenance
    """
    values = [one if isinstance(one, Unknown) else one.inforom for one in _healths(node)]
    return _common(node, values)


def _healths(node: NodeFacts) -> list[Maybe[GpuHealth]]:
    return [gpu.health for gpu in node.gpus.gpus]


def _common(
    node: NodeFacts, values: Sequence[Maybe[str]], nothing: str | None = None
) -> Maybe[str] | None:
    """The values of a node's GPUs, joined when they differ.

    `nothing` is the reason where no GPU has a value; without it such a node is left out.
    """
    gpus = node.gpus
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


@check("gpu.power_limit", "fleet", advisory=True)
def power_limit(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same power limit: a capped GPU is a slow one.

    Bad: WARN if it is not the fleet's most common, FAIL under 0.8 of it
    How: power limit of each GPU
    Fix: sudo nvidia-smi -pl WATTS
    """
    every = [gpu for node in fleet.reached for gpu in node.gpus.gpus]
    most = majority(known(gpu.power_limit_w for gpu in every))

    def judge(_node: NodeFacts, gpus: GpuFacts) -> Finding:
        values = [gpu.power_limit_w for gpu in gpus.gpus]
        limits_w = {at: w for at, w in enumerate(values) if not isinstance(w, Unknown)}
        other = {at: watts for at, watts in limits_w.items() if watts != most}
        lost = unread(*values)
        if lacks := no_answer(gpus):
            return lacks
        if lost and not other:
            return unknown(f"power limit: {lost}")
        if not limits_w or most is None:
            return skip("no power limit is known, or none is common")
        if not other:
            good = passed(f"power limit {most:g} W", most)
            return silent_others(gpus) or good
        low, numbers = min(other.values()), ",".join(map(str, other))
        bad = fail if low < limits.gpu_power_limit_fail_share * most else warn
        text = f"GPU {numbers}: power limit {low:g} W, most GPUs have {most:g} W"
        return bad(text, low, most, source="majority", fix=f"sudo nvidia-smi -pl {most:g}")

    return each_node(fleet, "gpus", judge)
