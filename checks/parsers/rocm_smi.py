"""rocm-smi's log. AMD cards are recognised and counted, so that none is taken for a node without GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from checks.facts import Maybe, Unknown
from checks.parsers.nvidia_smi import parse_quantity


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One card of rocm-smi; temperatures are those of the junction."""

    index: int
    device_id: Maybe[str]
    temperature_c: Maybe[float]


def read_rocm_smi(text: str) -> Maybe[tuple[AmdGpu, ...]]:
    """`GPU[0]\\t\\t: Device ID: 0x74a1` lines of `rocm-smi -a`, or rows of its table."""
    values: dict[int, dict[str, str]] = {}
    for index, name, value in re.findall(
        r"^GPU\[(\d{1,4})\]\s*: ([^:\n]+): (.*)$", text, re.MULTILINE
    ):
        values.setdefault(int(index), {}).setdefault(name.strip(), value.strip())
    for index, device, celsius in re.findall(
        r"^(\d{1,4})\s+\[(0x[0-9a-f]+) : 0x[0-9a-f]+\]\s+(\d{1,3}\.\d)°C", text, re.MULTILINE
    ):
        row = values.setdefault(int(index), {})
        row.setdefault("Device ID", device)
        row.setdefault("Temperature (Sensor junction) (C)", celsius)
    if not values:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "empty")
        return Unknown(f"rocm-smi: {said[:80]}")
    return tuple(
        AmdGpu(
            index,
            words.get("Device ID") or Unknown("no device id"),
            parse_quantity(words.get("Temperature (Sensor junction) (C)", "")),
        )
        for index, words in sorted(values.items())
    )
