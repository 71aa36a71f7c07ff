"""Text of nvidia-smi to facts. Odd text gives Unknown values or another state, no exception."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from checks.facts import (
    NOT_ASKED,
    Gpu,
    GpuFacts,
    GpuProcess,
    GpuState,
    KernelModule,
    Maybe,
    Section,
    Unknown,
    known,
    or_none,
    then,
)
from checks.parsers.section import rows_of, text_of, unreadable

# Cells without a value; the text is the reason.
_NO_VALUE = re.compile(
    r"^\[?(N/A|ERR!|Not Supported|Unknown Error|GPU is lost|GPU requires reset"
    r"|Insufficient Permissions|Not Found|No data|Requested functionality .*)\]?$",
    re.IGNORECASE,
)
_HAS_NONE = re.compile(r"^\[?(N/A|Not Supported|Requested functionality .*)\]?$", re.IGNORECASE)
_NUMBER = re.compile(r"^([+-]?\d+(?:[.,]\d+)?)\s*(W|mW|MiB|KiB|GiB|B|%|C|MHz|x)?$")
_SCALE = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "B": 1, "mW": 1e-3}
_FLAGS = {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}
GPU_FIELDS = {
    "index": ("whole", "index", "index"),
    "uuid": ("text", "uuid", "uuid"),
    "name": ("text", "name", "name"),
    "driver": ("text", "driver_version", "driver"),
    "bus_id": ("text", "pci.bus_id", "bus_id"),
    "power_w": ("number", "power.draw", "power_mw"),
    "power_limit_w": ("number", "power.limit", "power_limit_mw"),
    "memory_used_bytes": ("whole", "memory.used", "memory_used"),
    "memory_total_bytes": ("whole", "memory.total", "memory_total"),
    "utilization_percent": ("number", "utilization.gpu", "utilization"),
    "temperature_c": ("number", "temperature.gpu", "temperature"),
}
"""Fields of Gpu: the method of Values that reads them, their names in nvidia-smi and NVML."""
_RANGES = {  # of cards that are and that come; outside of them a driver says what cannot be
    "index": (0, 1023),
    "power_w": (0, 10_000),
    "power_limit_w": (1, 10_000),
    "memory_used_bytes": (0, 1 << 44),
    "memory_total_bytes": (1 << 20, 1 << 44),
    "utilization_percent": (0, 100),
    "temperature_c": (-60, 200),
}
_NO_PROCESSES = re.compile(r"no running (compute )?processes found", re.IGNORECASE)
_WARNING = re.compile(
    r"warning:", re.IGNORECASE
)  # `WARNING: infoROM is corrupted at gpu 0000:41:…`
_NO_DEVICES = re.compile(r"no devices (were )?found", re.IGNORECASE)


def parse_gpus(
    query: Section | None, processes: Section | None = None, owners: Section | None = None
) -> GpuFacts:
    """Facts from `--query-gpu ... --format=csv` (with header and units) and what goes with it."""
    if query is None:
        return GpuFacts("unreadable", "not asked")
    if query.state == "missing":
        return GpuFacts("no-tool", "no nvidia-smi")
    killed = query.rc is None or query.rc < 0
    if query.state != "ended" or query.truncated or killed:
        failed: GpuState = "hung" if query.state == "timeout" else "unreadable"
        return GpuFacts(failed, f"nvidia-smi: {query.why_not}")
    rows, strange = _table(query.out, "index")
    gpus = with_own_index([_gpu(row) for row in rows])
    told = [*strange, *_lines(query.err)]
    warnings = tuple(line for line in told if gpus and _WARNING.match(line))
    others = [line for line in told if line not in warnings]
    message = "\n".join([*others, *warnings]) if others else ""
    state: GpuState
    if gpus:
        state = "partial" if message or query.rc != 0 else "ok"
    elif _NO_DEVICES.search(message):
        state = "none"
    elif query.rc != 0 or strange:
        state = "failed"
    elif query.out.startswith("index, "):
        state = "none"  # a header and no row
    else:
        state = "unreadable"
        message = message or "nvidia-smi printed nothing"
    if state in ("failed", "partial") and not message:
        message = f"nvidia-smi exit {query.rc} without a message"
    found = parse_processes(processes, owners)
    return GpuFacts(state, message, gpus, found, warnings=warnings)


def _gpu(row: Mapping[str, str]) -> Gpu:
    get = Values(row, "no such column")
    return Gpu(**gpu_values(get, {field: name for field, (_, name, _) in GPU_FIELDS.items()}))


def gpu_values(get: Values, names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a Gpu, each under its name; what cannot be is Unknown."""
    methods = {field: method for field, (method, _, _) in GPU_FIELDS.items()}
    return {field: plausible(field, getattr(get, methods[field])(names[field])) for field in names}


def with_own_index(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The same; an index that several have is that of none, and each card has one."""
    counts = Counter(known(gpu.index for gpu in gpus))

    def own(index: Maybe[int]) -> Maybe[int]:
        if isinstance(index, Unknown):
            return Unknown(index.reason)
        count = counts[index]
        return index if count == 1 else Unknown(f"{index} is that of {count} GPUs")

    return tuple(replace(gpu, index=own(gpu.index)) for gpu in gpus)


def plausible(field: str, value: Any) -> Any:
    """A value of a field of Gpu, Unknown where no card has it: -100 W, no memory at all."""
    low, high = _RANGES.get(field, (0, 0))
    if field not in _RANGES or isinstance(value, Unknown) or low <= value <= high:
        return value
    return Unknown(f"{value:g} cannot be true")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _split(line: str) -> list[str]:
    # Not a bare comma: other locales write 100,89 W, and the separator is comma and space.
    return [cell.strip() for cell in re.split(r",\s+|,$", line)]


def read_rows(text: str, names: Sequence[str]) -> list[dict[str, str]]:
    """Cells by column name of `--format=csv,noheader`; lines of another length are left out."""
    rows = map(_split, _lines(text))
    return [dict(zip(names, cells, strict=True)) for cells in rows if len(cells) == len(names)]


def _table(
    text: str, first: str, *, open_end: bool = False
) -> tuple[list[dict[str, str]], list[str]]:
    """Rows of a CSV by column name, and the lines that are no row. `first` names column one.

    With `open_end` the last column takes the rest of the line: a process name may hold commas.
    """
    names: list[str] = []
    rows: list[dict[str, str]] = []
    strange: list[str] = []
    for line in _lines(text):
        cells = _split(line)
        if names and open_end:
            last = len(names) - 1
            cells = [*cells[:last], ", ".join(cells[last:])] if len(cells) > last else cells
        if not names and cells[0] == first:
            names = [cell.split(" [")[0] for cell in cells]
        elif names and len(cells) == len(names):
            rows.append(dict(zip(names, cells, strict=True)))
        else:
            strange.append(line)
    return rows, strange


class Values:
    """Values of one GPU by name, as nvidia-smi prints them or NVML returns them.

    `failed` is the reason why one may be missing; without it this card or driver does not have it.
    """

    def __init__(self, values: Mapping[str, Any], failed: str = "") -> None:
        self._values, self._failed = values, failed

    def text(self, *names: str) -> Maybe[str]:
        """The value of the first name that there is."""
        for name in names:
            value = self._values.get(name)
            if isinstance(value, Unknown):
                return value
            if value is not None:
                word = str(value)
                return word if word and not is_no_value(word) else no_value(word, name)
        return self.missing(names[0])

    def missing(self, name: str) -> Unknown:
        return Unknown(self._failed or f"no {name}", is_absence=not self._failed)

    def number(self, *names: str) -> Maybe[float]:
        return then(self.text(*names), parse_quantity)

    def whole(self, *names: str) -> Maybe[int]:
        return then(self.number(*names), int)

    def flag(self, *names: str) -> Maybe[bool]:
        value = self.text(*names)
        if isinstance(value, Unknown):
            return value
        return _FLAGS.get(value.lower(), Unknown(f"cannot read {value[:40]!r}"))

    def total(self, *names: str) -> Maybe[int]:
        """Sum of the counters that the card has; unknown without any, or if one is unreadable."""
        values = [self.whole(name) for name in names]
        known = [value for value in values if isinstance(value, int)]
        unread = [value for value in values if isinstance(value, Unknown) and not value.is_absence]
        return unread[0] if unread else sum(known) if known else values[0]


def is_no_value(cell: str) -> bool:
    """Whether a cell has no value: `[N/A]`, `ERR!`, `[GPU is lost]`."""
    return _NO_VALUE.match(cell) is not None


def no_value(cell: str, name: str = "value") -> Unknown:
    """Why there is none: `[N/A]` the card has no such thing, `ERR!` it cannot be read."""
    return Unknown(cell or f"no {name}", is_absence=_HAS_NONE.match(cell) is not None)


def parse_quantity(cell: str) -> Maybe[float]:
    """`100.89 W`, `81559 MiB` (in bytes), `0 %`, `16x`, `30`; `[N/A]` and the like are Unknown."""
    cell = cell.strip()
    if not cell:
        return Unknown("empty")
    if is_no_value(cell):
        return no_value(cell)
    match = _NUMBER.match(cell)
    value = float(match[1].replace(",", ".")) * _SCALE.get(match[2], 1) if match else math.nan
    return value if math.isfinite(value) else Unknown(f"cannot read {cell[:40]!r}")


def parse_processes(
    query: Section | None, owners: Section | None = None
) -> Maybe[tuple[GpuProcess, ...]]:
    """Processes of `--query-compute-apps`, with owner and age where the node could see them."""
    text = text_of(query, any_exit=True)
    if query is None or isinstance(text, Unknown):
        return text if isinstance(text, Unknown) else NOT_ASKED
    rows, strange = _table(text, "gpu_uuid", open_end=True)
    if not rows and query.rc != 0:  # one lost GPU makes the exit status bad, the rows still count
        output = [*strange, *_lines(query.err)]
        return Unknown(f"exit {query.rc}: {output[0][:200]}" if output else f"exit {query.rc}")
    if not rows and not text.lstrip().startswith("gpu_uuid, "):
        return () if _NO_PROCESSES.search(text) else unreadable(text)
    by_pid = parse_owners(owners)
    found = []
    for row in rows:
        pid = parse_quantity(row.get("pid", ""))
        if isinstance(pid, Unknown):
            return Unknown(f"a process without a number: {pid}")
        used = row.get("used_gpu_memory", row.get("used_memory", ""))
        used_bytes = then(parse_quantity(used), int)
        owner, name = by_pid.get(int(pid), Owner()), row.get("process_name", "")
        found.append(GpuProcess(int(pid), row.get("gpu_uuid", ""), used_bytes, name, *owner))
    return tuple(found)


UNSEEN = Unknown("no such process in /proc: another container, or it has ended")
HIDDEN = Unknown("its environment cannot be read")


class Owner(NamedTuple):
    """What /proc has about a process: the last fields of `GpuProcess`, in their order."""

    user: Maybe[str] = UNSEEN
    age_s: Maybe[float] = UNSEEN
    command: Maybe[str] = UNSEEN
    run: Maybe[str | None] = UNSEEN
    rank: Maybe[int | None] = UNSEEN


def parse_owners(section: Section | None) -> dict[int, Owner]:
    """`pid, uid, user, age, command, run, rank` lines of the census; empty without any."""
    owners: dict[int, Owner] = {}
    for pid, _uid, user, age, command, run, rank in rows_of(or_none(text_of(section)) or "", 7):
        age_s = parse_quantity(age)
        if isinstance(age_s, Unknown) or not re.fullmatch(r"\d{1,10}", pid):
            continue
        number = int(rank) if re.fullmatch(r"\d{1,8}", rank) else None
        tags = (HIDDEN, HIDDEN) if run == "?" else (None if run == "-" else run, number)
        owners[int(pid)] = Owner(user, age_s, command, *tags)
    return owners


def count_on_pci(section: Section | None) -> Maybe[int]:
    """NVIDIA display devices of the census's list of PCI addresses."""
    if section is not None and section.state == "missing":
        return Unknown("no PCI bus", is_absence=True)
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    lines = [line for line in text.splitlines() if not line.startswith("#devices\t")]
    strange = [line for line in lines if not re.match(r"[0-9a-f]{4,8}:", line)]
    return unreadable(strange[0]) if strange else len(lines)


def parse_module(section: Section | None) -> Maybe[KernelModule]:
    """/proc/driver/nvidia/version, its first line, and a line for each GPU of the kernel module."""
    if section is not None and section.state == "missing":
        return Unknown("no kernel module of NVIDIA is loaded", is_absence=True)
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    first, *gpus = text.splitlines()
    version = re.search(r"Kernel Module .{0,200}?\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b", first)
    strange = [line for line in gpus if not re.match(r"[0-9a-f]{4,8}:", line)]
    if version is None or strange:
        return unreadable(strange[0] if strange else first)
    return KernelModule(version[1], len(gpus))
