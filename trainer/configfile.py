"""Python configuration files: evaluated in a process of their own, merged, turned into dataclasses.

`_base_` (a path or a list, relative to the file) names files whose values come first; a dict is
merged into the base's dict unless it holds `_delete_: True`. Names with a leading underscore are
the file's own. What a file does while it runs (imports, sys.path, the environment) stays in that
process; home comes only plain data.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import marshal
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import ConfigError

Key = tuple[str, ...]

_LIMIT_S = 30.0

# Runs the file and sends its plain data home. The file's own prints go to stderr.
_CHILD = r"""
import marshal, os, sys, types
out, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
path = sys.argv[1]
class Odd(Exception): pass
def plain(value, name):
    if isinstance(value, dict):
        return {plain(k, name): plain(v, "%s.%s" % (name, k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(plain(v, name) for v in value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise Odd("%s is a %s; a config holds numbers, strings, lists, tuples and dicts" % (name, type(value).__name__))
try:
    space = {"__name__": "__config__", "__file__": path}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), space)
    skip = (types.ModuleType, types.FunctionType, type)
    data = {k: plain(v, k) for k, v in space.items()
            if (k == "_base_" or not k.startswith("_")) and not isinstance(v, skip)}
    answer = ("ok", data)
except Odd as error:
    answer = ("error", 0, str(error))
except SyntaxError as error:
    answer = ("error", error.lineno or 0, "%s: %s" % (type(error).__name__, error.msg))
except BaseException as error:
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    answer = ("error", lines[-1] if lines else 0, "%s: %s" % (type(error).__name__, error))
out.write(marshal.dumps(answer))
out.flush()
"""


@dataclass
class Tree:
    """Nested plain data and, for each key, the place that set it: `file:line` or a flag."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Where a key comes from; that of its nearest parent when it has none of its own."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.places:
                return self.places[key[:end]]
        return "the configuration"

    def set(self, key: Key, value: Any, place: str) -> None:
        """Set a nested value; dicts on the way are made."""
        node = self.data
        for name in key[:-1]:
            child = node.get(name)
            if not isinstance(child, dict):
                child = node[name] = {}
            node = child
        node[_same_key(node, key[-1])] = value
        self.places[key] = place

    def merge(self, other: Tree) -> None:
        """Lay `other` over this tree; `_delete_` in one of its dicts drops what stood below."""
        self.data = _merged(self.data, other.data)
        self.places.update(other.places)


def _same_key(node: Mapping[Any, Any], name: str) -> Any:
    """`"51"` means the key 51 where the dict has numbers for keys, as bucket tables do."""
    if name not in node and name.lstrip("-").isdigit() and any(isinstance(k, int) for k in node):
        return int(name)
    return name


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = {} if above.get("_delete_") else dict(below)
    for name, value in above.items():
        if name == "_delete_":
            continue
        if isinstance(value, dict):
            old = result.get(name)
            value = _merged(old if isinstance(old, dict) else {}, value)
        result[name] = value
    return result


def read(path: Path, _seen: tuple[Path, ...] = ()) -> Tree:
    """The file with its bases beneath it. Raises `ConfigError` with file and line."""
    path = path.resolve()
    if path in _seen:
        raise ConfigError(
            " -> ".join(map(str, (*_seen, path))) + ": these files inherit in a circle"
        )
    data = dict(_evaluate(path))
    bases = data.pop("_base_", [])
    places = _lines(path)
    own = Tree(data, {key: f"{path}:{line}" for key, line in places.items()})
    tree = Tree()
    for base in [bases] if isinstance(bases, str) else bases:
        lower = read(path.parent / base, (*_seen, path))
        twice = sorted(set(tree.data) & set(lower.data))
        if twice:
            raise ConfigError(
                f"{path}: two files of _base_ set {', '.join(twice)} "
                f"({tree.place((twice[0],))} and {lower.place((twice[0],))})"
            )
        tree.merge(lower)
    tree.merge(own)
    return tree


def _evaluate(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"there is no config file {path}")
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path} is still running after {_LIMIT_S:.0f} s") from None
    try:
        answer = marshal.loads(child.stdout)
    except (EOFError, ValueError, TypeError):
        said = child.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise ConfigError(
            f"{path} ended Python while it was read (exit code {child.returncode}): {' '.join(said)}"
        ) from None
    if answer[0] == "ok":
        return dict(answer[1])
    _, line, text = answer
    raise ConfigError(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def _lines(path: Path) -> dict[Key, int]:
    """The line of every key that is written out: assignments, dict displays, dict(...) calls."""
    found: dict[Key, int] = {}

    def walk(node: ast.expr, key: Key) -> None:
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant):
                    inner = (*key, str(name.value))
                    found[inner] = name.lineno
                    walk(value, inner)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            for keyword in node.keywords:
                if keyword.arg:
                    inner = (*key, keyword.arg)
                    found[inner] = keyword.value.lineno
                    walk(keyword.value, inner)

    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    found[(target.id,)] = statement.lineno
                    walk(statement.value, (target.id,))
    return found


# --- plain data to dataclasses -------------------------------------------------------------------


class Section:
    """Base of the dataclasses a config is made of. Subclasses may narrow these tables."""

    harmless: typing.ClassVar[Mapping[str, str]] = {}  # upstream keys we need not: key -> why
    refused: typing.ClassVar[Mapping[str, str]] = {}  # upstream keys we cannot: key -> sentence
    aliases: typing.ClassVar[Mapping[str, str]] = {}  # other spelling -> field

    @classmethod
    def open_types(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Types of further keys that end in the field `options`; `data` is the section's own."""
        return {}


S = TypeVar("S", bound=Section)


_types: dict[Any, dict[str, Any]] = {}


def field_types(cls: Any) -> dict[str, Any]:
    """Field name -> type, without fields that no file may set."""
    if cls not in _types:  # evaluating the annotations takes 2 ms
        hints = typing.get_type_hints(cls)
        fields = [f for f in dataclasses.fields(cls) if f.metadata.get("settable", True)]
        _types[cls] = {f.name: hints[f.name] for f in fields}
    return _types[cls]


def build(cls: type[S], tree: Tree, notes: list[str], key: Key = ()) -> S:
    """The dataclass for the dict at `key`. Harmless keys are dropped with a note.

    Raises `ConfigError` for unknown and refused keys and for values of another type.
    """
    data: Any = tree.data
    for name in key:
        data = data[name]
    if not isinstance(data, Mapping):
        raise ConfigError(f"{tree.place(key)}: {'.'.join(key)} must be a dict, not {data!r}")
    known, options = field_types(cls), cls.open_types(data)
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in data.items():
        here = (*key, str(name))
        field_name = resolve_name(cls, str(name), options, here, tree.place(here), notes)
        if field_name is None:
            continue
        kind = known.get(field_name) or options[field_name]
        section = _section_of(kind)
        if section and isinstance(value, Mapping):
            value = build(section, tree, notes, here)
        else:
            value = coerce(value, kind, here, tree.place(here))
        (values if field_name in known else extra)[field_name] = value
    if extra:
        values["options"] = extra
    return cls(**values)


def resolve_name(
    cls: type[Section],
    name: str,
    options: Mapping[str, Any],
    key: Key,
    place: str,
    notes: list[str],
) -> str | None:
    """The field a key means; None for a harmless one. Raises `ConfigError` for any other."""
    name = cls.aliases.get(name, name)
    known = field_types(cls)
    if name in known or name in options:
        return name
    shown = ".".join(key)
    if name in cls.harmless:
        note = f"{shown} is not needed here: {cls.harmless[name]}"
        if note not in notes:
            notes.append(note)
        return None
    if name in cls.refused:
        raise ConfigError(f"{place}: {shown} is not supported: {cls.refused[name]}")
    names = [*known, *options, *cls.aliases, *cls.harmless, *cls.refused]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {'.'.join((*key[:-1], near[0]))}?" if near else None
    raise ConfigError(f"{place}: there is no key {shown}", hint=hint)


def _section_of(kind: Any) -> type[Section] | None:
    for part in typing.get_args(kind) or (kind,):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def coerce(value: Any, kind: Any, key: Key, place: str) -> Any:
    """A value of a file as the field's type: an int may stand for a float, a list for a tuple."""
    for part in _alternatives(kind):
        origin = typing.get_origin(part) or part
        if part is Any or (value is None and part is type(None)):
            return value
        if origin is bool or origin is int or origin is str:
            if type(value) is origin:
                return value
        elif origin is float:
            if type(value) in (int, float):
                return float(value)
        elif origin in (tuple, list):
            if isinstance(value, (list, tuple)):
                return _coerce_items(value, part, key, place)
        elif origin is dict and isinstance(value, Mapping):
            return dict(value)
    raise ConfigError(
        f"{place}: {'.'.join(key)} must be {type_name(kind)}, not {value!r} ({type(value).__name__})"
    )


def _coerce_items(value: Any, kind: Any, key: Key, place: str) -> Any:
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if not args:
        return origin(value)
    if origin is tuple and Ellipsis not in args:
        if len(value) != len(args):
            raise ConfigError(
                f"{place}: {'.'.join(key)} must have {len(args)} values, not {value!r}"
            )
        return tuple(coerce(v, k, key, place) for v, k in zip(value, args, strict=True))
    return origin(coerce(v, args[0], key, place) for v in value)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def type_name(kind: Any) -> str:
    """A type in words for people."""
    names = []
    for part in _alternatives(kind):
        names.append("None" if part is type(None) else getattr(part, "__name__", str(part)))
    return " or ".join(names)


# --- overrides -------------------------------------------------------------------------------


def parse_text(text: str, kind: Any, flag: str) -> Any:
    """A word of the command line as the field's type; `none` is None where that is allowed."""
    parts = _alternatives(kind)
    if type(None) in parts and text.lower() == "none":
        return None
    for part in parts:
        origin = typing.get_origin(part) or part
        if origin is bool and text.lower() in ("true", "1", "yes", "on"):
            return True
        if origin is bool and text.lower() in ("false", "0", "no", "off"):
            return False
        if origin in (int, float):
            try:
                return origin(text)
            except ValueError:
                continue
        if origin is str:
            return text
        if origin in (list, tuple, dict) or part is Any:
            try:
                return ast.literal_eval(text)
            except (ValueError, SyntaxError):
                if part is Any:
                    return text
    raise ConfigError(f"{flag} must be {type_name(kind)}, not {text!r}")


def type_at(
    cls: type[Section], key: Key, tree: Tree, flag: str, notes: list[str]
) -> tuple[Key, Any] | None:
    """Full key and type of a dotted name; None when the key is harmless. Raises `ConfigError`."""
    data: Any = tree.data
    found: Key = ()
    kind: Any = cls
    for index, name in enumerate(key):
        section = _section_of(kind)
        if section is None:
            if dict in [typing.get_origin(p) or p for p in _alternatives(kind)]:
                return (*found, *key[index:]), Any  # inside a free table such as bucket_config
            raise ConfigError(f"{flag}: {'.'.join(found)} is no section, it has no {name}")
        own = data if isinstance(data, Mapping) else {}
        options = section.open_types(own)
        resolved = resolve_name(section, name, options, (*found, name), flag, notes)
        if resolved is None:
            return None
        found = (*found, resolved)
        kind = field_types(section).get(resolved) or options[resolved]
        data = own.get(resolved)
    return found, kind
