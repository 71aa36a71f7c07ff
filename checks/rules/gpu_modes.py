"""How GPUs are set: persistence, MIG, compute mode; and memory that nobody owns."""

from __future__ import annotations

from collections.abc import Iterable

from checks.facts import Gpu, GpuFacts, GpuHealth, Unknown
from checks.finding import Action, Finding, fail, skip, warn
from checks.profile import Profile
from checks.registry import check
from checks.rules.gpu_health import Judgement, each_gpu, per_gpu


@check("gpu.persistence", advisory=True)
@each_gpu("persistence is on")
def persistence(_gpu: Gpu, health: GpuHealth) -> Judgement:
    """The driver stays loaded while no program runs.

    Else each start waits for its loading, and settings like the power limit are lost.

    Bad: WARN if it is off
    How: persistence mode
    Fix: sudo nvidia-smi -pm 1
    """
    if isinstance(health.persistence, Unknown):
        return health.persistence
    return None if health.persistence else warn("persistence is off")


@check("gpu.mig", advisory=True)
@each_gpu("MIG is off")
def mig(_gpu: Gpu, health: GpuHealth) -> Judgement:
    """No GPU is cut into instances: a rank wants a whole one.

    Bad: FAIL if MIG is on
    How: MIG mode
    Fix: sudo nvidia-smi -mig 0
    """
    if isinstance(health.mig, Unknown):
        return health.mig
    return fail("MIG is on") if health.mig else None


@check("gpu.compute_mode", advisory=True)
@each_gpu("compute mode Default")
def compute_mode(_gpu: Gpu, health: GpuHealth) -> Judgement:
    """More than one process may use a GPU: data loaders and NCCL's proxies do.

    Bad: FAIL if it is exclusive or prohibited
    How: compute mode
    Fix: sudo nvidia-smi -c 0
    """
    mode = health.compute_mode
    if isinstance(mode, Unknown):
        return mode
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
