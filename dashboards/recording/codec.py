"""Samples and states as JSON and back, and what differs between two of them. Pure.

Every JSON list begins with a word that says what it was: a dataclass's name, "" a tuple, "{}" a
mapping, "set" a frozenset, "b" bytes. So an object is a difference and nothing else: {"3": …}
changes the fourth place. Only the classes named here are ever made, and only with what their fields
may hold (`fields.py`): a file from elsewhere can bring neither code nor a text where a number is
wanted.
"""

from __future__ import annotations

import base64
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.model import alert_book, downsample, ring_buffer, samples, state
from dashboards.recording import fields
from trainer.runlog import telemetry

MODULES = (samples, state, alert_book, ring_buffer, downsample, telemetry)
# Not data but how this program works: a state gets its own anew.
LEFT_OUT = {"AlertBook": ("limits", "rules", "hurry")}


class PlainError(ValueError):
    """What stands in the file is none of what is known here."""


def _classes() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found[name] = value
    del found["Rule"], found["Limits"]  # of no state's data
    return found


CLASSES = _classes()
FIELDS: dict[str, tuple[str, ...]] = {
    name: tuple(
        item.name for item in dataclasses.fields(kind) if item.name not in LEFT_OUT.get(name, ())
    )
    for name, kind in CLASSES.items()
}
_NAMES = {kind: name for name, kind in CLASSES.items()}


def encode(value: Any) -> Any:
    """Something JSON can hold. Raises `PlainError` for what is not known here."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    name = _NAMES.get(kind)
    if name is not None:
        return [name, *(encode(getattr(value, field)) for field in FIELDS[name])]
    if kind in (tuple, list):
        return ["", *map(encode, value)]
    if isinstance(value, Mapping):
        return ["{}", *(encode(part) for pair in value.items() for part in pair)]
    if kind in (frozenset, set):
        return ["set", *sorted(map(encode, value), key=repr)]
    if kind is bytes:
        return ["b", base64.b85encode(value).decode()]
    raise PlainError(f"{kind.__name__} cannot be written")


def decode(plain: Any, names_of: Mapping[str, Sequence[str]] = FIELDS) -> Any:
    """The value; `names_of` are the classes' fields as the file has them, those of now are taken.

    Raises `PlainError` for what is none.
    """
    if type(plain) is not list:
        if isinstance(plain, Mapping):
            raise PlainError("a difference where a value is wanted")
        return plain
    if not plain or type(plain[0]) is not str:
        raise PlainError("a list without a word for its kind")
    word = plain[0]
    if word == "":
        return tuple([decode(part, names_of) for part in plain[1:]])
    kind = CLASSES.get(word)
    if kind is not None:
        names = names_of.get(word)
        if names is None or len(names) != len(plain) - 1:
            raise PlainError(f"{word} has other fields than the file says")
        values = [decode(part, names_of) for part in plain[1:]]
        if names == FIELDS[word] and word not in LEFT_OUT:
            return _made(kind, values)
        given = dict(zip(names, values, strict=True))
        return _checked(kind(**{name: given[name] for name in FIELDS[word] if name in given}))
    if word == "{}":
        parts = [decode(part, names_of) for part in plain[1:]]
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if word == "set":
        return frozenset(decode(part, names_of) for part in plain[1:])
    if word == "b" and len(plain) == 2:
        return base64.b85decode(plain[1])
    raise PlainError(f"no such thing: {word!r}")


_TESTS = {
    kind: tuple(fields.tests(kind)[name] for name in FIELDS[word]) for word, kind in CLASSES.items()
}


def _made(kind: type[Any], values: Sequence[Any]) -> Any:
    """An object of all of its fields. Raises `PlainError` where one cannot be that."""
    for test, value in zip(_TESTS[kind], values, strict=True):
        if not test(value):
            raise PlainError(f"a {kind.__name__} cannot hold {value!r:.60}")
    made = kind(*values)
    if not fields.agrees(made):
        raise PlainError(f"a {kind.__name__} that does not fit together")
    return made


def _checked(made: Any) -> Any:
    if not fields.is_sound(made):
        raise PlainError(f"a {type(made).__name__} that cannot be")
    return made


_READ = {
    kind: operator.attrgetter(*FIELDS[name])
    for name, kind in CLASSES.items()
    if len(FIELDS[name]) > 1
}


def encode_like(value: Any, before: Any, before_plain: Any) -> Any:
    """As `encode`, with floats cut to what a reading can tell; shares what `before` has the same.

    Most of a node stands still from second to second, so this costs a fifth.
    """
    if value is before:
        return before_plain
    kind = type(value)
    if kind is float:
        size = abs(value)  # shares and clocks, readings, times
        return round(value, 5 if size < 1.0 else 2 if size < 1e6 else 3)
    if kind is type(before) and type(before_plain) is list:
        if kind is tuple and len(value) == len(before):
            return ["", *map(encode_like, value, before, before_plain[1:])]
        read = _READ.get(kind)
        if read is not None:
            return [_NAMES[kind], *map(encode_like, read(value), read(before), before_plain[1:])]
    if kind is tuple:
        return ["", *(encode_like(part, None, None) for part in value)]
    read = _READ.get(kind)
    if read is not None:
        return [_NAMES[kind], *(encode_like(part, None, None) for part in read(value))]
    return encode(value)


def decode_like(change: Any, before: Any, plain: Any) -> Any:
    """`decode(plain)`, which `change` made of `before`'s; unchanged parts stay the same objects."""
    if type(change) is not dict:
        return decode(plain)
    kind = type(before)
    read = None if kind is tuple else _READ.get(kind)
    if kind is not tuple and read is None:
        return decode(plain)
    values = list(before if read is None else read(before))
    tests = None if read is None else _TESTS[kind]
    for key, part in change.items():
        index = int(key)
        value = values[index - 1] = decode_like(part, values[index - 1], plain[index])
        if tests is not None and not tests[index - 1](value):
            raise PlainError(f"a {kind.__name__} cannot hold {value!r:.60}")
    return tuple(values) if read is None else kind(*values)


SAME = object()


def difference(old: Any, new: Any) -> Any:
    """What makes `new` of `old`; SAME where nothing does. Both as `encode` gives them."""
    if old is new:
        return SAME
    if type(old) is not list or type(new) is not list:
        # 1 and True are equal and not the same; NaN differs from itself and is.
        return SAME if old == new and type(old) is type(new) else new
    if len(old) != len(new) or old[0] != new[0]:
        return new
    found: dict[str, Any] = {}
    for index in range(1, len(new)):
        one, other = old[index], new[index]
        if one is other:
            continue
        if type(other) is list or type(one) is list:
            part = difference(one, other)
            if part is not SAME:
                found[str(index)] = part
        elif one != other or type(one) is not type(other):
            found[str(index)] = other
    return found if found else SAME


def changed(old: Any, change: Any) -> Any:
    """`old` after a difference. Shares with `old` what did not change. Raises `PlainError`."""
    if type(change) is not dict:
        return change
    if type(old) is not list:
        raise PlainError("a difference from nothing")
    new = list(old)
    for key, part in change.items():
        if not key.isdigit() or not 0 < int(key) < len(new):
            raise PlainError("a difference in a place that is not there")
        index = int(key)
        new[index] = changed(old[index], part) if type(part) is dict else part
    return new
