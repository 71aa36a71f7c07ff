"""Short ways to write facts in tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from checks.facts import GpuFacts, Machine, NodeFacts, PythonEnv, Section, Unknown
from checks.parsers.nvidia_smi import parse_gpus
from tests.captures.fake_nvidia_smi import capture, h100

NODE = {"hostname": "n1", "user": "me", "python": "3.10.12", "boot_id": "b1", "time_s": 1.8e9, "boottime_s": 9e4}  # fmt: skip
"""What a node says of itself beside the sections of its census."""


def ended(out: str, rc: int = 0, err: str = "") -> Section:
    return Section("ended", rc, out, err, 0.1)


def lacking(state: Any = "missing", err: str = "not found: nvidia-smi") -> Section:
    return Section(state, None, "", err, 0.1)


def gpus(
    count: int = 8, *, apps: str = "no-processes.apps.csv", pci: int | None = None, **more: Any
) -> GpuFacts:
    found = parse_gpus(ended(h100(count, **more)), ended(capture(apps)))
    return found if pci is None else dataclasses.replace(found, on_pci=pci)


def pci_devices(count: int) -> Section:
    """NVIDIA's devices as the census lists them."""
    return ended("\n".join(["#devices\t40", *(f"0000:{n:02x}:00.0 0x030200 0x2330" for n in range(count))]))  # fmt: skip


NO_TOOL = dataclasses.replace(parse_gpus(lacking()), on_pci=0)
HUNG = parse_gpus(lacking("timeout", "no end in 10 s, killed"))
FAILED = parse_gpus(ended(capture("driver-failed.txt"), 9))


def environment(version: str = "3.11.7", **packages: str | None) -> PythonEnv:
    have: dict[str, str | None] = {"torch": "2.9.0+cu128", "colossalai": "0.5.0", "av": "17.1.0"}
    return PythonEnv("/venv/bin/python", "/venv", version, {**have, **packages}, "12.8")


def machine(boot_id: str | Unknown, namespaces: str = "net:[1] pid:[1] uts:[1]") -> Machine:
    return Machine(boot_id, "6.8", 64, namespaces)


def node(name: str, **facts: Any) -> NodeFacts:
    """A healthy node with eight idle GPUs; `facts` replaces fields."""
    healthy = NodeFacts(
        name=name,
        hostname=name,
        user="me",
        python="3.10.12",
        gpus=gpus(),
        machine=machine(f"boot-{name}"),
        software=environment(),
        interpreter="works",
    )
    return dataclasses.replace(healthy, **facts)
