"""Envelope of the census payload to facts about a node. Never raises on odd content."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from checks.facts import (
    NOT_ASKED,
    Gpu,
    GpuFacts,
    GpuHealth,
    Interpreter,
    Machine,
    Maybe,
    Memory,
    NodeFacts,
    Port,
    PythonEnv,
    Section,
    TorchGpus,
    Unknown,
    then,
)
from checks.parsers.clock import parse_clock
from checks.parsers.gpu_health import bus_key, parse_details, read_nvlinks, read_topology
from checks.parsers.infiniband import parse_fabric
from checks.parsers.kernel_log import parse_kernel_log
from checks.parsers.machine import (
    parse_git,
    parse_network,
    read_disk,
    read_files,
    read_limits,
    read_mounts,
    read_processes,
    read_system,
    read_wandb,
)
from checks.parsers.nvidia_smi import count_on_pci, parse_gpus, parse_module, parse_quantity
from checks.parsers.nvml import parse_nvml
from checks.parsers.section import Sections, parsed, read_sections, sections_of, unreadable

T = TypeVar("T")


def parse_census(name: str, envelope: Mapping[str, Any], *, loopback: bool = False) -> NodeFacts:
    """All facts of the census of one node."""
    sections, node, head = read_sections(envelope), envelope["node"], envelope.get("head", {})
    boot_id, times = _said(node, "boot_id"), (node["boottime_s"], node["time_s"])

    def of(key: str, read: Callable[[str], Maybe[T]]) -> Maybe[T]:
        return parsed(sections.get(key), read)

    return NodeFacts(
        name=name,
        loopback=loopback,
        noise=envelope.get("noise", ""),
        hostname=_said(node, "hostname"),
        user=_said(node, "user"),
        python=_said(node, "python"),
        gpus=parse_all_gpus(sections),
        machine=of("machine", lambda text: _machine(text, boot_id)),
        memory=of("meminfo", _memory),
        load_1min=of("loadavg", lambda text: parse_quantity(text.split()[0])),
        software=of("python", lambda text: then(_object(text), _python)),
        torch_gpus=of("torch", lambda text: then(_object(text), _torch_gpus)),
        interpreter=_interpreter(sections.get("python")),
        disks={
            path: parsed(section, lambda text: then(_object(text), read_disk))
            for path, section in sections_of(sections, "disk:").items()
        },
        ports={
            int(port): parsed(section, _port)
            for port, section in sections_of(sections, "port:").items()
            if port.isdecimal()
        },
        connect_s=head.get("connect_s", NOT_ASKED),
        fabric=parse_fabric(sections.get("ib"), sections.get("ib_again")),
        clock=parse_clock(sections, *times, head.get("samples")),
        kernel_log=parse_kernel_log(sections.get("kernel_log"), *times),
        shell_limits=of("limits", read_limits),
        mounts=of("mounts", read_mounts),
        network=parse_network(sections),
        processes=of("processes", read_processes),
        system=of("system", read_system),
        git=parse_git(sections),
        files=of("files", read_files),
        token=of("token", str.strip),
        token_s=sections["token"].seconds if "token" in sections else NOT_ASKED,
        wandb=of("wandb", read_wandb),
    )


def parse_all_gpus(sections: Sections) -> GpuFacts:
    """GPUs from NVML where it answered, else from nvidia-smi, with processes, links and health."""
    get, nvml = sections.get, sections.get("nvml")
    gpus = parse_nvml(nvml, get("gpu_owners"))
    if gpus is None and nvml is not None and "gpus" not in sections:
        gpus = GpuFacts("unreadable", f"NVML: {nvml.why_not}")
    elif gpus is None:
        gpus = parse_gpus(get("gpus"), get("gpu_processes"), get("gpu_owners"))
        details = parse_details(get("gpu_details"))
        gpus = dataclasses.replace(
            gpus,
            gpus=tuple(_with_health(gpu, details) for gpu in gpus.gpus),
            nvlinks=parsed(get("nvlink"), read_nvlinks, any_exit=True),
        )
    return dataclasses.replace(
        gpus,
        pairs=parsed(get("topology"), read_topology),
        on_pci=count_on_pci(get("pci")),
        module=parse_module(get("nvidia_proc")),
        nvswitches=count_on_pci(get("nvswitch")),
        # systemctl is-active exits 3 for every word but active.
        fabric_manager=parsed(get("fabric_manager"), _unit_state, any_exit=True),
    )


def _with_health(gpu: Gpu, details: Maybe[Mapping[str, GpuHealth]]) -> Gpu:
    bus = "" if isinstance(gpu.bus_id, Unknown) else bus_key(gpu.bus_id)
    missing = Unknown("nvidia-smi -q does not show this GPU")
    return dataclasses.replace(gpu, health=then(details, lambda known: known.get(bus, missing)))


def _unit_state(text: str) -> Maybe[str]:
    word = text.strip()
    known = ("active", "inactive", "failed", "activating", "deactivating")
    return word if word in known else unreadable(text)


def _said(node: Mapping[str, Any], key: str) -> Maybe[str]:
    return node[key] or Unknown(f"the node reported no {key}")


def _object(text: str) -> Maybe[dict[str, Any]]:
    """The JSON object in the last line of a text."""
    try:
        data = json.loads(text.rstrip().splitlines()[-1])
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else Unknown(f"cannot read {text[-80:]!r}")


def _memory(text: str) -> Maybe[Memory]:
    """/proc/meminfo."""
    rows = (line.split() for line in text.splitlines() if len(line) < 200)
    found = {
        row[0].rstrip(":"): int(row[1]) * 1024
        for row in rows
        if len(row) == 3 and row[2] == "kB" and row[1].isdecimal()
    }
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    try:
        return Memory(*(found[name] for name in names))
    except KeyError as missing:
        return Unknown(f"/proc/meminfo has no {missing.args[0]}")


def _machine(text: str, boot_id: Maybe[str]) -> Machine:
    """`key=value` lines of the census."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    cpus = found.get("cpus", "")
    return Machine(
        boot_id=boot_id,
        kernel=found.get("kernel") or Unknown("no kernel release"),
        cpus=int(cpus) if cpus.isdecimal() and len(cpus) < 9 else Unknown("no number of CPUs"),
        namespaces=" ".join(found.get(f"ns_{name}", "") for name in ("net", "pid", "uts")),
    )


def _python(data: Mapping[str, Any]) -> Maybe[PythonEnv]:
    """Versions of an interpreter's environment, as the census's question prints them."""
    packages, every = data.get("packages"), data.get("installed")
    version = data.get("python")
    if not (isinstance(packages, dict) and isinstance(every, dict) and isinstance(version, str)):
        return unreadable(str(data))
    return PythonEnv(
        executable=str(data.get("executable")),
        prefix=str(data.get("prefix")),
        version=version,
        packages={str(name): str(v) if v is not None else None for name, v in packages.items()},
        torch_cuda=_torch_cuda(packages.get("torch"), data.get("torch_cuda")),
        installed={str(name): str(v) for name, v in every.items()},
    )


def _torch_cuda(torch: object, cuda: object) -> Maybe[str | None]:
    """torch writes its CUDA, or None, into version.py: no such line is a lack of knowledge."""
    if torch is None or cuda == "None":
        return None
    return cuda if isinstance(cuda, str) else Unknown("torch's version.py does not say its CUDA")


def _torch_gpus(data: Mapping[str, Any]) -> Maybe[TorchGpus]:
    count, reason = data.get("count"), data.get("reason")
    if type(count) is not int or not isinstance(reason, str):
        return unreadable(str(data))
    return TorchGpus(count, " ".join(reason.split())[:240])


def _interpreter(section: Section | None) -> Interpreter:
    """Whether the interpreter is there: known absence is no lack of knowledge."""
    if section is None or section.state == "timeout":
        return "unknown"
    if section.state == "missing":
        return "missing"
    return "works" if section.state == "ended" and section.rc == 0 else "broken"


def _port(text: str) -> Maybe[Port]:
    """`free`, or the error of the attempt to listen and who holds the port."""
    if text.strip() == "free":
        return Port(True)
    if "Permission denied" in text:
        return Port(False, "this user may not listen there")
    return Port(False, text.strip()) if "in use" in text else Unknown(text.strip())
