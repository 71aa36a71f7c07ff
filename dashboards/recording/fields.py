"""What a value read from a file may be: its type by the dataclass's annotation, and its size. Pure.

A file from elsewhere may hold anything where a number is wanted. What is refused here never reaches
a rule or a screen, which may then trust their dataclasses as those that a feed made.
"""

from __future__ import annotations

import math
import struct
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from dashboards.model.alert_book import SEVERITIES
from dashboards.model.downsample import Thin
from dashboards.model.ring_buffer import CHUNK, LARGEST, Ring

MOST_GPUS = 64  # as watch_line believes of a node
MOST_RANKS = 1 << 20
MOST_COLUMNS = 4096  # of a row of history
SECONDS = 1e11  # year 5138: neither a date nor a duration is more
LARGEST_INT = 1 << 53

Test = Callable[[Any], bool]

# A loss may be NaN or infinite, and so may curves; a reading is known or None.
_NOT_FINITE = frozenset(["StepRecord", "Event", "RunState", "Thin"])
# What is counted up to or reserved: (least, most).
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

_TESTS: dict[type[Any], Mapping[str, Test]] = {}  # as they are asked for


def fits(kind: type[Any], name: str, value: Any) -> bool:
    """Whether a field of that dataclass may hold the value."""
    return tests(kind)[name](value)


def is_sound(value: Any) -> bool:
    """Whether all fields of a dataclass hold what they may; its parts are not checked."""
    kind = type(value)
    return all(test(getattr(value, name)) for name, test in tests(kind).items()) and agrees(value)


def agrees(value: Any) -> bool:
    """Whether the fields of a dataclass fit together."""
    if type(value) is Ring:
        return _is_whole(value)
    if type(value) is Thin:
        rows_fit = all(len(row) == value.width for row in value.pending)
        return rows_fit and (value.kept is None or value.kept.width == value.width)
    severity = getattr(value, "severity", "")
    return severity == "" or severity in SEVERITIES


def tests(kind: type[Any]) -> Mapping[str, Test]:
    """A test for each field, in order."""
    found = _TESTS.get(kind)
    if found is None:
        hints = get_type_hints(kind)
        names = kind.__dataclass_fields__
        found = _TESTS[kind] = {name: _of_field(kind.__name__, name, hints[name]) for name in names}
    return found


def _of_field(kind: str, name: str, hint: Any) -> Test:
    least, most = _RANGES.get((kind, name), (-math.inf, math.inf))
    if name.endswith("_s"):
        least, most = max(least, -SECONDS), min(most, SECONDS)
    elif kind not in _NOT_FINITE:
        least, most = max(least, -1e300), min(most, 1e300)
    return _of_hint(hint, (least, most))


def _of_hint(hint: Any, limits: tuple[float, float]) -> Test:
    if hint is Any:
        return lambda value: True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of([part for part in parts if part is not type(None)], limits)
    if origin is tuple and len(parts) == 2 and parts[1] is ...:
        one = _of_hint(parts[0], limits)
        return lambda value: type(value) is tuple and all(map(one, value))
    if origin is tuple:
        each = [_of_hint(part, limits) for part in parts]
        return lambda value: (
            type(value) is tuple
            and len(value) == len(each)
            and all(test(part) for test, part in zip(each, value, strict=True))
        )
    if origin is frozenset:
        one = _of_hint(parts[0], limits)
        return lambda value: type(value) is frozenset and all(map(one, value))
    if origin in (Mapping, dict):
        key, item = (_of_hint(part, limits) for part in parts)
        return lambda value: (
            type(value) is dict and all(map(key, value)) and all(map(item, value.values()))
        )
    return _of_type(hint, limits)


def _one_of(parts: list[Any], limits: tuple[float, float]) -> Test:
    each = [_of_hint(part, limits) for part in parts]
    if len(each) == 1:
        one = each[0]
        return lambda value: value is None or one(value)
    return lambda value: value is None or any(test(value) for test in each)


def _of_type(hint: Any, limits: tuple[float, float]) -> Test:
    least, most = limits
    if hint is float:
        # A curve's NaN is in no range and may be there.
        if math.isinf(most):
            return lambda value: type(value) is float or _is_int(value)
        return lambda value: type(value) in (float, int) and least <= value <= most
    if hint is int:
        return lambda value: _is_int(value) and least <= value <= most
    return lambda value: type(value) is hint


def _is_int(value: Any) -> bool:
    return type(value) is int and -LARGEST_INT <= value <= LARGEST_INT


def _is_whole(ring: Ring) -> bool:
    if ring.code not in LARGEST or not 0 < ring.width <= MOST_COLUMNS or ring.limit < 1:
        return False
    row = ring.width * struct.calcsize("=" + ring.code)
    return len(ring.tail) % row == 0 and all(len(chunk) == CHUNK * row for chunk in ring.chunks)
