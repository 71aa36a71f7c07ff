"""Dataclasses as JSON objects and back, by their type hints; what a field may hold. Pure.

A file or a message from elsewhere may hold anything in place of a number. What is refused here
never reaches a rule or a screen, so that these may trust a dataclass as one that was made here.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clusterctl.node_name import is_node_name
from trainer.runlog.output import printable

LARGEST_INT = 1 << 53
NO_LIMITS = (-math.inf, math.inf)
LEFT_OUT: Mapping[str, Any] = {"json": False}
"""Metadata of a field that is not encoded, and has its default once it is decoded."""

Test = Callable[[Any], bool]
T = TypeVar("T")


class Misshapen(ValueError):
    """A value of another shape; `place` grows on the way up: pid, [3].pid, rows[3].pid."""

    def __init__(self, wanted: str, value: Any, place: str = "") -> None:
        super().__init__(f"should be {wanted}, is {_described(value)}")
        self.place = place

    def below(self, place: str) -> Misshapen:
        """The same, seen from the object or list that holds the place."""
        self.place = place + self.place
        return self

    def __str__(self) -> str:
        return f"{self.place.lstrip('.') or 'it'} {self.args[0]}"


def _described(value: Any) -> str:
    if isinstance(value, str):
        short = len(value) <= 40
        return f"the text {printable(value)!r}" if short else f"a text of {len(value)} characters"
    if isinstance(value, list | tuple | frozenset):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"the number {value:.6g}" if -1e300 < value < 1e300 else "a number beyond 1e300"


def encode(value: Any) -> Any:
    """What JSON can hold of a value: objects of dataclasses and mappings, lists of tuples and
    sorted sets, texts of paths and enums. A class with `from_json` has its own `to_json`."""
    if is_dataclass(value) and not isinstance(value, type):
        own = getattr(value, "to_json", None) if hasattr(value, "from_json") else None
        if own is not None:
            return own()
        return {one.name: encode(getattr(value, one.name)) for one, *_ in _encoded(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(encode, value))
    return list(map(encode, value)) if isinstance(value, list | tuple) else value


def decode(kind: type[T], data: Any) -> T:
    """The dataclass of an object: keys that it has no field for are passed over, and a field
    without a key has its default. Raises `Misshapen` with the place of what cannot be, and what the
    dataclass itself raises."""
    if not isinstance(data, Mapping):
        raise Misshapen("an object", data)
    given: dict[str, Any] = {}
    of_any: Any = kind
    for one, hint, fits in _encoded(of_any):
        if one.name in data:
            try:
                value = given[one.name] = _made(hint, data[one.name])
                if not fits(value):
                    raise Misshapen(f"of type {one.type}", data[one.name])
            except Misshapen as error:
                raise error.below(f".{one.name}") from None
        elif one.default is MISSING and one.default_factory is MISSING:
            raise Misshapen("there", None, f".{one.name}")
    return kind(**given)


def _made(hint: Any, value: Any) -> Any:
    """The value as its type by the hint, where JSON has none; whether it fits is tested later."""
    origin, parts = get_origin(hint), [one for one in get_args(hint) if one is not type(None)]
    if origin in (Union, types.UnionType) and len(parts) == 1:
        return None if value is None else _made(parts[0], value)
    if isinstance(value, list) and origin in (tuple, frozenset):
        each = parts[:1] * len(value) if origin is frozenset or parts[1:] == [...] else parts
        if len(each) != len(value):
            raise Misshapen(f"a list of {len(each)}", value)
        return _gathered(origin, each, value)
    if not isinstance(hint, type):
        return value
    if is_dataclass(hint):
        return hint.from_json(value) if hasattr(hint, "from_json") else decode(hint, value)
    if isinstance(value, str) and (hint is Path or issubclass(hint, Enum)):
        try:
            return hint(value)
        except ValueError:
            raise Misshapen(f"a {hint.__name__}", value) from None
    return value


def _gathered(kind: type[Any], hints: list[Any], values: list[Any]) -> Any:
    found: list[Any] = []
    try:
        for hint, value in zip(hints, values, strict=True):
            found.append(_made(hint, value))
        return kind(found)
    except Misshapen as error:
        raise error.below(f"[{len(found)}]") from None
    except TypeError:  # a list in a set
        raise Misshapen("a list of plain values", values) from None


@cache
def _encoded(kind: Any) -> tuple[tuple[Field[Any], Any, Test], ...]:
    """Fields with their types and what they may hold."""
    hints = get_type_hints(kind, include_extras=True)
    there = (one for one in fields(kind) if one.metadata.get("json", True))
    return tuple((one, hints[one.name], fits_of(hints[one.name])) for one in there)


def fits_of(hint: Any, limits: tuple[float, float] = NO_LIMITS) -> Test:
    """Whether a value is of the type of a hint; numbers in it are within the limits, and a float
    without any may be NaN."""
    if get_origin(hint) is Annotated:  # the only one is NodeName
        return is_node_name
    if hint is Any:
        return lambda value: True
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: type(value) is str and value in parts
    each = [fits_of(part, limits) for part in parts if part not in (type(None), ...)]
    one = each[0] if each else None
    if origin in (Union, types.UnionType):
        if one is not None and len(each) == 1:
            return lambda value: value is None or one(value)
        return lambda value: value is None or any(test(value) for test in each)
    if one is not None and (origin is frozenset or (origin is tuple and parts[1:] == (...,))):
        return lambda value: type(value) is origin and all(map(one, value))
    if origin is tuple:
        return lambda value: (
            type(value) is tuple
            and len(value) == len(each)
            and all(test(part) for test, part in zip(each, value, strict=True))
        )
    if origin in (Mapping, dict):
        key, item = each
        return lambda value: (
            type(value) is dict and all(map(key, value)) and all(map(item, value.values()))
        )
    return _of_type(hint, limits)


def _of_type(hint: Any, limits: tuple[float, float]) -> Test:
    least, most = limits
    if hint is float:
        # A curve's NaN is in no range and may be there.
        if math.isinf(most):
            return lambda value: type(value) is float or _is_int(value)
        return lambda value: type(value) in (float, int) and least <= value <= most
    if hint is int:
        return lambda value: _is_int(value) and least <= value <= most
    if hint is Path:
        return lambda value: isinstance(value, Path)
    return lambda value: type(value) is hint


def _is_int(value: Any) -> bool:
    return type(value) is int and -LARGEST_INT <= value <= LARGEST_INT
