"""Envelope of the census payload to facts about a node. Never raises on odd content."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from checks.facts import (
    NOT_ASKED,
    Disk,
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
    Unknown,
)
from checks.parsers.gpu_health import bus_key, parse_details, parse_nvlinks, parse_topology
from checks.parsers.infiniband import parse_fabric
from checks.parsers.kernel_log import parse_kernel_log
from checks.parsers.machine import (
    parse_clock,
    parse_files,
    parse_git,
    parse_limits,
    parse_mounts,
    parse_network,
    parse_processes,
    parse_system,
    parse_token,
    parse_wandb,
    read_disk,
)
from checks.parsers.nvidia_smi import count_on_pci, parse_gpus, parse_quantity
from checks.parsers.nvml import parse_nvml
from checks.parsers.section import read_sections, text_of, unreadable


def parse_census(name: str, envelope: Mapping[str, Any], *, loopback: bool = False) -> NodeFacts:
    """Everything the census of one node tells."""
    sections = read_sections(envelope)
    node = envelope.get("node")
    who: Mapping[str, Any] = node if isinstance(node, dict) else {}
    head = envelope.get("head")
    ours: Mapping[str, Any] = head if isinstance(head, dict) else {}
    clock = parse_clock(sections, who, ours.get("samples"))
    connect_s = ours.get("connect_s")
    return NodeFacts(
        name=name,
        loopback=loopback,
        noise=str(envelope.get("noise") or ""),
        hostname=_said(who, "hostname"),
        user=_said(who, "user"),
        python=_said(who, "python"),
        gpus=parse_all_gpus(sections),
        machine=parse_machine(sections.get("machine"), _said(who, "boot_id")),
        memory=parse_memory(sections.get("meminfo")),
        load_1min=parse_load(sections.get("loadavg")),
        software=parse_python(sections.get("python")),
        interpreter=parse_interpreter(sections.get("python")),
        disks={
            key.split(":", 1)[1]: parse_disk(section)
            for key, section in sections.items()
            if key.startswith("disk:")
        },
        ports={
            int(key.split(":", 1)[1]): parse_port(section)
            for key, section in sections.items()
            if key.startswith("port:") and key[5:].isdecimal()
        },
        connect_s=connect_s if isinstance(connect_s, float) else NOT_ASKED,
        fabric=parse_fabric(sections.get("ib"), sections.get("ib_again")),
        clock=clock,
        kernel_log=parse_kernel_log(
            sections.get("kernel_log"),
            clock if isinstance(clock, Unknown) else clock.boottime_s,
            clock if isinstance(clock, Unknown) else clock.time_s,
        ),
        shell_limits=parse_limits(sections.get("limits")),
        mounts=parse_mounts(sections.get("mounts")),
        network=parse_network(sections),
        processes=parse_processes(sections.get("processes")),
        system=parse_system(sections.get("system")),
        git=parse_git(sections),
        files=parse_files(sections.get("files")),
        token=parse_token(sections.get("token")),
        token_s=sections["token"].seconds if "token" in sections else NOT_ASKED,
        wandb=parse_wandb(sections.get("wandb")),
    )


def parse_all_gpus(sections: Mapping[str, Section]) -> GpuFacts:
    """GPUs from NVML where it answered, else from nvidia-smi, with processes, links and health."""
    nvml = sections.get("nvml")
    gpus = parse_nvml(nvml, sections.get("gpu_owners"))
    if gpus is None and nvml is not None and "gpus" not in sections:
        gpus = GpuFacts("unreadable", f"NVML: {nvml.why_not}")
    elif gpus is None:
        gpus = parse_gpus(
            sections.get("gpus"), sections.get("gpu_processes"), sections.get("gpu_owners")
        )
        details = parse_details(sections.get("gpu_details"))
        gpus = dataclasses.replace(
            gpus,
            gpus=tuple(_with_health(gpu, details) for gpu in gpus.gpus),
            nvlinks=parse_nvlinks(sections.get("nvlink")),
            pairs=parse_topology(sections.get("topology")),
        )
    manager = sections.get("fabric_manager")
    return dataclasses.replace(
        gpus,
        on_pci=count_on_pci(sections.get("pci")),
        nvswitches=count_on_pci(sections.get("nvswitch")),
        fabric_manager=NOT_ASKED if manager is None else _word_of(manager),
    )


def _with_health(gpu: Gpu, details: Maybe[Mapping[str, GpuHealth]]) -> Gpu:
    if isinstance(details, Unknown):
        return dataclasses.replace(gpu, health=details)
    bus = gpu.bus_id
    missing = Unknown("nvidia-smi -q does not show this GPU")
    health = missing if isinstance(bus, Unknown) else details.get(bus_key(bus), missing)
    return dataclasses.replace(gpu, health=health)


def _word_of(section: Section) -> Maybe[str]:
    """What `systemctl is-active` says; it exits 3 for every word but active."""
    text = text_of(section, any_exit=True)
    if isinstance(text, Unknown):
        return text
    word = text.strip()
    known = word in ("active", "inactive", "failed", "activating", "deactivating")
    return word if known else unreadable(text)


def _said(who: Mapping[str, Any], key: str) -> Maybe[str]:
    value = who.get(key)
    return value if isinstance(value, str) and value else Unknown(f"the node did not say its {key}")


def _object(section: Section | None) -> Maybe[dict[str, Any]]:
    """The JSON object in the last line of a section's text."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        data = json.loads(lines[-1])
    except (IndexError, ValueError, RecursionError):
        return Unknown(f"cannot read {text[-80:]!r}")
    return data if isinstance(data, dict) else Unknown(f"cannot read {text[-80:]!r}")


def parse_memory(section: Section | None) -> Maybe[Memory]:
    """/proc/meminfo."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB" and words[1].isdecimal():
            found[words[0].rstrip(":")] = int(words[1]) * 1024
    try:
        return Memory(
            found["MemTotal"], found["MemAvailable"], found["SwapTotal"], found["SwapFree"]
        )
    except KeyError as missing:
        return Unknown(f"/proc/meminfo has no {missing.args[0]}")


def parse_load(section: Section | None) -> Maybe[float]:
    """/proc/loadavg: the mean number of runnable processes over a minute."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    words = text.split()
    return parse_quantity(words[0]) if words else Unknown("empty")


def parse_machine(section: Section | None, boot_id: Maybe[str]) -> Maybe[Machine]:
    """`key=value` lines of the census."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    cpus = found.get("cpus", "")
    return Machine(
        boot_id=boot_id,
        machine_id=found.get("machine_id") or Unknown("no /etc/machine-id"),
        kernel=found.get("kernel") or Unknown("no kernel release"),
        cpus=int(cpus) if cpus.isdecimal() and len(cpus) < 9 else Unknown("no number of CPUs"),
        namespaces=" ".join(found.get(f"ns_{name}", "") for name in ("net", "pid", "uts")),
    )


def parse_disk(section: Section | None) -> Maybe[Disk]:
    """statfs of a folder, as the census's child prints it."""
    data = _object(section)
    return data if isinstance(data, Unknown) else read_disk(data)


def parse_python(section: Section | None) -> Maybe[PythonEnv]:
    """Versions of an interpreter's environment, as the census's question prints them."""
    data = _object(section)
    if isinstance(data, Unknown):
        return data
    packages = data.get("packages")
    cuda, every, version = data.get("torch_cuda"), data.get("installed"), data.get("python")
    if (
        not isinstance(packages, dict)
        or not isinstance(every, dict)
        or not isinstance(version, str)
    ):
        return Unknown(f"cannot read {str(data)[:80]!r}")
    return PythonEnv(
        executable=str(data.get("executable")),
        prefix=str(data.get("prefix")),
        version=version,
        packages={str(name): str(v) if v is not None else None for name, v in packages.items()},
        torch_cuda=None if cuda in (None, "None") else str(cuda),
        installed={str(name): str(v) for name, v in every.items()},
    )


def parse_interpreter(section: Section | None) -> Interpreter:
    """Whether the interpreter is there: known absence is no lack of knowledge."""
    if section is None or section.state == "timeout":
        return "unknown"
    if section.state == "missing":
        return "missing"
    return "works" if section.state == "ended" and section.rc == 0 else "broken"


def parse_port(section: Section | None) -> Maybe[Port]:
    """`free`, or the error of the attempt to listen and who holds the port."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    if text.strip() == "free":
        return Port(True)
    if "Permission denied" in text:
        return Port(False, "this user may not listen there")
    if "in use" in text:
        return Port(False, text.strip())
    return Unknown(text.strip() or "no answer")
