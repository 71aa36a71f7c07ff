"""NVML's answers, as the census's child prints them: the same facts as nvidia-smi's text gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from checks.facts import (
    THROTTLE_REASONS,
    Gpu,
    GpuFacts,
    GpuHealth,
    GpuProcess,
    Maybe,
    NvLinks,
    Section,
    Unknown,
    or_none,
    then,
)
from checks.parsers.gpu_health import HEALTH_FIELDS
from checks.parsers.nvidia_smi import (
    GPU_FIELDS,
    Owner,
    Values,
    gpu_values,
    parse_owners,
    with_own_index,
)
from checks.parsers.section import text_of, unreadable

_NAMES = {"sram_threshold_exceeded": "sram_threshold", "power_default_w": "power_default_mw"}
_VIRTUALIZATION = ("None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA")
_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_RECOVERIES = (
    *("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain"),
    *("Bus Reset", "System Reboot"),
)
# A card without the thing, or a function that only a newer library has; all else is a failure.
_HAS_NONE = re.compile(r"Not Supported|Not Found|Function Not Found|NVML_FI|nvml")


def parse_nvml(section: Section | None, owners: Section | None = None) -> GpuFacts | None:
    """Facts of the census's NVML child; None where nvidia-smi was used instead."""
    if section is None or section.state != "ended" or section.rc != 0:
        return None
    text = text_of(section)
    if isinstance(text, Unknown):
        return GpuFacts("unreadable", f"NVML: {text}")
    try:
        data = json.loads(text.strip().splitlines()[-1])
        rows = data["gpus"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError("no list of GPUs")
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return GpuFacts("unreadable", f"NVML: {unreadable(text)}")
    if not rows:
        return GpuFacts("none", "NVML sees no GPU")
    common = {"driver": data.get("driver"), "cuda": data.get("cuda")}
    lost = [str(row["lost"]) for row in rows if row.get("lost")]
    here = [row for row in rows if not row.get("lost")]
    return GpuFacts(
        "partial" if lost else "ok",
        "\n".join(lost),
        with_own_index([_gpu({**common, **row}) for row in here]),
        _processes(here, owners),
        nvlinks=_links(rows),
    )


def _value(name: str, value: Any) -> Any:
    """A number or text, with its unit; {"error": why} is Unknown."""
    if isinstance(value, dict):
        why = str(value.get("error", "no value"))[:120]
        return Unknown(why, is_absence=_HAS_NONE.search(why) is not None)
    return f"{value} mW" if name.endswith("_mw") and value is not None else value


def _gpu(row: Mapping[str, Any]) -> Gpu:
    get = Values({name: _value(name, value) for name, value in row.items()})
    health: dict[str, Any] = {
        field: getattr(get, method)(_NAMES.get(field, field))
        for field, (method, _) in HEALTH_FIELDS.items()
        if field not in ("pages_pending", "reset_required", "channel_repair", "tpc_repair")
    }
    mode, recovery = get.whole("compute_mode"), get.whole("recovery")
    health["compute_mode"] = then(mode, lambda n: _named(n, _COMPUTE_MODES, "{}"))
    health["recovery_action"] = then(recovery, lambda n: _named(n, _RECOVERIES, "action {}"))
    virtualization = get.whole("virtualization")
    health["virtualization"] = then(virtualization, lambda n: _named(n, _VIRTUALIZATION, "mode {}"))
    health["channel_repair"], health["tpc_repair"] = (
        get.flag("channel_repair"),
        get.flag("tpc_repair"),
    )
    mask, summary = get.whole("fabric_health"), get.whole("fabric_summary")
    health["fabric_health"] = then(mask, lambda bits: fabric_health(bits, or_none(summary) or 0))
    throttle = then(get.whole("throttle"), _reasons)
    return Gpu(
        **gpu_values(get, {field: name for field, (_, _, name) in GPU_FIELDS.items()}),
        health=GpuHealth(throttle=throttle, margin_c=get.number("margin_c"), **health),
    )


# Bits of NVML's mask of a fabric's health: place, width, what each value means that is not good.
_CONFIGURATIONS = dict(
    enumerate(
        (
            *("Incorrect SysGUID", "Incorrect Chassis SN", "No Partition", "Insufficient NVLinks"),
            *("Incompatible GPU FW", "Invalid Location", "GPU State Invalid"),
        ),
        start=2,
    )
)
_HEALTH = (
    (0, 0x3, "Bandwidth", {1: "Degraded"}),
    (2, 0x3, "Route Recovery in progress", {1: "True"}),
    (4, 0x3, "Route Unhealthy", {1: "True"}),
    (6, 0x3, "Access Timeout Recovery", {1: "True"}),
    (8, 0xF, "Incorrect Configuration", _CONFIGURATIONS),
    (12, 0x3, "Partition Assigned", {2: "False"}),
    (14, 0x3, "GFM State", {2: "Disconnected"}),
)
_SUMMARIES = {2: "Unhealthy", 3: "Limited Capacity"}


def fabric_health(mask: int, summary: int = 0) -> Maybe[tuple[str, ...]]:
    """The same words as `nvidia-smi -q` has; a mask of zeros is a card that has no such thing."""
    if not mask and not summary:
        return Unknown("no health of the fabric", is_absence=True)
    bad = [f"Summary: {_SUMMARIES[summary]}"] if summary in _SUMMARIES else []
    for place, width, name, values in _HEALTH:
        value = mask >> place & width
        if value in values:
            bad.append(f"{name}: {values[value]}")
        elif name == "Incorrect Configuration" and value > max(values):
            bad.append(f"{name}: {value}")
    return tuple(bad)


def _reasons(mask: int) -> tuple[str, ...]:
    return tuple(word for bit, word in THROTTLE_REASONS.items() if mask & bit)


def _named(number: int, names: tuple[str, ...], other: str) -> str:
    return names[number] if 0 <= number < len(names) else other.format(number)


def _links(rows: list[dict[str, Any]]) -> Maybe[tuple[NvLinks, ...]]:
    found = []
    for position, row in enumerate(rows):
        links = row.get("links")
        if isinstance(links, list):
            off = tuple(number for number, up in enumerate(links) if up != 1)
            found.append(NvLinks(position, len(links) - len(off), off))
    return tuple(found)


def _processes(rows: list[dict[str, Any]], owners: Section | None) -> Maybe[tuple[GpuProcess, ...]]:
    known = parse_owners(owners)
    found = []
    for row in rows:
        listed = row.get("processes")
        if not isinstance(listed, list):
            why = listed.get("error") if isinstance(listed, dict) else None
            return Unknown(f"GPU {row.get('index')}: {why or 'no list of processes'}")
        for one in listed:
            if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], int):
                return unreadable(str(one))
            pid, used = one
            owner = known.get(pid, Owner())
            name = owner.command.split(" ")[0] if isinstance(owner.command, str) else ""
            used_bytes = used if isinstance(used, int) else Unknown("not reported")
            found.append(GpuProcess(pid, str(row.get("uuid")), used_bytes, name, *owner))
    return tuple(found)
