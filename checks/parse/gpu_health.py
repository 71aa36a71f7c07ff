"""`nvidia-smi -q`, `nvidia-smi nvlink -s`, `topo -m` and NVML's answers to facts about each GPU.

Two traps stand in the captures: Hopper prints `T.Limit`, the degrees that are left and not a
limit, and MIG or a broken card prints [N/A] or words where a number belongs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from checks.facts import (
    NOT_ASKED,
    Gpu,
    GpuFacts,
    GpuHealth,
    GpuProcess,
    Maybe,
    NvLinks,
    Section,
    Unknown,
)
from checks.parse.nvidia_smi import parse_owners, parse_quantity

REASONS = {
    "Idle": "idle", "Applications Clocks Setting": "applications clocks", "SW Power Cap": "power cap",
    "HW Slowdown": "hw slowdown", "HW Thermal Slowdown": "hw thermal",
    "HW Power Brake Slowdown": "power brake", "HW Power Braking": "power brake",
    "Sync Boost": "sync boost", "SW Thermal Slowdown": "sw thermal",
    "Display Clock Setting": "display clock",
}  # fmt: skip
"""Names of nvidia-smi for the bits of clocks_event_reasons, and ours."""

REASON_BITS = {
    0x1: "idle", 0x2: "applications clocks", 0x4: "power cap", 0x8: "hw slowdown",
    0x10: "sync boost", 0x20: "sw thermal", 0x40: "hw thermal", 0x80: "power brake",
    0x100: "display clock",
}  # fmt: skip


def parse_details(section: Section | None) -> Maybe[Mapping[str, GpuHealth]]:
    """Health by short bus id (`18:00.0` in lower case, with the domain), from `nvidia-smi -q`."""
    if section is None:
        return NOT_ASKED
    if section.state != "ended":
        return Unknown(section.why_not)
    return read_details(section.out)


def bus_key(bus_id: str) -> str:
    """00000000:18:00.0 and 0000:18:00.0 are one address."""
    return re.sub(r"^0*([0-9a-f]{4}):", r"\1:", bus_id.strip().lower())


def read_details(text: str) -> Maybe[Mapping[str, GpuHealth]]:
    """The log's blocks `GPU 00000000:18:00.0`; keys are joined with their indented parents."""
    common: dict[str, str] = {}
    blocks: dict[str, dict[str, str]] = {}
    here = common
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := re.match(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", line):
            here = blocks.setdefault(bus_key(match[1]), {})
            path = []
            continue
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        while path and path[-1][0] >= depth:
            path.pop()
        name, colon, value = line.strip().partition(" : ")
        if not colon and line.rstrip().endswith(":"):
            colon, name = ":", line.strip()[:-1]
        key = "/".join([*(parent for _, parent in path), name.strip()])
        if colon:
            here.setdefault(key, value.strip())
            # Throttle reasons nest although their parent has a value of its own.
            path.append((depth, name.strip()))
        else:
            path.append((depth, name.strip()))
    if not blocks:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "empty")
        return Unknown(f"nvidia-smi -q: {said[:120]}")
    return {bus: _health({**common, **words}) for bus, words in blocks.items()}


class _Words:
    """Values of one GPU's block; every question has an answer."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def text(self, *keys: str) -> Maybe[str]:
        for key in keys:
            value = self._words.get(key)
            if value is not None:
                if re.fullmatch(
                    r"\[?(N/A|Not Supported|ERR!|Unknown Error|GPU is lost)\]?|", value
                ):
                    return Unknown(value or f"no {key}")
                return value
        return Unknown(f"no {keys[0]}")

    def number(self, *keys: str) -> Maybe[float]:
        value = self.text(*keys)
        return value if isinstance(value, Unknown) else parse_quantity(value)

    def whole(self, *keys: str) -> Maybe[int]:
        value = self.text(*keys)
        if isinstance(value, Unknown):
            return value
        match = re.match(r"(\d{1,18})x?\b", value)
        return Unknown(f"cannot read {value[:40]!r}") if match is None else int(match[1])

    def flag(self, yes: str, no: str, *keys: str) -> Maybe[bool]:
        value = self.text(*keys)
        if isinstance(value, Unknown):
            return value
        word = value.lower()
        if word in (yes, no):
            return word == yes
        return Unknown(f"cannot read {value[:40]!r}")

    def total(self, *keys: str) -> Maybe[int]:
        """Sum of the counters that the card has; unknown when it has none of them."""
        found = [value for value in (self.whole(key) for key in keys) if isinstance(value, int)]
        return sum(found) if found else self.whole(keys[0])

    def reasons(self) -> Maybe[tuple[str, ...]]:
        active, seen = [], False
        for key, value in self._words.items():
            head, _, name = key.partition("/")
            if head not in ("Clocks Event Reasons", "Clocks Throttle Reasons"):
                continue
            word = REASONS.get(name.rsplit("/", 1)[-1])
            if word and value in ("Active", "Not Active"):
                seen = True
                active += [word] if value == "Active" else []
        return tuple(dict.fromkeys(active)) if seen else Unknown("no clocks event reasons")


def _health(words: Mapping[str, str]) -> GpuHealth:
    get = _Words(words)
    volatile, aggregate = "ECC Errors/Volatile/", "ECC Errors/Aggregate/"
    return GpuHealth(
        cuda=get.text("CUDA Version"),
        vbios=get.text("VBIOS Version"),
        inforom=get.text("Inforom Version/Image Version"),
        gsp=get.text("GSP Firmware Version"),
        persistence=get.flag("enabled", "disabled", "Persistence Mode"),
        mig=get.flag("enabled", "disabled", "MIG Mode/Current"),
        compute_mode=get.text("Compute Mode"),
        ecc=get.flag("enabled", "disabled", "ECC Mode/Current", "Ecc Mode/Current"),
        corrected_volatile=get.total(volatile + "SRAM Correctable", volatile + "DRAM Correctable"),
        uncorrected_volatile=get.total(
            volatile + "DRAM Uncorrectable", volatile + "SRAM Uncorrectable",
            volatile + "SRAM Uncorrectable Parity", volatile + "SRAM Uncorrectable SEC-DED",
        ),
        sram_uncorrected_aggregate=get.total(
            aggregate + "SRAM Uncorrectable",
            aggregate + "SRAM Uncorrectable Parity", aggregate + "SRAM Uncorrectable SEC-DED",
        ),
        sram_threshold_exceeded=get.flag("yes", "no", aggregate + "SRAM Threshold Exceeded"),
        remapped_uncorrectable=get.whole("Remapped Rows/Uncorrectable Error"),
        remap_pending=get.flag("yes", "no", "Remapped Rows/Pending"),
        remap_failure=get.flag("yes", "no", "Remapped Rows/Remapping Failure Occurred"),
        pages_pending=get.flag(
            "yes", "no", "Retired Pages/Pending Page Blacklist", "Retired Pages/Pending Page Retirement"
        ),
        recovery_action=get.text("GPU Recovery Action"),
        reset_required=get.flag("yes", "no", "GPU Reset Status/Reset Required"),
        throttle=get.reasons(),
        margin_c=_margin(get),
        power_default_w=get.number(
            "GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"
        ),
        pcie_width=get.whole("PCI/GPU Link Info/Link Width/Current"),
        pcie_width_max=get.whole("PCI/GPU Link Info/Link Width/Max"),
        pcie_gen=get.whole("PCI/GPU Link Info/PCIe Generation/Current"),
        pcie_gen_max=get.whole("PCI/GPU Link Info/PCIe Generation/Max"),
        max_sm_mhz=get.number("Max Clocks/SM"),
        fabric_state=get.text("Fabric/State"),
        fabric_status=get.text("Fabric/Status"),
    )  # fmt: skip


def _margin(get: _Words) -> Maybe[float]:
    """Degrees to the slowdown: `GPU T.Limit Temp` counts down to the slowdown's own T.Limit.

    On a H100 that has 57 C left and slows down at -2 that is 59; an A100 prints both as they are.
    """
    left = get.number("Temperature/GPU T.Limit Temp")
    if not isinstance(left, Unknown):
        slow = get.number("Temperature/GPU Slowdown T.Limit Temp")
        return left if isinstance(slow, Unknown) else left - slow
    now = get.number("Temperature/GPU Current Temp")
    limit = get.number("Temperature/GPU Slowdown Temp")
    if isinstance(now, Unknown):
        return now
    return limit if isinstance(limit, Unknown) else limit - now


def parse_nvlinks(section: Section | None) -> Maybe[tuple[NvLinks, ...]]:
    """`nvidia-smi nvlink -s`. A GPU without NVLink prints nothing behind its name."""
    if section is None:
        return NOT_ASKED
    if section.state != "ended":
        return Unknown(section.why_not)
    return read_nvlinks(section.out + "\n" + section.err)


def read_nvlinks(text: str) -> Maybe[tuple[NvLinks, ...]]:
    """`GPU 7: NAME (UUID: ..)` and its `Link 3: 25 GB/s` or `Link 3: <inactive>` lines."""
    found: dict[int, tuple[list[float], list[int]]] = {}
    here: tuple[list[float], list[int]] | None = None
    for line in text.splitlines():
        if match := re.match(r"^GPU (\d{1,4}): ", line):
            here = found.setdefault(int(match[1]), ([], []))
        elif here is None:
            continue
        elif match := re.match(
            r"^\s*Link (\d{1,3}): (?:(\d{1,6}(?:\.\d+)?) GB/s|<?inactive>?)", line
        ):
            if match[2]:
                here[0].append(float(match[2][:12]))
            else:
                here[1].append(int(match[1]))
        elif "all links are inactive" in line.lower():
            here[1].append(-1)
    if not found:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "empty")
        return Unknown(f"nvidia-smi nvlink: {said[:120]}")
    return tuple(
        NvLinks(gpu, len(speeds), tuple(off), speeds[0] if speeds else Unknown("no link is up"))
        for gpu, (speeds, off) in sorted(found.items())
    )


def parse_topology(section: Section | None) -> Maybe[Mapping[str, str]]:
    """`nvidia-smi topo -m`: "0-1" -> NV18 for each pair of GPUs, "0-NIC3" for GPU and card."""
    if section is None:
        return NOT_ASKED
    if section.state != "ended" or section.rc != 0:
        return Unknown(section.why_not)
    return read_topology(section.out)


def read_topology(text: str) -> Maybe[Mapping[str, str]]:
    columns: list[str] = []
    pairs: dict[str, str] = {}
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the header is underlined on some drivers
    for line in plain.splitlines():
        cells = line.split()
        if not columns:
            if cells[:1] == ["GPU0"] and not re.search(r"\bX\b", line):
                columns = [cell for cell in cells if re.fullmatch(r"(GPU|NIC)\d+|mlx\S+", cell)]
        elif re.fullmatch(r"GPU\d{1,3}", cells[0] if cells else ""):
            gpu = cells[0][3:]
            for column, cell in zip(columns, cells[1:], strict=False):
                if cell != "X":
                    pairs[f"{gpu}-{column.removeprefix('GPU')}"] = cell
    if not columns:
        return Unknown("no matrix in it" if text.strip() else "empty")
    return pairs


def parse_nvml(section: Section | None, owners: Section | None = None) -> GpuFacts | None:
    """Facts of the census's NVML child; None where NVML does not answer and nvidia-smi must."""
    if section is None or section.state != "ended" or section.rc != 0:
        return None
    try:
        data = json.loads(section.out.strip().splitlines()[-1])
        rows = data["gpus"]
        if not isinstance(rows, list) or not isinstance(data, dict):
            return None
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return None
    common = {"driver": data.get("driver"), "cuda": data.get("cuda")}
    gpus = tuple(_nvml_gpu({**common, **row}) for row in rows if isinstance(row, dict))
    if not gpus:
        return None  # nvidia-smi says in words why there is none
    lost = [str(row["lost"]) for row in rows if isinstance(row, dict) and row.get("lost")]
    text = owners.out if owners is not None and owners.state == "ended" else ""
    return GpuFacts(
        "partial" if lost else "ok",
        "\n".join(lost),
        tuple(gpu for gpu, row in zip(gpus, rows, strict=False) if not row.get("lost")),
        _nvml_processes(rows, text),
        nvlinks=_nvml_links(rows),
    )


class _Values:
    """Values of one GPU in NVML's answer: {name: number, text, or {"error": why}}."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def _raw(self, name: str) -> Any:
        value = self._row.get(name)
        if isinstance(value, dict):
            return Unknown(str(value.get("error", "no value"))[:120])
        return Unknown(f"no {name}") if value is None else value

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
    "None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain", "Bus Reset",
    "System Reboot",
)  # fmt: skip
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


def _nvml_links(rows: list[Any]) -> Maybe[tuple[NvLinks, ...]]:
    found = []
    for position, row in enumerate(rows):
        links = row.get("links") if isinstance(row, dict) else None
        if isinstance(links, list) and links:
            off = tuple(number for number, up in enumerate(links) if up != 1)
            found.append(NvLinks(position, len(links) - len(off), off))
    return tuple(found)


def _nvml_processes(rows: list[Any], owners: str) -> Maybe[tuple[GpuProcess, ...]]:
    known = parse_owners(owners)
    found = []
    for row in rows:
        listed = row.get("processes") if isinstance(row, dict) else None
        if isinstance(listed, dict):
            return Unknown(str(listed.get("error", "no list of processes")))
        for one in listed if isinstance(listed, list) else ():
            if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], int):
                continue
            unseen = Unknown("no such process in /proc: another container, or it has ended")
            user, age_s, command = known.get(one[0], (unseen, unseen, unseen))
            name = command.split(" ")[0] if isinstance(command, str) else ""
            used = one[1] if isinstance(one[1], int) else Unknown("not said")
            found.append(GpuProcess(one[0], str(row.get("uuid")), used, name, user, age_s, command))
    return tuple(found)
