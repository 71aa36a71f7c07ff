"""Numbers for people, short enough for a cell. None and NaN become `-`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

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


@_if_known
def power(watts: float) -> str:
    """700 W, 5.57 kW, 127 kW."""
    return f"{watts:.0f} W" if watts < 1000 else f"{_three(watts / 1000)} kW"


@_if_known
def gib(count: float) -> str:
    """Bytes as GiB without the unit: 3.1, 71, 2,048."""
    value = count / 2**30
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


@_if_known
def size(count: float) -> str:
    """Bytes with a binary unit: 812 MiB, 71 GiB, 3.5 TiB."""
    value, unit = count / 2**20, "MiB"
    for larger in ("GiB", "TiB"):
        if value >= 1000:
            value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "MiB" else f"{value:,.0f} {unit}"


@_if_known
def offset(value: float) -> str:
    """A clock's offset with its sign: +0.4 ms, -2.51 s."""
    return f"{value * 1000:+.1f} ms" if abs(value) < 0.0995 else f"{value:+.2f} s"


@_if_known
def rate(bytes_s: float) -> str:
    """12 kB/s, 1.4 MB/s, 48 GB/s: decimal, as network speeds are."""
    return f"{bytes_s:.0f} B/s" if bytes_s < 1e3 else _decimal(bytes_s, " kB/s", " MB/s", " GB/s")


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


@_if_known
def seconds(value: float) -> str:
    """A short time that is measured: 0.21 s, 4.11 s, 65 s."""
    return f"{value * 1000:.0f} ms" if value < 0.0995 else f"{_three(value)} s"


@_if_known
def age(value: float) -> str:
    """How long ago, coarse: 3 s, 12 min, 5 h, 2 d."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if value < limit:
            return f"{max(0.0, value) / divisor:.0f} {unit}"
    return f"{value / 86400:.0f} d"


@_if_known
def span(value: float) -> str:
    """A long duration in two units: 52 s, 4 min 10 s, 4 h 46 min, 3 d 2 h."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _decimal(value: float, *units: str) -> str:
    """Three digits in thousands, millions, ...; the last unit takes what is larger."""
    thousands = min(len(units), max(1, math.floor(math.log10(max(value, 1))) // 3))
    return f"{_three(value / 1000**thousands)}{units[thousands - 1]}"


def _three(value: float) -> str:
    """Three significant digits of a number from 0 to 999."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"
