"""How GPUs are set: persistence, MIG, compute mode, power limit; and memory that nobody owns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.compare import each_node, majority
from checks.facts import Fleet, Gpu, GpuFacts, GpuHealth, NodeFacts, Unknown, known
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import check
from checks.rules.gpu import need_answer, silent_others
from checks.rules.gpu_health import Judgement, each_gpu, per_gpu, unread


@check("gpu.persistence", advisory=True)
@each_gpu("persistence is on", "persistence")
def persistence(is_on: bool) -> Judgement:
    """The driver stays loaded while no program runs.

    Why: Else each start waits for its loading, and settings like the power limit are lost.
    Bad: WARN if it is off
    How: persistence mode
    Fix: sudo nvidia-smi -pm 1
    """
    return None if is_on else warn("persistence is off")


@check("gpu.mig", advisory=True)
@each_gpu("MIG is off", "mig")
def mig(is_on: bool) -> Judgement:
    """No GPU is cut into instances: a rank wants a whole one.

    Bad: FAIL if MIG is on
    How: MIG mode
    Fix: sudo nvidia-smi -mig 0
    """
    return fail("MIG is on") if is_on else None


@check("gpu.compute_mode", advisory=True)
@each_gpu("compute mode Default", "compute_mode")
def compute_mode(mode: str) -> Judgement:
    """More than one process may use a GPU: data loaders and NCCL's proxies do.

    Bad: FAIL if it is exclusive or prohibited
    How: compute mode
    Fix: sudo nvidia-smi -c 0
    """
    return None if mode == "Default" else fail(f"compute mode {mode}", mode, "Default")


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
        gib = gpu.memory_used_bytes / 2**30
        if gib <= most:
            return None
        if isinstance(processes, Unknown):
            return Unknown(f"{gib:.1f} GiB in use, and by whom: {processes}")
        text = f"{gib:.1f} GiB in use and no process"
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
            return unknown(f"power limit: {lost}")
        if not limits_w or most is None:
            return skip("no power limit is known, or none is common")
        if not other:
            return silent_others(gpus) or passed(f"power limit {most:g} W", most)
        low, numbers = min(other.values()), ",".join(map(str, other))
        bad = fail if low < limits.gpu_power_limit_fail_share * most else warn
        text = f"GPU {numbers}: power limit {low:g} W, most GPUs have {most:g} W"
        return bad(text, low, most, source="majority", fix=f"sudo nvidia-smi -pl {most:g}")

    return each_node(fleet, "gpus", judge)
