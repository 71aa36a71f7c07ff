"""CUDA: torch's build fits the driver of the node, and torch can use the GPUs."""

from __future__ import annotations

import re

from checks.facts import NOT_ASKED, Fleet, LaunchNeeds, NodeFacts, PythonEnv, TorchGpus, Unknown
from checks.finding import Finding, Lacks, fail, need, passed, skip, unknown, warn
from checks.reference.cuda_driver import COMPLETE, LOCKS, MINIMUM
from checks.registry import check
from checks.rules.gpu import no_gpu
from checks.rules.software import named_environment


@check("software.cuda_driver", "launch", advisory=True)
def cuda_driver(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """The driver is new enough for the CUDA that torch is built for.

    Why: Otherwise no rank of the node finds a GPU. CUDA 13 needs driver 580, CUDA 12 needs 525:
        docs.nvidia.com/deploy/cuda-compatibility, table of minor version compatibility
    Bad: FAIL if the driver is older (WARN where torch can use the GPUs all the same), or torch is
        built for the CPU; UNKNOWN if one cannot be read
    How: torch's version.py against the driver of NVML, nvidia-smi or /proc/driver/nvidia/version
    Fix: LOCK=cuda12 make venv for a driver from 525 to 579; or a newer driver
    """
    version = _torch_version(node, fleet)
    cuda = need(_environment(node).torch_cuda, "torch's CUDA: ", unknown)
    if cuda is None:
        text = f"torch {version} is built for the CPU, and the launch is on GPUs"
        return fail(text, version, fix="LOCK=cuda make venv, or LOCK=cuda12 before driver 580")
    seen = node.torch_gpus
    driver = need(node.gpus.driver, "the driver's version: ", unknown)
    numbers = re.match(r"(\d{3,4})\.", driver), re.match(r"(\d{1,3})\.\d", cuda)
    if not all(numbers):
        return unknown(f"cannot compare driver {driver!r} with torch's CUDA {cuda!r}")
    have, major = (int(number[1]) for number in numbers if number)
    least = MINIMUM.get(major)
    if least is None:
        return unknown(f"driver {driver}, and which one CUDA {cuda} needs is not known here")
    if have < least:
        text = f"driver {driver} is too old for torch {version}: CUDA {cuda} needs {least}"
        works = isinstance(seen, TorchGpus) and seen.count > 0
        text += "; torch can use the GPUs all the same (cuda-compat?)" if works else ""
        bad = warn if works else fail
        return bad(text, driver, f"{least} or newer", fix=_fix(have, least))
    complete = COMPLETE.get(cuda, least)
    part = "" if have >= complete else f", all of it from {complete} on"
    return passed(f"driver {driver} serves CUDA {cuda}{part}", driver)


def _fix(driver: int, least: int) -> str:
    """An environment for this driver, where there is one, or another driver."""
    fitting = next((LOCKS[major] for major in LOCKS if driver >= MINIMUM[major]), None)
    newer = f"install driver {least} or newer on the node"
    return f"LOCK={fitting} make venv; or {newer}" if fitting else newer


@check("software.torch_gpus", "launch", advisory=True)
def torch_gpus(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """torch can use a GPU for each rank of the node.

    Why: A driver may answer nvidia-smi although CUDA does not start: the fabric manager is down,
        the library and the kernel module have two versions, a variable hides the GPUs.
    Bad: FAIL with torch's reason if it can use none, or fewer than ranks; UNKNOWN without an answer
    How: torch.cuda in the interpreter of training, where a driver is loaded
    Fix: nvidia-smi -q -d FABRIC; systemctl status nvidia-fabricmanager; dmesg | grep -i nvrm
    """
    _torch_version(node, fleet)
    if _environment(node).torch_cuda is None:
        return skip("torch is built for the CPU, see software.cuda_driver")
    if node.torch_gpus == NOT_ASKED:
        return skip("no driver is loaded there, see gpu.driver")
    seen = need(node.torch_gpus, "whether torch can use the GPUs: ", unknown)
    ranks = launch.slots.get(node.name, 1)
    if seen.count == 0:
        why = seen.reason or "torch gives no reason"
        return fail(f"torch cannot use a GPU: {why}", 0, ranks)
    if seen.count < ranks:
        text = f"torch can use {seen.count} GPUs, the launch wants {ranks} ranks here"
        fix = f"is CUDA_VISIBLE_DEVICES set there? slots={seen.count} in its line of the hostfile"
        return fail(text, seen.count, ranks, fix=fix)
    return passed(f"torch can use {seen.count} GPUs", seen.count)


def _torch_version(node: NodeFacts, fleet: Fleet) -> str:
    """torch's version there; ends the rule where no GPU, no interpreter or no torch is there."""
    if fleet.device != "cuda":
        raise Lacks(skip("the launch uses no GPU"))
    if fleet.launch is not None:
        named_environment(fleet.launch)
    if found := no_gpu(node.gpus):
        raise Lacks(found)
    if isinstance(node.software, Unknown) and node.lacks_interpreter:
        raise Lacks(skip("no interpreter"))
    version = _environment(node).packages.get("torch")
    if version is None:
        raise Lacks(skip("torch is not installed, see software.torch_equal"))
    return version


def _environment(node: NodeFacts) -> PythonEnv:
    return need(node.software, lacks=unknown)
