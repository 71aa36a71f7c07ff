"""Plain data to the dataclasses of a config; errors name the place of a key."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from trainer.allowed_values import require_allowed
from trainer.config.file import Key, Tree
from trainer.errors import ConfigError, nearest


class Section:
    """Base of the dataclasses a config is made of. Subclasses may narrow these tables."""

    harmless: typing.ClassVar[Mapping[str, str]] = {}  # upstream keys we need not: key -> why
    refused: typing.ClassVar[Mapping[str, str]] = {}  # upstream keys we cannot: key -> sentence
    aliases: typing.ClassVar[Mapping[str, str]] = {}  # other spelling -> field
    further: typing.ClassVar[Any] = None  # a dataclass whose fields go to the field `options`


S = TypeVar("S", bound=Section)
_BOOLS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


@functools.cache  # evaluating the annotations takes 2 ms
def field_types(cls: Any) -> dict[str, Any]:
    """Field name -> type, without fields that no file may set."""
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.metadata.get("settable", True)]
    return {f.name: hints[f.name] for f in fields}


def _key_types(cls: Any) -> dict[str, Any]:
    """As `field_types`, with the fields that go to `options`."""
    return field_types(cls) | (field_types(cls.further) if cls.further else {})


def build(cls: type[S], tree: Tree, notes: list[str], key: Key = ()) -> S:
    """The dataclass for the dict at `key`; raises ConfigError for wrong keys and values."""
    data: Any = tree.data
    for name in key:
        data = data[name]
    if not isinstance(data, Mapping):
        raise ConfigError(f"{tree.place(key)}: {'.'.join(key)} must be a dict, not {data!r}")
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    further = field_types(cls.further) if cls.further else {}
    for name, value in data.items():
        here = (*key, str(name))
        field_name = _field_of(cls, here, tree.place(here), notes)
        if field_name is None:
            continue
        kind = _key_types(cls)[field_name]
        section = _section_of(kind)
        if section and isinstance(value, Mapping):
            value = build(section, tree, notes, here)
        else:
            value = coerce(value, kind, here, tree.place(here))
        (options if field_name in further else values)[field_name] = value

    def named(name: str) -> str:
        return f"{tree.place((*key, name))}: {'.'.join((*key, name))}"

    require_allowed(cls, values, named)
    if options:
        require_allowed(cls.further, options, named)
        values["options"] = options
    return cls(**values)


def _field_of(cls: type[Section], key: Key, place: str, notes: list[str]) -> str | None:
    """The field a key means; None for a harmless one. Raises `ConfigError` for any other."""
    name = cls.aliases.get(key[-1], key[-1])
    known = _key_types(cls)
    if name in known:
        return name
    shown = ".".join(key)
    if name in cls.harmless:
        note = f"{shown} is not needed here: {cls.harmless[name]}"
        if note not in notes:
            notes.append(note)
        return None
    if name in cls.refused:
        raise ConfigError(f"{place}: {shown} is not supported: {cls.refused[name]}")
    names = [*known, *cls.aliases, *cls.harmless, *cls.refused]
    section = "".join(f"{part}." for part in key[:-1])
    hint = nearest(name, names, section)
    if hint is None and not section and not place.startswith("--"):
        hint = "begin the name of a variable of your own with _: such names are not keys"
    raise ConfigError(f"{place}: there is no key {shown}", hint=hint)


def _section_of(kind: Any) -> type[Section] | None:
    for part in typing.get_args(kind) or (kind,):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def coerce(value: Any, kind: Any, key: Key, place: str) -> Any:
    """A value of a file as the field's type: an int is also a float, a list also a tuple."""
    name = f"{place}: {'.'.join(key)}"
    for part in _alternatives(kind):
        origin, args = typing.get_origin(part) or part, typing.get_args(part)
        if part is Any or (origin in (bool, int, str, type(None)) and type(value) is origin):
            return value
        if origin is float and type(value) in (int, float):
            if not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number; not {value}")
            return float(value)
        if origin in (tuple, list) and isinstance(value, (list, tuple)):
            kinds = args if origin is tuple and Ellipsis not in args else args[:1] * len(value)
            if len(kinds) != len(value):
                raise ConfigError(f"{name} must have {len(args)} values, not {value!r}")
            return origin(coerce(v, k, key, place) for v, k in zip(value, kinds, strict=True))
        if origin is dict and isinstance(value, Mapping):
            return dict(value)
    raise ConfigError(f"{name} must be {type_name(kind)}, not {value!r} ({type(value).__name__})")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def type_name(kind: Any) -> str:
    """A type for people."""
    names = {type(None): "none", float: "a number", int: "an integer", str: "text"}
    names |= {bool: "true or false", list: "a list", tuple: "a tuple", dict: "a dict"}
    kinds = (typing.get_origin(part) or part for part in _alternatives(kind))
    return " or ".join(names.get(part, str(part)) for part in kinds)


# --- overrides ---


def parse_text(text: str, kind: Any, flag: str) -> Any:
    """A word of the command line as the field's type; `none` is None where that is allowed."""
    kinds = [typing.get_origin(part) or part for part in _alternatives(kind)]
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    for convert in (int, float):
        if convert in kinds:
            with contextlib.suppress(ValueError):
                return convert(text)
    if {list, tuple, dict, Any} & {*kinds}:
        with contextlib.suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)
    if str in kinds or Any in kinds:
        return text
    raise ConfigError(f"{flag} must be {type_name(kind)}, not {text!r}")


def type_at(cls: type[Section], key: Key, flag: str, notes: list[str]) -> tuple[Key, Any] | None:
    """Full key and type of a dotted name; None when the key is harmless. Raises `ConfigError`."""
    found: Key = ()
    kind: Any = cls
    for index, name in enumerate(key):
        section = _section_of(kind)
        if section is None:
            if dict in [typing.get_origin(p) or p for p in _alternatives(kind)]:
                return (*found, *key[index:]), Any  # inside a free table such as bucket_config
            raise ConfigError(f"{flag}: {'.'.join(found)} is not a section and has no {name}")
        field_name = _field_of(section, (*found, name), flag, notes)
        if field_name is None:
            return None
        found = (*found, field_name)
        kind = _key_types(section)[field_name]
    return found, kind
