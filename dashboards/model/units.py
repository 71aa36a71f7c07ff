"""Numbers for people, short enough for a cell. None and NaN become `-`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from checks import units

UNKNOWN = "-"


def _if_known(text: Callable[[float], str]) -> Callable[[float | None], str]:
    @functools.wraps(text)
    def shown(value: float | None) -> str:
        return UNKNOWN if value is None or not math.isfinite(value) else text(value)

    return shown


degrees = _if_known("{:.0f} °C".format)
mhz = _if_known("{:,.0f} MHz".format)
two_digits = _if_known("{:.2f}".format)
percent = _if_known("{:.0%}".format)
size = _if_known(units.size)
rate = _if_known(units.rate)
offset = _if_known(units.offset)
duration = _if_known(units.duration)
measured = _if_known(units.measured)
ago = _if_known(units.ago)


def part(used: float | None, whole: float | None) -> str:
    """Bytes of how many, with the unit once where it is the same: 68.6/80 GiB, 512 MiB/2 GiB."""
    first, other = size(used), size(whole)
    number, _, unit = first.partition(" ")
    return f"{number if other.endswith(f' {unit}') else first}/{other}"


@_if_known
def power(watts: float) -> str:
    """700 W, 5.57 kW, 127 kW."""
    return f"{watts:.0f} W" if watts < 1000 else f"{_three(watts / 1000)} kW"


def number(value: float | None, digits: int = 3) -> str:
    """Significant digits without exponents where it can be read: 0.412, 1,204, 2.0e-04."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -3 or size > 8:
        return f"{value:.{max(1, digits - 1)}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}"


@_if_known
def count(value: float) -> str:
    """A whole number with separators; from 100,000 on as 123k, 1.2M, 3.4G."""
    return f"{value:,.0f}" if value < 1e5 else _decimal(value, "k", "M", "G")


def _decimal(value: float, *units: str) -> str:
    """Three digits in thousands, millions, ...; the last unit takes what is larger."""
    thousands = min(len(units), max(1, math.floor(math.log10(max(value, 1))) // 3))
    return f"{_three(value / 1000**thousands)}{units[thousands - 1]}"


def _three(value: float) -> str:
    """Three significant digits of a number from 0 to 999."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"
