"""Shapes of JSON values: types and limits of what a message of a node may hold.

A shape is a function that returns a value of exact types within its limits, with texts that are
safe to print, or raises `Misshapen`. A node may be broken or taken over: the cost of its line is
bounded before it is parsed, bytes by the reader of the line, values by the bytes outside of texts.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from clusterctl.dataclass_json import Misshapen
from clusterctl.errors import TransportError
from clusterctl.node_name import MOST as MOST_NAME
from clusterctl.node_name import node_name
from trainer.runlog.output import printable

Shape = Callable[[Any], Any]

WIDE = 2**63  # ids, counters and bytes of real machines are smaller
LINE = 4096  # characters of a text that is one line: a path, a name, an error
# Outside of its texts: numbers, brackets, commas. `[],[],…` costs 20 bytes of memory for each byte.
STRUCTURE_BYTES = 1 << 20
TEXTS = 100_000
_ADDRESS = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*", re.ASCII)


def text(most: int = LINE, *, lines: bool = False) -> Shape:
    """A text of at most `most` characters, made printable; with `lines` it may have several."""

    def shape(value: Any) -> str:
        if type(value) is not str or len(value) > most:
            raise Misshapen(f"a text of at most {most} characters", value)
        return printable(value, lines=lines)

    return shape


def ascii_text(most: int) -> Shape:
    """A text that is data, such as base64: ASCII without control characters, unchanged."""

    def read(value: str) -> str | None:
        return value if value.isascii() and value.isprintable() else None

    return _text_as(f"at most {most} ASCII characters", most, read)


def packed_text(most: int) -> Shape:
    """Bytes in base64, at most `most` of them; returns them as UTF-8, other bytes as `\\xff`."""

    def read(value: str) -> str | None:
        try:
            return base64.b64decode(value, validate=True).decode("utf-8", "backslashreplace")
        except ValueError:
            return None

    return _text_as(f"at most {most} bytes in base64", (most + 2) // 3 * 4, read)


def raw_text(most: int) -> Shape:
    """A text as it came, for a file or for JSON, never for a terminal; without lone surrogates."""

    def read(value: str) -> str:
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()

    return _text_as(f"a text of at most {most} characters", most, read)


def digits(high: int) -> Shape:
    """A whole number written as a text, as keys of JSON objects are."""

    def read(value: str) -> str | None:
        return value if value.isascii() and value.isdigit() and int(value) <= high else None

    return _text_as(f"digits up to {high}", 18, read)


def file_name() -> Shape:
    """A printable name of a file that is not hidden, in no other folder."""

    def read(value: str) -> str | None:
        is_good = value[:1] not in ("", ".") and "/" not in value and value.isprintable()
        return value if is_good else None

    return _text_as("the name of a file", 255, read)


def name_of_node() -> Shape:
    """What may be the name of a node (`clusterctl/node_name.py`)."""
    return _text_as("the name of a node", MOST_NAME, node_name)


def address() -> Shape:
    """Where a node may be reached: it goes to the other nodes, and into variables of ranks."""

    def read(value: str) -> str | None:
        return value if _ADDRESS.fullmatch(value) else None

    return _text_as("an address", MOST_NAME, read)


def one_of(*words: str) -> Shape:
    return _text_as(f"one of {', '.join(words)}", LINE, {word: word for word in words}.get)


def _text_as(wanted: str, most: int, read: Callable[[str], str | None]) -> Shape:
    """A text of at most `most` characters, as `read` returns it; None is another shape."""

    def shape(value: Any) -> str:
        found = read(value) if type(value) is str and len(value) <= most else None
        if found is None:
            raise Misshapen(wanted, value)
        return found

    return shape


def whole(low: int = -WIDE, high: int = WIDE) -> Shape:
    return _number("a whole number", (int,), low, high)


def number(low: float = -1e18, high: float = 1e18) -> Shape:
    """A number of low to high, whole or not; never infinite, never NaN."""
    return _number("a number", (int, float), low, high)


def _number(wanted: str, kinds: tuple[type, ...], low: float, high: float) -> Shape:
    if high < 1e18:
        wanted += f" of {low} to {high}"
    elif low > -1e18:
        wanted += f" of at least {low}"

    def shape(value: Any) -> Any:
        if type(value) not in kinds or not low <= value <= high:
            raise Misshapen(wanted, value)
        return value

    return shape


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise Misshapen("true or false", value)
    return value


def maybe(inner: Shape) -> Shape:
    def shape(value: Any) -> Any:
        return None if value is None else inner(value)

    return shape


def items(inner: Shape, most: int) -> Shape:
    def shape(value: Any) -> list[Any]:
        if type(value) is not list or len(value) > most:
            raise Misshapen(f"a list of at most {most}", value)
        return _each(itertools.repeat(inner), value)

    return shape


def row(*inner: Shape) -> Shape:
    def shape(value: Any) -> list[Any]:
        if type(value) is not list or len(value) != len(inner):
            raise Misshapen(f"a list of {len(inner)}", value)
        return _each(inner, value)

    return shape


def _each(shapes: Iterable[Shape], values: list[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        for inner, value in zip(shapes, values, strict=False):
            found.append(inner(value))
    except Misshapen as error:
        raise error.below(f"[{len(found)}]") from None
    return found


def table(key: Shape, inner: Shape, most: int) -> Shape:
    """An object with at most `most` keys of one shape and values of another."""

    def shape(value: Any) -> dict[str, Any]:
        if type(value) is not dict or len(value) > most:
            raise Misshapen(f"an object of at most {most} keys", value)
        found = {}
        for name, one in value.items():
            try:
                found[key(name)] = inner(one)
            except Misshapen as error:
                raise error.below(f".{printable(name[:60])}") from None
        if len(found) != len(value):  # two names that print alike are not two names
            raise Misshapen("an object whose keys differ in print", value)
        return found

    return shape


def record(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with all of the needed keys, perhaps some of the optional ones, and no others."""
    more = dict(optional or {})

    def shape(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misshapen("an object", value)
        found: dict[str, Any] = {}
        name = ""
        try:
            for name, inner in needed.items():
                found[name] = inner(value[name])
            if len(value) > len(found):
                for name, one in value.items():
                    if name not in found:
                        found[name] = more[name](one)
        except Misshapen as error:
            raise error.below(f".{printable(name[:60])}") from None
        except KeyError:
            wanted = "there" if name in needed else "absent"
            raise Misshapen(wanted, value.get(name), f".{printable(name[:60])}") from None
        return found

    return shape


def either(
    key: str,
    needed: Mapping[str, Mapping[str, Shape]],
    optional: Mapping[str, Mapping[str, Shape]] | None = None,
) -> Shape:
    """A record whose text under `key` says which other keys it needs, and which may be there."""
    shapes = {
        name: record({key: one_of(name), **keys}, (optional or {}).get(name))
        for name, keys in needed.items()
    }

    def shape(value: Any) -> Any:
        kind = value.get(key) if type(value) is dict else None
        if type(kind) is not str or kind not in shapes:
            raise Misshapen(f"one of {', '.join(shapes)}", kind, f".{key}")
        return shapes[kind](value)

    return shape


def by_key(shapes: Mapping[str, Shape], otherwise: Shape) -> Shape:
    """An object of the shape of the first of these keys that it has."""

    def shape(value: Any) -> Any:
        keys = [key for key in shapes if key in value] if type(value) is dict else []
        return (shapes[keys[0]] if keys else otherwise)(value)

    return shape


def decode(line: bytes, what: str, shape: Shape) -> Any:
    """The value of a line, as `shape` returns it, or a parse `TransportError` about `what`."""
    if len(line) > STRUCTURE_BYTES and _has_too_many(line):
        raise TransportError("parse", f"{what} holds too many values for its kind")
    try:
        # Payloads escape all but ASCII: other bytes are noise, and would cost 4 times their size.
        return shape(_DECODER.decode(line.decode("ascii")))
    except Misshapen as error:
        raise TransportError("parse", f"{what} is not as it should be: {error}") from None
    except UnicodeDecodeError:
        wrong = "not ASCII"
    except RecursionError:
        wrong = "nested too deeply"
    except ValueError:
        wrong = "no JSON"
    start = repr(printable(line[:120].decode("utf-8", "backslashreplace")))
    raise TransportError("parse", f"{what} is {wrong}: {start}")


def _has_too_many(line: bytes) -> bool:
    """Whether the line holds more texts or other values than are worth parsing."""
    bare = line.replace(rb"\\", b"").replace(rb"\"", b"")  # each quote left begins or ends a text
    if bare.count(b'"') > 2 * TEXTS:
        return True
    return sum(map(len, bare.split(b'"')[::2])) > STRUCTURE_BYTES


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # json.loads would make one for each line
