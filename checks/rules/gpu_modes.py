"""How GPUs are set: persistence, MIG, compute mode; and memory that nobody owns."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import Gpu, GpuHealth, NodeFacts, Unknown
from checks.finding import Action, Finding, fail, skip, warn
from checks.profile import Profile
from checks.rules.gpu_health import per_gpu
from checks.runner import check


@check(
    "gpu.persistence",
    advisory=True,
    bad="WARN if it is off",
    how="persistence mode",
    fix="sudo nvidia-smi -pm 1",
)
def persistence(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The driver stays loaded while no program runs.

    Else each start waits for its loading, and settings like the power limit are lost.
    """

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        if isinstance(health.persistence, Unknown):
            return health.persistence
        return (
            None if health.persistence else warn("persistence is off", fix="sudo nvidia-smi -pm 1")
        )

    yield from per_gpu(node, judge, "persistence is on")


@check(
    "gpu.mig", advisory=True, bad="FAIL if MIG is on", how="MIG mode", fix="sudo nvidia-smi -mig 0"
)
def mig(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """No GPU is cut into instances: a rank wants a whole one."""

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        if isinstance(health.mig, Unknown):
            return health.mig
        return fail("MIG is on", fix="sudo nvidia-smi -mig 0") if health.mig else None

    yield from per_gpu(node, judge, "MIG is off")


@check(
    "gpu.compute_mode",
    advisory=True,
    bad="FAIL if it is exclusive or prohibited",
    how="compute mode",
    fix="sudo nvidia-smi -c 0",
)
def compute_mode(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """More than one process may use a GPU: data loaders and NCCL's proxies do."""

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        mode = health.compute_mode
        if isinstance(mode, Unknown):
            return mode
        if mode == "Default":
            return None
        return fail(
            f"compute mode {mode}", value=mode, expected="Default", fix="sudo nvidia-smi -c 0"
        )

    yield from per_gpu(node, judge, "compute mode Default")


@check(
    "gpu.memory_held",
    advisory=True,
    bad="WARN over 1 GiB without a process",
    how="used memory of a GPU on which no process is seen",
    fix="reset the GPU, or reboot",
)
def memory_held(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """No memory is held on a GPU that nobody uses."""
    processes = node.gpus.processes
    if isinstance(processes, tuple) and processes:
        yield skip("processes are on the GPUs, see gpu.busy")
        return

    def judge(gpu: Gpu, _health: GpuHealth) -> Finding | Unknown | None:
        used = gpu.memory_used_bytes
        if isinstance(used, Unknown):
            return used
        gib = used / 2**30
        if gib <= limits.gpu_memory_held_warn_gib:
            return None
        if isinstance(processes, Unknown):
            return Unknown(f"{gib:.1f} GiB in use, and by whom: {processes.reason}")
        return warn(
            f"{gib:.1f} GiB in use and no process",
            value=f"{gib:.2f}",
            expected=f"{limits.gpu_memory_held_warn_gib:g}",
            fix="another container's process? else reset the GPU",
            action=Action.RESET_GPU,
        )

    yield from per_gpu(node, judge, "memory is free")
