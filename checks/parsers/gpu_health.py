"""`nvidia-smi -q`, `nvidia-smi nvlink -s` and `topo -m` to facts about each GPU.

Two traps are in the captures: Hopper prints `T.Limit`, the degrees that are left and not a limit,
and MIG or a broken card prints [N/A] or text in place of a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from checks.facts import GpuHealth, Maybe, NvLinks, Section, Unknown, then
from checks.parsers.nvidia_smi import Values
from checks.parsers.section import first_line, parsed

REASONS = {
    "Idle": "idle",
    "Applications Clocks Setting": "applications clocks",
    "SW Power Cap": "power cap",
    "HW Slowdown": "hw slowdown",
    "HW Thermal Slowdown": "hw thermal",
    "HW Power Brake Slowdown": "power brake",
    "HW Power Braking": "power brake",
    "Sync Boost": "sync boost",
    "SW Thermal Slowdown": "sw thermal",
    "Display Clock Setting": "display clock",
}
"""Names of nvidia-smi for the bits of clocks_event_reasons, and ours."""

_POWER = ("GPU Power Readings", "Power Readings")
_OF_CLOCKS = ("Clocks Event Reasons/", "Clocks Throttle Reasons/")
_VOLATILE, _AGGREGATE = "ECC Errors/Volatile/", "ECC Errors/Aggregate/"
_SRAM = ("SRAM Uncorrectable", "SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED")


def _in(block: str, *keys: str) -> tuple[str, ...]:
    return tuple(block + key for key in keys)


def _repair(key: str) -> tuple[str, ...]:
    """It stands beside or in the blocks of ECC errors, by the driver's version."""
    return key, f"ECC Errors/{key}", f"{_AGGREGATE}{key}", f"{_VOLATILE}{key}"


HEALTH_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cuda": ("text", ("CUDA Version",)),
    "vbios": ("text", ("VBIOS Version",)),
    "inforom": ("text", ("Inforom Version/Image Version",)),
    "gsp": ("text", ("GSP Firmware Version",)),
    "persistence": ("flag", ("Persistence Mode",)),
    "mig": ("flag", ("MIG Mode/Current",)),
    "compute_mode": ("text", ("Compute Mode",)),
    "ecc": ("flag", ("ECC Mode/Current", "Ecc Mode/Current")),
    # Cards before Ampere have totals of single and double bit errors.
    "corrected_volatile": (
        "total",
        _in(_VOLATILE, "SRAM Correctable", "DRAM Correctable", "Single Bit/Total"),
    ),
    "uncorrected_volatile": (
        "total",
        _in(_VOLATILE, "DRAM Uncorrectable", *_SRAM, "Double Bit/Total"),
    ),
    "sram_uncorrected_aggregate": ("total", _in(_AGGREGATE, *_SRAM)),
    "sram_threshold_exceeded": ("flag", (f"{_AGGREGATE}SRAM Threshold Exceeded",)),
    "remapped_uncorrectable": ("whole", ("Remapped Rows/Uncorrectable Error",)),
    "remap_pending": ("flag", ("Remapped Rows/Pending",)),
    "remap_failure": ("flag", ("Remapped Rows/Remapping Failure Occurred",)),
    "pages_pending": ("flag", _in("Retired Pages/Pending Page ", "Blacklist", "Retirement")),
    "channel_repair": ("flag", _repair("Channel Repair Pending")),
    "tpc_repair": ("flag", _repair("TPC Repair Pending")),
    "recovery_action": ("text", ("GPU Recovery Action",)),
    "reset_required": ("flag", ("GPU Reset Status/Reset Required",)),
    "power_default_w": ("number", tuple(f"{one}/Default Power Limit" for one in _POWER)),
    "pcie_width": ("whole", ("PCI/GPU Link Info/Link Width/Current",)),
    "pcie_width_max": ("whole", ("PCI/GPU Link Info/Link Width/Max",)),
    "pcie_gen": ("whole", ("PCI/GPU Link Info/PCIe Generation/Current",)),
    "pcie_gen_max": ("whole", ("PCI/GPU Link Info/PCIe Generation/Max",)),
    "max_sm_mhz": ("number", ("Max Clocks/SM",)),
    "fabric_state": ("text", ("Fabric/State",)),
    "fabric_status": ("text", ("Fabric/Status",)),
    "virtualization": ("text", ("GPU Virtualization Mode/Virtualization Mode",)),
}
"""Fields of GpuHealth: the method of Values that reads them, their keys in `nvidia-smi -q`."""


def parse_details(section: Section | None) -> Maybe[Mapping[str, GpuHealth]]:
    """Health by short bus id (`18:00.0` in lower case, with the domain), from `nvidia-smi -q`."""
    failed = f"nvidia-smi -q: exit {section.rc}" if section and section.rc else ""
    # One bad card makes its exit status bad.
    return parsed(section, lambda text: read_details(text, failed), any_exit=True)


def bus_key(bus_id: str) -> str:
    """00000000:18:00.0 and 0000:18:00.0 are one address."""
    return re.sub(r"^0*([0-9a-f]{4}):", r"\1:", bus_id.strip().lower())


def read_details(text: str, failed: str = "") -> Maybe[Mapping[str, GpuHealth]]:
    """The log's blocks `GPU 00000000:18:00.0`; keys are joined with their indented parents.

    `failed` is the reason why lines may be missing; without it this card or driver does not have a
    line that is not there.
    """
    common: dict[str, str] = {}
    blocks: dict[str, dict[str, str]] = {}
    here = common
    path: list[tuple[int, str]] = []
    for line in filter(str.strip, text.splitlines()):
        if match := re.match(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", line):
            here = blocks.setdefault(bus_key(match[1]), {})
            path = []
            continue
        depth = len(line) - len(line.lstrip())
        while path and path[-1][0] >= depth:
            path.pop()
        name, colon, value = line.strip().partition(" : ")
        if not colon and name.endswith(":"):
            name, colon = name[:-1], ":"
        # Throttle reasons nest although their parent has a value, too.
        path.append((depth, name.strip()))
        if colon:
            here.setdefault("/".join(part for _, part in path), value.strip())
    if not blocks:
        return Unknown(f"nvidia-smi -q: {first_line(text)[:120]}")
    return {bus: _health({**common, **words}, failed) for bus, words in blocks.items()}


def _health(words: Mapping[str, str], failed: str) -> GpuHealth:
    get = Values(words, failed)
    values = {field: getattr(get, method)(*keys) for field, (method, keys) in HEALTH_FIELDS.items()}
    values["fabric_health"] = _fabric_health(words, get)
    return GpuHealth(throttle=_reasons(words, get), margin_c=_margin(get), **values)


FABRIC_HEALTH = "Fabric/Health/"
_GOOD_HEALTH = ("full", "false", "none", "healthy", "connected")
_NO_HEALTH = ("n/a", "not supported", "")


def _fabric_health(words: Mapping[str, str], get: Values) -> Maybe[tuple[str, ...]]:
    """What the driver says is bad about the GPU's way into the fabric of its rack."""
    told = {
        key.removeprefix(FABRIC_HEALTH): value
        for key, value in words.items()
        if key.startswith(FABRIC_HEALTH) and value.lower().strip("[]") not in _NO_HEALTH
    }
    if not told:
        return get.missing("health of the fabric")
    return tuple(
        f"{key}: {value}"
        for key, value in told.items()
        if value.lower() not in (("true",) if key.endswith("Assigned") else _GOOD_HEALTH)
    )


def _reasons(words: Mapping[str, str], get: Values) -> Maybe[tuple[str, ...]]:
    active: dict[str, bool] = {}
    for key, value in words.items():
        reason = REASONS.get(key.rsplit("/", 1)[-1]) if key.startswith(_OF_CLOCKS) else None
        if reason and value in ("Active", "Not Active"):
            active[reason] = active.get(reason, False) or value == "Active"
    if not active:
        return get.missing("clocks event reasons")
    return tuple(reason for reason, is_active in active.items() if is_active)


def _margin(get: Values) -> Maybe[float]:
    """Degrees to the slowdown: `GPU T.Limit Temp` counts down to the slowdown's own T.Limit.

    On a H100 that has 57 C left and slows down at -2 that is 59; an A100 prints both as they are.
    """
    left = get.number("Temperature/GPU T.Limit Temp")
    if not isinstance(left, Unknown):
        slow = get.number("Temperature/GPU Slowdown T.Limit Temp")
        return left if isinstance(slow, Unknown) else left - slow
    limit = get.number("Temperature/GPU Slowdown Temp")
    now = get.number("Temperature/GPU Current Temp")
    return then(now, lambda now_c: then(limit, lambda limit_c: limit_c - now_c))


def read_nvlinks(text: str) -> Maybe[tuple[NvLinks, ...]]:
    """`nvidia-smi nvlink -s`: `GPU 7: NAME (UUID: ..)`, then `Link 3: 25 GB/s`, `<inactive>`.

    A GPU without NVLink prints nothing after its name.
    """
    found: dict[int, tuple[list[float], list[int]]] = {}
    link = re.compile(r"^\s*Link (\d{1,3}): (?:(\d{1,6}(?:\.\d+)?) GB/s|<?inactive>?)")
    for line in text.splitlines():
        if match := re.match(r"^GPU (\d{1,4}): ", line):
            speeds, off = found.setdefault(int(match[1]), ([], []))
        elif not found:
            continue
        elif match := link.match(line):
            if match[2]:
                speeds.append(float(match[2][:12]))
            else:
                off.append(int(match[1]))
        elif "all links are inactive" in line.lower():
            off.append(-1)
    if not found:
        return Unknown(f"nvidia-smi nvlink: {first_line(text)[:120]}")
    return tuple(
        NvLinks(gpu, len(speeds), tuple(off), speeds[0] if speeds else Unknown("no link is up"))
        for gpu, (speeds, off) in sorted(found.items())
    )


def read_topology(text: str) -> Maybe[Mapping[str, str]]:
    """`nvidia-smi topo -m`: "0-1" -> NV18 for each pair of GPUs, "0-NIC3" for GPU and card."""
    columns: list[str] = []
    pairs: dict[str, str] = {}
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the header is underlined on some drivers
    for line in plain.splitlines():
        cells = line.split()
        if not columns:
            if cells[:1] == ["GPU0"] and not re.search(r"\bX\b", line):
                columns = [cell for cell in cells if re.fullmatch(r"(GPU|NIC)\d+|mlx\S+", cell)]
        elif cells and re.fullmatch(r"GPU\d{1,3}", cells[0]):
            for column, cell in zip(columns, cells[1:], strict=False):
                if cell != "X":
                    pairs[f"{cells[0][3:]}-{column.removeprefix('GPU')}"] = cell
    if not columns:
        return Unknown("no matrix in it" if text.strip() else "empty")
    return pairs
