"""Xid 144 to 150, the errors of NVLink 5: part, severity and reason of a line.

A line is `149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)`: the part, how bad
it is, the link, then two words with the reason and the status. The severity that the line states
counts; where it states none, that of NVIDIA's catalogue for this part and status.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class LinkError(NamedTuple):
    """`about` is text behind "NVLink 5 error"."""

    is_fatal: bool
    about: str
    fix: str


PARTS = {
    144: "SAW: memory traffic of the link",
    145: "RLW: requests that come in",
    146: "TLW: requests that go out",
    147: "TREX: test engine",
    148: "NVLPW_CTRL: power of the link",
    149: "NETIR: the link itself",
    150: "MSE: its micro-controller",
}
# (number, begin of the part's name) -> status words that the catalogue calls fatal.
FATAL: dict[tuple[int, str], frozenset[int]] = {
    (144, "SAW_MVB"): frozenset((0x2, 0x10)),
    (145, "RLW_REMAP"): frozenset((0x40, 0x80)),
    (145, "RLW_RSPCOL"): frozenset((0x2,)),
    (145, "RLW_SRC_TRACK"): frozenset((0x1, 0x10, 0x20)),
    (145, "RLW_TAGSTATE"): frozenset((0x2, 0x20000, 0x100000)),
    (146, "TLW_CTRL"): frozenset((0x4,)),
    (146, "TLW_RX"): frozenset((0x4,)),
    (146, "TLW_TX"): frozenset((0x4,)),
    (149, "NETIR_LINK"): frozenset((0x0,)),
    (149, "NETIR_INT"): frozenset((0x0,)),
    (149, "NETIR_MFDE"): frozenset((0x1, 0x4, 0x5, 0x7)),
    (150, "MSE"): frozenset((0x0,)),
}
# Bits 20 to 25 of the first word of a NETIR_LINK_EVT: why the link is down, by what to look at.
_SIGNAL, _CABLES, _SOFTWARE, _PEER, _HOST = (
    "the signal of the link: reset, then service",
    "cables and signal of the link",
    "what software or a person did: a link that was taken down",
    "the device at the other end",
    "the host",
)
REASONS: dict[int, str] = {
    **dict.fromkeys((0b000010, 0b000100, 0b001010), _SIGNAL),
    **dict.fromkeys((0b001111, 0b010000, 0b010001, 0b010010, 0b010110, 0b100110), _SOFTWARE),
    **dict.fromkeys((0b010101, *range(0b100000, 0b100110)), _PEER),
    0b101000: _HOST,
    **dict.fromkeys((0b101010, 0b101011), _CABLES),
}
_ONLY_LOOK = (0b100110, 0b101000)  # no reset is asked for, although the link is down
_PART = re.compile(r"\b(?:SAW|RLW|TLW|TREX|NVLPW|NETIR|MSE)\w{0,40}")
_SEVERITY = re.compile(r"\b(?P<not>non-?)?fatal\b", re.IGNORECASE)
_LINK = re.compile(r"\bLink (\d{1,3}|-1)\b")
_STATUS = re.compile(r"\((0x[0-9a-f]{1,8})\b(?: (0x[0-9a-f]{1,8})\b)?", re.IGNORECASE)


def read(number: int, text: str) -> LinkError:
    """What a line states; `text` may begin anywhere before the part."""
    part, severity, words = _PART.search(text), _SEVERITY.search(text), _STATUS.search(text)
    name = part[0] if part else ""
    if severity:
        is_fatal = severity["not"] is None
    else:
        status = int(words[2], 16) if words and words[2] else None
        fatal = (codes for (xid, begin), codes in FATAL.items() if _is(number, name, xid, begin))
        is_fatal = status is not None and any(status in codes for codes in fatal)
    fix = ""
    if name.startswith("NETIR_LINK") and words:
        reason = int(words[1], 16) >> 20 & 0x3F
        is_fatal = is_fatal and reason not in _ONLY_LOOK
        fix = f"look at {REASONS[reason]}" if reason in REASONS else ""
    link = _LINK.search(text)
    about = f" ({name or PARTS[number].partition(':')[0]}{f', link {link[1]}' if link else ''})"
    return LinkError(is_fatal, about, fix)


def _is(number: int, name: str, xid: int, begin: str) -> bool:
    return number == xid and name.startswith(begin)
