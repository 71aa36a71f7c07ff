"""How GPUs are set and joined: modes, power limit, PCIe, NVLink; memory that nobody owns."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from checks import units
from checks.compare import each_node, majority
from checks.facts import (
    NOT_ASKED,
    Fleet,
    Gpu,
    GpuFacts,
    GpuHealth,
    Maybe,
    NodeFacts,
    TorchGpus,
    Unknown,
    known,
)
from checks.facts.gpu import broken
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import check
from checks.rules.gpu import by_driver, need_answer, silent_others
from checks.rules.gpu_health import Judgement, each_gpu, first_unknown, per_gpu, unread


class _Setting(NamedTuple):
    """A check that every GPU has one value in a field of its health."""

    id: str
    field: str
    good: object
    passed: str
    bad: Callable[[Any], Finding]
    texts: dict[str, str]

    def register(self) -> None:
        def judge(_gpu: Gpu, health: GpuHealth) -> Judgement:
            value = getattr(health, self.field)
            if isinstance(value, Unknown):
                return value
            return None if value == self.good else self.bad(value)

        check(self.id, "node", advisory=True, **self.texts)(each_gpu(self.passed)(judge))


_SETTINGS = (
    _Setting("gpu.ecc_mode", "ecc", True, "ECC is on", lambda _: fail("ECC is off", action=Action.REBOOT),
             {"summary": "ECC is on.", "why": "Without it a flipped bit is a wrong number in the weights, without an error.",
              "bad": "FAIL if ECC is off", "how": "ECC mode of NVML or nvidia-smi -q", "fix": "sudo nvidia-smi -e 1; reboot"}),
    _Setting("gpu.persistence", "persistence", True, "persistence is on", lambda _: warn("persistence is off"),
             {"summary": "The driver stays loaded while no program runs.",
              "why": "Else each start waits for its loading, and settings like the power limit are lost.",
              "bad": "WARN if it is off", "how": "persistence mode", "fix": "sudo nvidia-smi -pm 1"}),
    _Setting("gpu.mig", "mig", False, "MIG is off", lambda _: fail("MIG is on"),
             {"summary": "No GPU is cut into instances: a rank wants a whole one.",
              "bad": "FAIL if MIG is on", "how": "MIG mode", "fix": "sudo nvidia-smi -mig 0"}),
    _Setting("gpu.compute_mode", "compute_mode", "Default", "compute mode Default",
             lambda mode: fail(f"compute mode {mode}", mode, "Default"),
             {"summary": "More than one process may use a GPU: data loaders and NCCL's proxies do.",
              "bad": "FAIL if it is exclusive or prohibited", "how": "compute mode", "fix": "sudo nvidia-smi -c 0"}),
)  # fmt: skip
for _setting in _SETTINGS:
    _setting.register()


@check("gpu.memory_held", advisory=True)
def memory_held(gpus: GpuFacts, limits: Profile) -> Iterable[Finding]:
    """No memory is held on a GPU that nobody uses.

    Bad: WARN over 1 GiB without a process
    How: used memory of a GPU on which no process is seen
    Fix: another container's process? else reset the GPU, or reboot
    """
    processes, most = gpus.processes, limits.gpu_memory_held_warn_gib
    if isinstance(processes, tuple) and processes:
        return [skip("processes are on the GPUs, see gpu.busy")]

    def judge(gpu: Gpu, _health: GpuHealth) -> Judgement:
        if isinstance(gpu.memory_used_bytes, Unknown):
            return gpu.memory_used_bytes
        gib, used = gpu.memory_used_bytes / 2**30, units.size(gpu.memory_used_bytes)
        if gib <= most:
            return None
        if isinstance(processes, Unknown):
            return Unknown(f"{used} in use, and by whom: {processes}")
        text = f"{used} in use and no process"
        return warn(text, f"{gib:.2f}", most, action=Action.RESET_GPU)

    return per_gpu(gpus, judge, "memory is free")


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
        need_answer(gpus)
        if (lost := unread(*values)) and not other:
            return (by_driver if broken(lost) else unknown)(f"power limit: {lost}")
        if not limits_w or most is None:
            return skip("no power limit is known, or none is common")
        if not other:
            return silent_others(gpus) or passed(f"power limit {most:g} W", most)
        low, numbers = min(other.values()), ",".join(map(str, other))
        bad = fail if low < limits.gpu_power_limit_fail_share * most else warn
        text = f"GPU {numbers}: power limit {low:g} W, most GPUs have {most:g} W"
        return bad(text, low, most, source="majority", fix=f"sudo nvidia-smi -pl {most:g}")

    return each_node(fleet, "gpus", judge)


@check("gpu.pcie", "fleet", advisory=True)
def pcie(fleet: Fleet) -> Iterator[Finding]:
    """Every GPU has all its PCIe lanes.

    Why: Half of the lanes is half of the speed of loading data and of GPUDirect.
    Bad: FAIL if the link is narrower than it can be, WARN if most GPUs of its model have the same
        width: their slots may be wired so; WARN if its generation is lower under load
    How: PCIe width and generation, current against maximum; an idle GPU may lower the generation
    Fix: reseat the card; service
    """
    widths: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for gpu in (gpu for node in fleet.reached for gpu in node.gpus.gpus):
        if isinstance(gpu.health, GpuHealth) and isinstance(gpu.health.pcie_width, int):
            widths[str(gpu.name)][gpu.health.pcie_width] += 1

    def judge(gpu: Gpu, health: GpuHealth) -> Judgement:
        now, most = health.pcie_width, health.pcie_width_max
        if isinstance(now, int) and isinstance(most, int) and now < most:
            seen = widths[str(gpu.name)]
            text = f"PCIe x{now} of x{most}"
            if seen[now] > 1 and 2 * seen[now] > seen.total():
                text += ", as most GPUs of this model here"
                fix = "look whether the slots are wired so; lspci -vv | grep LnkCap"
                return warn(text, f"x{now}", f"x{most}", fix=fix)
            return fail(text, f"x{now}", f"x{most}", action=Action.SERVICE)
        gen, best, load = health.pcie_gen, health.pcie_gen_max, gpu.utilization_percent
        busy = not isinstance(load, Unknown) and load > 50
        if busy and isinstance(gen, int) and isinstance(best, int) and gen < best:
            text = f"PCIe generation {gen} of {best} under load"
            return warn(text, gen, best, fix="lspci -vv; BIOS")
        return first_unknown(now) or first_unknown(most) or unread(gen, best, load)

    return each_node(fleet, "gpus", lambda _node, gpus: per_gpu(gpus, judge, "all PCIe lanes"))


@check("gpu.fabric", advisory=True)
def fabric(node: NodeFacts, gpus: GpuFacts) -> Iterable[Finding]:
    """With NVSwitch the fabric manager has done its work.

    Why: Without it CUDA does not even initialise on an SXM board.
    Bad: FAIL with NVSwitch and a manager that is not active, a fabric that is not Completed or not
        healthy, a GB200 or GB300 without one: its tray is not in the NVLink domain of the rack;
        WARN if the fabric recovers or has limited capacity; in a virtual machine without NVSwitch,
        whose host has the manager: WARN where torch can use the GPUs all the same, UNKNOWN where
        torch was not asked
    How: NVSwitch chips on PCI, systemctl is-active nvidia-fabricmanager, state and health of the
        fabric by the driver
    Fix: sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager
    """
    switches, manager = gpus.nvswitches, gpus.fabric_manager
    has_switches = isinstance(switches, int) and switches > 0
    if has_switches and manager in ("inactive", "failed"):
        text = f"{switches} NVSwitch chips, and the fabric manager is {manager}"
        return [fail(text, manager, "active")]

    def judge(gpu: Gpu, health: GpuHealth) -> Judgement:
        state, status = health.fabric_state, health.fabric_status
        bad_status = isinstance(status, str) and status != "Success"
        if isinstance(state, str) and (state != "Completed" or bad_status):
            text = state if isinstance(status, Unknown) else f"{state}, {status}"
            if health.is_virtual and not has_switches:
                return _of_host(text, node.torch_gpus)
            return fail(f"fabric is {text}", text, "Completed")
        if isinstance(state, Unknown) and state.is_absence and _OF_RACK.search(str(gpu.name)):
            text = "no state of the fabric: the tray is not in the NVLink domain of its rack"
            fix = (
                "nvidia-smi -q | grep -A9 Fabric; nvidia-imex, and the rack's fabric manager (NMX)"
            )
            return fail(text, "none", "Completed", fix=fix)
        if isinstance(health.fabric_health, tuple) and health.fabric_health:
            return _unhealthy(health.fabric_health)
        if isinstance(switches, Unknown) and switches != NOT_ASKED:
            return Unknown(f"NVSwitch chips: {switches}")
        if has_switches and manager != "active":
            return Unknown(f"the fabric manager: {manager}")
        return first_unknown(state) or unread(status, health.fabric_health)

    return per_gpu(gpus, judge, "fabric completed")


_OF_RACK = re.compile(r"\bGB[23]\d\d\b")  # GB200 and GB300 are made for NVLink over a rack
_SEVERE = ("Summary: Unhealthy", "Bandwidth:", "Route Unhealthy:", "Incorrect Configuration:")


def _unhealthy(problems: tuple[str, ...]) -> Finding:
    parts = [one for one in problems if not one.startswith("Summary:")] or list(problems)
    bad = fail if any(one.startswith(_SEVERE) for one in problems) else warn
    fix = (
        "nvidia-smi -q | grep -A9 Fabric; the fabric manager's log names the link or the partition"
    )
    return bad(f"the fabric is not healthy: {', '.join(parts)}", ", ".join(problems), "", fix=fix)


def _of_host(state: str, torch_gpus: Maybe[TorchGpus]) -> Finding:
    """A fabric that is not Completed, in a virtual machine: CUDA tells whether that matters."""
    text = f"fabric is {state} in a virtual machine, whose host owns NVSwitch"
    fix = "ask the owner of the host for the state of its fabric manager"
    if isinstance(torch_gpus, Unknown):
        return unknown(f"{text}; whether torch can use the GPUs: {torch_gpus}", fix=fix)
    if torch_gpus.count:
        return warn(f"{text}; torch can use the GPUs", state, "Completed", fix=fix)
    return fail(f"{text}; torch cannot use the GPUs", state, "Completed", fix=fix)
