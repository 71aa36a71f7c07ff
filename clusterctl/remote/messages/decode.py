"""One line of JSON from a node as a value of a known shape, within limits of size, count and depth.

A node may be broken or taken over. The cost of its line is bounded before it is parsed: bytes by
the reader of the line, values by the bytes outside of texts.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from clusterctl.errors import TransportError
from clusterctl.printable import printable
from clusterctl.remote.messages.shape import Misshapen, Shape

# Outside of its texts: numbers, brackets, commas. `[],[],…` costs 20 bytes of memory for each byte.
STRUCTURE_BYTES = 1 << 20
TEXTS = 100_000


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
