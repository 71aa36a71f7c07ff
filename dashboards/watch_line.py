"""One JSON line of the payload `watch` as a NodeSample. Pure; never raises on odd input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboards.samples import Gpu, NodeSample

# The order of columns that payload/watch.py asks nvidia-smi for.
CSV_COLUMNS = ("index", "name", "power_w", "power_limit_w", "util", "memory_used", "memory_total", "temperature_c", "sm_mhz")  # fmt: skip
MIB = 2**20


def parse(node: str, line: Mapping[str, Any], at_s: float) -> NodeSample:
    """What the node said; fields that are missing or no numbers become None."""
    memory = line.get("memory") or {}
    gpus, error = _gpus(line)
    return NodeSample(
        node=node,
        at_s=at_s,
        cpu=_number(line.get("cpu")),
        cpus=_whole(line.get("cpus")),
        load1=_number(line.get("load1")),
        memory_used_bytes=_number(memory.get("used")) if isinstance(memory, Mapping) else None,
        memory_total_bytes=_number(memory.get("total")) if isinstance(memory, Mapping) else None,
        network_bytes_s=_number(line.get("network_bytes_s")),
        gpus=gpus,
        gpu_error=error,
    )


def _gpus(line: Mapping[str, Any]) -> tuple[tuple[Gpu, ...] | None, str]:
    error = str(line.get("gpu_error") or "")
    if isinstance(line.get("gpu_csv"), str):
        return parse_csv(line["gpu_csv"]), error
    table = line.get("gpus")
    if not isinstance(table, list):
        return None, error or "the node said nothing about GPUs"
    return tuple(gpu for gpu in map(_gpu, table) if gpu is not None), error


def _gpu(row: Any) -> Gpu | None:
    """One GPU as NVML gave it: units are NVML's (mW, percent, bytes)."""
    if not isinstance(row, Mapping) or _whole(row.get("index")) is None:
        return None
    power_mw, limit_mw, util = (_number(row.get(key)) for key in ("power_mw", "limit_mw", "util"))
    return Gpu(
        index=int(row["index"]),
        name=str(row.get("name") or ""),
        power_w=None if power_mw is None else power_mw / 1000,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        util=None if util is None else util / 100,
        memory_used_bytes=_number(row.get("used")),
        memory_total_bytes=_number(row.get("total")),
        temperature_c=_number(row.get("temperature_c")),
        sm_mhz=_number(row.get("sm_mhz")),
        error=str(row.get("error") or ""),
    )


def parse_csv(text: str) -> tuple[Gpu, ...] | None:
    """`nvidia-smi --query-gpu … --format=csv,noheader,nounits`; None when no line is one."""
    gpus = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(CSV_COLUMNS) or not words[0].isdigit():
            continue
        row = dict(zip(CSV_COLUMNS, words, strict=True))
        number = {name: _number(row[name]) for name in CSV_COLUMNS[2:]}
        util, used, total = number["util"], number["memory_used"], number["memory_total"]
        readings = [number["power_w"], util, used, number["temperature_c"]]
        gpus.append(
            Gpu(
                index=int(row["index"]),
                name=row["name"],
                power_w=number["power_w"],
                power_limit_w=number["power_limit_w"],
                util=None if util is None else util / 100,
                memory_used_bytes=None if used is None else used * MIB,
                memory_total_bytes=None if total is None else total * MIB,
                temperature_c=number["temperature_c"],
                sm_mhz=number["sm_mhz"],
                # A lost card answers every question with an error text in brackets.
                error=row["power_w"].strip("[]") if all(r is None for r in readings) else "",
            )
        )
    return tuple(gpus) if gpus else None


def _number(value: Any) -> float | None:
    """A finite number, also as text; `[N/A]`, booleans and the rest are None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e300 else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None
