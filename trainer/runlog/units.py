"""Sizes, rates, durations and counts for people: one text for one value in all commands.

checks and the trainer import nothing of each other: checks/units.py and trainer/runlog/units.py are
the same file twice, which a test compares. checks, clusterctl and dashboards import the former.
"""

from __future__ import annotations

import math

# What nvidia-smi, torch's out-of-memory errors, `free -h` and `df -h` count in.
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes: 0 B, 512 MiB, 68.6 GiB, 1.25 TiB."""
    index = 0
    while index < len(_UNITS) - 1 and round(abs(count)) >= 1024:
        count, index = count / 1024, index + 1
    return f"{_digits(count, 3 if index else 0)} {_UNITS[index]}"


def rate(bytes_s: float) -> str:
    """Bytes a second: 8.15 MiB/s."""
    return f"{size(bytes_s)}/s"


def duration(seconds: float) -> str:
    """49 ms, 0.45 s, 7.2 s, 45 s, 2 min 05 s, 2 h 03 min, 3 d 04 h."""
    return _duration(seconds, 2)


def measured(seconds: float) -> str:
    """A time to compare with others: 48.9 ms, 0.453 s, 12.3 s; from a minute on as `duration`."""
    return _duration(seconds, 3)


def offset(seconds: float) -> str:
    """A measured time with its sign: +0.4 ms, -2.51 s; what rounds to nothing is +."""
    if abs(seconds) < 5e-6:
        return "+0 ms"
    return f"{'-' if seconds < 0 else '+'}{measured(abs(seconds))}"


def ago(seconds: float) -> str:
    """45 s ago, 3 d 04 h ago, in whole seconds; a time to come is 0 s ago."""
    passed_s = max(0.0, seconds)
    return f"{duration(round(passed_s) if math.isfinite(passed_s) else passed_s)} ago"


def counted(number: int, noun: str) -> str:
    """`1 node`, `24 nodes`, `3,264 processes`."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def _duration(seconds: float, digits: int) -> str:
    if seconds < 0:
        return f"-{_duration(-seconds, digits)}"
    if not math.isfinite(seconds):
        return f"{seconds} s"
    whole, seconds = round(seconds), round(seconds, 5)
    if whole >= 86400:
        return f"{whole // 86400:,} d {whole % 86400 // 3600:02d} h"
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    if seconds > 0 and round(seconds, digits + 1) < 0.1:
        return f"{_digits(seconds * 1000, digits, 2)} ms"
    return f"{_digits(seconds, digits)} s"


def _digits(value: float, digits: int, decimals: int = 9) -> str:
    """`digits` significant ones, but all of a whole part and no zeros at the end of decimals."""
    exponent = int(f"{value:.{max(1, digits) - 1}e}".partition("e")[2])  # of 9.96 with two: 1
    text = f"{value:,.{min(decimals, max(0, digits - 1 - exponent))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
