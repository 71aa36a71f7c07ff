"""NVML's answers, as the census's child prints them: the same facts as nvidia-smi's text gives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from checks.facts import Gpu, GpuFacts, GpuHealth, GpuProcess, Maybe, NvLinks, Section, Unknown
from checks.parsers.nvidia_smi import Owner, parse_owners
from checks.parsers.section import text_of, unreadable

REASON_BITS = {
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x100: "display clock",
}


def parse_nvml(section: Section | None, owners: Section | None = None) -> GpuFacts | None:
    """Facts of the census's NVML child; None where nvidia-smi was used instead."""
    if section is None or section.state != "ended" or section.rc != 0:
        return None
    text = text_of(section)
    if isinstance(text, Unknown):
        return GpuFacts("unreadable", f"NVML: {text.reason}")
    try:
        data = json.loads(text.strip().splitlines()[-1])
        rows = data["gpus"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError("no list of GPUs")
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return GpuFacts("unreadable", f"NVML: {unreadable(text).reason}")
    if not rows:
        return GpuFacts("none", "NVML sees no GPU")
    common = {"driver": data.get("driver"), "cuda": data.get("cuda")}
    lost = [str(row["lost"]) for row in rows if row.get("lost")]
    here = [row for row in rows if not row.get("lost")]
    said_of_owners = text_of(owners)
    return GpuFacts(
        "partial" if lost else "ok",
        "\n".join(lost),
        tuple(_nvml_gpu({**common, **row}) for row in here),
        _nvml_processes(here, "" if isinstance(said_of_owners, Unknown) else said_of_owners),
        nvlinks=_nvml_links(rows),
    )


# A card without the thing, or a function that only a newer library has; all else is a failure.
_HAS_NONE = re.compile(r"Not Supported|Not Found|Function Not Found|NVML_FI|nvml")


class _Values:
    """Values of one GPU in NVML's answer: {name: number, text, or {"error": why}}."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def _raw(self, name: str) -> Any:
        value = self._row.get(name)
        if isinstance(value, dict):
            why = str(value.get("error", "no value"))[:120]
            return Unknown(why, is_absence=_HAS_NONE.search(why) is not None)
        return Unknown(f"no {name}", is_absence=True) if value is None else value

    def text(self, name: str) -> Maybe[str]:
        value = self._raw(name)
        return value if isinstance(value, Unknown) else str(value)

    def number(self, name: str, scale: float = 1) -> Maybe[float]:
        value = self._raw(name)
        if isinstance(value, Unknown):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value * scale)
        return Unknown(f"cannot read {str(value)[:40]!r}")

    def whole(self, name: str) -> Maybe[int]:
        value = self.number(name)
        return value if isinstance(value, Unknown) else int(value)

    def flag(self, name: str) -> Maybe[bool]:
        value = self._raw(name)
        if isinstance(value, Unknown):
            return value
        return bool(value) if value in (0, 1) else Unknown(f"cannot read {str(value)[:40]!r}")


_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_RECOVERY_WORDS = (
    "None",
    "Reset",
    "Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
_RECOVERY = dict(enumerate(_RECOVERY_WORDS))


def _nvml_gpu(row: Mapping[str, Any]) -> Gpu:
    get = _Values(row)
    mode, action, mask = get.whole("compute_mode"), get.whole("recovery"), get.whole("throttle")
    return Gpu(
        index=get.whole("index"),
        uuid=get.text("uuid"),
        name=get.text("name"),
        driver=get.text("driver"),
        bus_id=get.text("bus_id"),
        power_w=get.number("power_mw", 1e-3),
        power_limit_w=get.number("power_limit_mw", 1e-3),
        memory_used_bytes=get.whole("memory_used"),
        memory_total_bytes=get.whole("memory_total"),
        utilization_percent=get.number("utilization"),
        temperature_c=get.number("temperature"),
        health=GpuHealth(
            cuda=get.text("cuda"),
            vbios=get.text("vbios"),
            inforom=get.text("inforom"),
            gsp=get.text("gsp"),
            persistence=get.flag("persistence"),
            mig=get.flag("mig"),
            compute_mode=mode if isinstance(mode, Unknown) else _COMPUTE_MODES.get(mode, str(mode)),
            ecc=get.flag("ecc"),
            corrected_volatile=get.whole("corrected_volatile"),
            uncorrected_volatile=get.whole("uncorrected_volatile"),
            sram_uncorrected_aggregate=get.whole("sram_uncorrected_aggregate"),
            sram_threshold_exceeded=get.flag("sram_threshold"),
            remapped_uncorrectable=get.whole("remapped_uncorrectable"),
            remap_pending=get.flag("remap_pending"),
            remap_failure=get.flag("remap_failure"),
            recovery_action=action
            if isinstance(action, Unknown)
            else _RECOVERY.get(action, f"action {action}"),
            throttle=mask
            if isinstance(mask, Unknown)
            else tuple(word for bit, word in REASON_BITS.items() if mask & bit),
            margin_c=get.number("margin_c"),
            power_default_w=get.number("power_default_mw", 1e-3),
            pcie_width=get.whole("pcie_width"),
            pcie_width_max=get.whole("pcie_width_max"),
            pcie_gen=get.whole("pcie_gen"),
            pcie_gen_max=get.whole("pcie_gen_max"),
            max_sm_mhz=get.number("max_sm_mhz"),
            fabric_state=get.text("fabric_state"),
            fabric_status=get.text("fabric_status"),
        ),
    )


def _nvml_links(rows: list[dict[str, Any]]) -> Maybe[tuple[NvLinks, ...]]:
    found = []
    for position, row in enumerate(rows):
        links = row.get("links")
        if isinstance(links, list):
            off = tuple(number for number, up in enumerate(links) if up != 1)
            found.append(NvLinks(position, len(links) - len(off), off))
    return tuple(found)


def _nvml_processes(rows: list[dict[str, Any]], owners: str) -> Maybe[tuple[GpuProcess, ...]]:
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
            owner = known.get(one[0], Owner())
            name = owner.command.split(" ")[0] if isinstance(owner.command, str) else ""
            used = one[1] if isinstance(one[1], int) else Unknown("not said")
            found.append(GpuProcess(one[0], str(row.get("uuid")), used, name, *owner))
    return tuple(found)
