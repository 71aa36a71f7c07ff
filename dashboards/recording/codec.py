"""Samples and states as JSON and back, and the difference between two of them. Pure.

Every JSON list begins with a word for its type: a dataclass's name, "" a tuple, "{}" a mapping,
"set" a frozenset, "b" bytes. So a JSON object is always a difference: {"3": …} changes the fourth
place. Only the classes named here are ever made, and only with what their fields may hold
(`validation.py`): a file from elsewhere can bring neither code nor a text in place of a number.
"""

from __future__ import annotations

import base64
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.runs import journal
from dashboards.model import alert_book, ring_buffer, samples, state, usage_totals
from dashboards.model.thresholds import Limits
from dashboards.recording.validation import is_sound, tests
from trainer.runlog import steps, telemetry

MODULES = (samples, state, alert_book, usage_totals, ring_buffer, telemetry, steps, journal)
NOT_DATA = (alert_book.Rule, Limits)
# Not data but how this program works: a state that is read gets its own.
LEFT_OUT = {"AlertBook": ("limits", "rules", "hurry"), "NodeUsage": ("holders", "made_of")}


class PlainError(ValueError):
    """The file holds something that is not known here."""


CLASSES: dict[str, type[Any]] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value not in NOT_DATA
}
FIELDS: dict[str, tuple[str, ...]] = {
    name: tuple(f.name for f in dataclasses.fields(kind) if f.name not in LEFT_OUT.get(name, ()))
    for name, kind in CLASSES.items()
}


def _getter(names: tuple[str, ...]) -> Callable[[Any], Sequence[Any]]:
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return operator.attrgetter(*names)


# What is written as a list of parts: the word for it, and how to get them.
_WORDS: dict[type[Any], str] = {tuple: "", list: ""}
_PARTS: dict[type[Any], Callable[[Any], Sequence[Any]]] = {tuple: tuple, list: tuple}
for _name, _kind in CLASSES.items():
    _WORDS[_kind], _PARTS[_kind] = _name, _getter(FIELDS[_name])


def encode(value: Any) -> Any:
    """Something JSON can hold. Raises `PlainError` for what is not known here."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    parts = _PARTS.get(kind)
    if parts is not None:
        return [_WORDS[kind], *map(encode, parts(value))]
    if isinstance(value, Mapping):
        return ["{}", *(encode(part) for pair in value.items() for part in pair)]
    if kind in (frozenset, set):
        return ["set", *sorted(map(encode, value), key=repr)]
    if kind is bytes:
        return ["b", base64.b85encode(value).decode()]
    raise PlainError(f"{kind.__name__} cannot be written")


def decode(plain: Any, names_of: Mapping[str, Sequence[str]] = FIELDS) -> Any:
    """The value; `names_of` are the fields of classes in the file, those of now are taken.

    Raises `PlainError` for anything else.
    """
    if type(plain) is not list:
        if isinstance(plain, Mapping):
            raise PlainError("a difference in place of a value")
        return plain
    if not plain or type(plain[0]) is not str:
        raise PlainError("a list without a word for its type")
    word = plain[0]
    if word == "b" and len(plain) == 2:
        return base64.b85decode(plain[1])
    parts = [decode(part, names_of) for part in plain[1:]]
    if word == "":
        return tuple(parts)
    if word == "{}":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if word == "set":
        return frozenset(parts)
    kind, names = CLASSES.get(word), names_of.get(word)
    if kind is None:
        raise PlainError(f"unknown type: {word!r}")
    if names is None or len(names) != len(parts):
        raise PlainError(f"{word} has other fields than the file declares")
    given = dict(zip(names, parts, strict=True))
    made = kind(**{name: given[name] for name in FIELDS[word] if name in given})
    if not is_sound(made):
        raise PlainError(f"a {word} that cannot be")
    return made


def encode_like(value: Any, before: Any, before_plain: Any) -> Any:
    """As `encode`, with floats cut to what a reading can tell; shares what `before` has the same.

    Most of a node does not change from second to second, so this costs a fifth.
    """
    if value is before:
        return before_plain
    kind = type(value)
    if kind is float:
        size = abs(value)  # shares and clocks, readings, times
        return round(value, 5 if size < 1.0 else 2 if size < 1e6 else 3)
    parts = _PARTS.get(kind)
    if parts is None:
        return encode(value)
    new = parts(value)
    if kind is type(before) and type(before_plain) is list and len(before_plain) == len(new) + 1:
        return [_WORDS[kind], *map(encode_like, new, parts(before), before_plain[1:])]
    return [_WORDS[kind], *(encode_like(part, None, None) for part in new)]


def decode_like(change: Any, before: Any, plain: Any) -> Any:
    """`decode(plain)`, which `change` made of `before`'s; unchanged parts stay the same objects."""
    kind = type(before)
    parts = _PARTS.get(kind)
    if type(change) is not dict or parts is None:
        return decode(plain)
    values = list(parts(before))
    fits = None if kind is tuple else _TESTS[kind]
    for key, part in change.items():
        index = int(key)
        value = values[index - 1] = decode_like(part, values[index - 1], plain[index])
        if fits is not None and not fits[index - 1](value):
            raise PlainError(f"a {kind.__name__} cannot hold {value!r:.60}")
    return tuple(values) if fits is None else kind(*values)


_TESTS = {kind: [tests(kind)[name] for name in FIELDS[word]] for word, kind in CLASSES.items()}
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
