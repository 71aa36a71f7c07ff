"""What a field read from a file may hold: its type by the dataclass's annotation, its size. Pure.

A file from elsewhere may hold anything in place of a number. What is refused here never reaches a
rule or a screen, so that these may trust a dataclass as one that a feed made.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, get_type_hints

from clusterctl.dataclass_json import LARGEST_INT, Test, fits_of
from dashboards.model.alert_book import SEVERITIES
from dashboards.model.ring_buffer import CHUNK, LARGEST, Ring, Thin

MOST_GPUS = 64  # as in watch_decoder
MOST_RANKS = 1 << 20
MOST_COLUMNS = 4096  # of a row of history
SECONDS = 1e11  # year 5138: neither a date nor a duration is more

# A loss or a curve may be NaN or infinite; a reading is known or None.
_NOT_FINITE = frozenset(["StepRecord", "Event", "RunState", "Thin"])
# What is used as a count or a size: (least, most).
_RANGES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("Gpu", "index"): (0, MOST_GPUS - 1),
    ("NodeState", "gpus_seen"): (0, MOST_GPUS),
    ("StepRecord", "world"): (0, MOST_RANKS),
    ("RunOpened", "ranks"): (0, MOST_RANKS),
    ("RunState", "ranks"): (0, MOST_RANKS),
    ("Thin", "width"): (4, 4),
    ("Thin", "stride"): (1, LARGEST_INT),
    ("State", "history_step_s"): (0.1, SECONDS),
    ("State", "interval_s"): (0.1, SECONDS),
}

_TESTS: dict[type[Any], Mapping[str, Test]] = {}


def is_sound(value: Any) -> bool:
    """Whether all fields of a dataclass hold what they may; its parts are not checked."""
    fits = tests(type(value)).items()
    return all(test(getattr(value, name)) for name, test in fits) and _agrees(value)


def _agrees(value: Any) -> bool:
    """Whether the fields of a dataclass fit together."""
    if type(value) is Ring:
        return _is_whole(value)
    if type(value) is Thin:
        rows_fit = all(len(row) == value.width for row in value.pending)
        return rows_fit and (value.kept is None or value.kept.width == value.width)
    severity = getattr(value, "severity", "")
    return severity == "" or severity in SEVERITIES


def tests(kind: type[Any]) -> Mapping[str, Test]:
    """For each field of a dataclass, in order: whether it may hold a value."""
    if kind not in _TESTS:
        _TESTS[kind] = {
            name: _of_field(kind.__name__, name, hint)
            for name, hint in get_type_hints(kind, include_extras=True).items()
            if name in kind.__dataclass_fields__
        }
    return _TESTS[kind]


def checked(kind: type[Any], name: str, value: Any) -> Any:
    """A value for this field. Raises `ValueError`."""
    if not tests(kind)[name](value):
        raise ValueError(f"{name} cannot be that")
    return value


def checked_time(value: Any) -> float:
    if type(value) not in (float, int) or not 0.0 <= value <= SECONDS:
        raise ValueError("no time")
    return float(value)


def _of_field(kind: str, name: str, hint: Any) -> Test:
    least, most = _RANGES.get((kind, name), (-math.inf, math.inf))
    if name.endswith("_s"):
        least, most = max(least, -SECONDS), min(most, SECONDS)
    elif kind not in _NOT_FINITE:
        least, most = max(least, -1e300), min(most, 1e300)
    return fits_of(hint, (least, most))


def _is_whole(ring: Ring) -> bool:
    if ring.code not in LARGEST or not 0 < ring.width <= MOST_COLUMNS or ring.limit < 1:
        return False
    row = ring.width * struct.calcsize("=" + ring.code)
    return len(ring.tail) % row == 0 and all(len(chunk) == CHUNK * row for chunk in ring.chunks)
