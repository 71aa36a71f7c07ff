"""`nvidia-smi -q`, `nvidia-smi nvlink -s` and `topo -m` to facts about each GPU.

Two traps stand in the captures: Hopper prints `T.Limit`, the degrees that are left and not a
limit, and MIG or a broken card prints [N/A] or words where a number belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from checks.facts import NOT_ASKED, GpuHealth, Maybe, NvLinks, Section, Unknown
from checks.parsers.nvidia_smi import is_no_value, no_value, parse_quantity
from checks.parsers.section import text_of

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


def parse_details(section: Section | None) -> Maybe[Mapping[str, GpuHealth]]:
    """Health by short bus id (`18:00.0` in lower case, with the domain), from `nvidia-smi -q`."""
    text = text_of(section, any_exit=True)  # one bad card makes its exit status bad
    if section is None or isinstance(text, Unknown):
        return text if isinstance(text, Unknown) else NOT_ASKED
    return read_details(text, "" if section.rc == 0 else f"nvidia-smi -q: exit {section.rc}")


def bus_key(bus_id: str) -> str:
    """00000000:18:00.0 and 0000:18:00.0 are one address."""
    return re.sub(r"^0*([0-9a-f]{4}):", r"\1:", bus_id.strip().lower())


def read_details(text: str, failed: str = "") -> Maybe[Mapping[str, GpuHealth]]:
    """The log's blocks `GPU 00000000:18:00.0`; keys are joined with their indented parents.

    `failed` says why lines may be lacking; without it a line that is not there is one that this
    card or driver does not have.
    """
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
    return {bus: _health({**common, **words}, failed) for bus, words in blocks.items()}


class _Words:
    """Values of one GPU's block; every question has an answer."""

    def __init__(self, words: Mapping[str, str], failed: str) -> None:
        self._words, self._failed = words, failed

    def text(self, *keys: str) -> Maybe[str]:
        for key in keys:
            value = self._words.get(key)
            if value is not None:
                return value if value and not is_no_value(value) else no_value(value, key)
        return self._lacking(keys[0])

    def _lacking(self, what: str) -> Unknown:
        return Unknown(self._failed) if self._failed else Unknown(f"no {what}", is_absence=True)

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
        """Sum of the counters that the card has; unknown without any, or if one is unreadable."""
        values = [self.whole(key) for key in keys]
        known = [value for value in values if isinstance(value, int)]
        unread = [value for value in values if isinstance(value, Unknown) and not value.is_absence]
        return unread[0] if unread else sum(known) if known else values[0]

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
        return tuple(dict.fromkeys(active)) if seen else self._lacking("clocks event reasons")


def _health(words: Mapping[str, str], failed: str) -> GpuHealth:
    get = _Words(words, failed)
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
            volatile + "DRAM Uncorrectable",
            volatile + "SRAM Uncorrectable",
            volatile + "SRAM Uncorrectable Parity",
            volatile + "SRAM Uncorrectable SEC-DED",
        ),
        sram_uncorrected_aggregate=get.total(
            aggregate + "SRAM Uncorrectable",
            aggregate + "SRAM Uncorrectable Parity",
            aggregate + "SRAM Uncorrectable SEC-DED",
        ),
        sram_threshold_exceeded=get.flag("yes", "no", aggregate + "SRAM Threshold Exceeded"),
        remapped_uncorrectable=get.whole("Remapped Rows/Uncorrectable Error"),
        remap_pending=get.flag("yes", "no", "Remapped Rows/Pending"),
        remap_failure=get.flag("yes", "no", "Remapped Rows/Remapping Failure Occurred"),
        pages_pending=get.flag(
            "yes",
            "no",
            "Retired Pages/Pending Page Blacklist",
            "Retired Pages/Pending Page Retirement",
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
    )


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
    text = text_of(section, any_exit=True)
    return text if isinstance(text, Unknown) else read_nvlinks(text)


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
    text = text_of(section)
    return text if isinstance(text, Unknown) else read_topology(text)


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
