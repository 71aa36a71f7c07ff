"""Numbers, times and addresses on the command line, as people write them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Number(click.FloatRange):
    """Within the range; nan, which compares with nothing, and inf are in none."""

    longest = 1e15

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not abs(number) <= self.longest:
            self.fail(f"{value!r} is not a number up to {self.longest:,.0f}", param, ctx)
        return number


class Duration(Number):
    """Seconds out of `90`, `10m`, `1h30m`."""

    name = "time"
    longest = 1e8  # three years; more than 292 overflow a wait

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, str):
            words = value.strip().lower()
            if re.fullmatch(r"(\d+(\.\d+)?[smhd])+", words):
                parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", words)
                value = sum(float(number) * _UNITS[unit] for number, unit in parts)
            elif not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", words):
                wanted = "a valid duration: 90 (seconds), 10m, 1h30m, 2d"
                self.fail(f"{value!r} is not {wanted}", param, ctx)
        return super().convert(value, param, ctx)


class Percent(Number):
    """A share out of `5` or `5%`: 0.05."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, str) and re.fullmatch(r"\s*[\d.]+\s*%\s*", value):
            value = value.strip().rstrip("% ")
        return super().convert(value, param, ctx) / 100


class HostPort(click.ParamType):  # type: ignore[type-arg]
    """(host, port) out of `127.0.0.1:28028`, `node-3:28028`, `[::1]:28028`."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):(\d{1,5})", str(value).strip())
        if not found or not 0 < int(found[3]) < 65536:
            self.fail(f"{value!r} is no HOST:PORT, such as 127.0.0.1:28028", param, ctx)
        return found[1] or found[2], int(found[3])


class Moment(click.ParamType):  # type: ignore[type-arg]
    """Unix seconds out of `10m` (so long ago), `14:30` (today), `2026-11-23 14:30`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        words, now = str(value).strip(), time.time()
        if re.fullmatch(r"(\d+(\.\d+)?[smhdSMHD])+", words):
            return now - Duration().convert(words, param, ctx)
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", words):
            hour = words.rjust(5 if words.count(":") == 1 else 8, "0")
            words = f"{datetime.fromtimestamp(now):%Y-%m-%d} {hour}"
        try:
            return datetime.fromisoformat(words).timestamp()
        except (ValueError, OverflowError, OSError):
            wanted = "a time: 10m (ago), 14:30, 2026-11-23, '2026-11-23 14:30:05'"
            self.fail(f"{value!r} is not {wanted}", param, ctx)
