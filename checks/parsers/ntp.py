"""ntpq, timedatectl, adjtimex and the exchange of times over a channel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from checks.facts import Exchange, Maybe, Section, TimeSource, Unknown
from checks.parsers.section import first_line, text_of, unreadable

_TALLY = {
    "*": "selected",
    "o": "pps",
    "+": "combined",
    "#": "excluded",
    "-": "excluded",
    ".": "excluded",
    "x": "falseticker",
    " ": "unreachable",
}
_NO_DAEMON = r"Request timed out|Connection refused|No association|command not found"
STA_UNSYNC = 0x40


def parse_peers(section: Section | None) -> Maybe[tuple[TimeSource, ...]]:
    """`ntpq -pn`. Without a daemon it exits 0, too, with a message."""
    if section is not None and section.state == "ended" and not section.out.strip():
        return read_peers(section.err)  # the message, if any
    text = text_of(section)
    return text if isinstance(text, Unknown) else read_peers(text)


def read_peers(text: str) -> Maybe[tuple[TimeSource, ...]]:
    """Rows behind the line of equal signs; times are seconds, ntpq prints milliseconds."""
    for line in text.splitlines():
        if re.search(_NO_DAEMON, line):
            return Unknown("no ntpd answers: " + line.strip(" *"))
    head, ruler, body = text.partition("\n====")
    if not ruler or "remote" not in head:
        return Unknown(f"ntpq: {unreadable(first_line(text))}")
    found = []
    for line in body.splitlines()[1:]:
        cells = line[1:].split()
        if len(cells) >= 10 and line[0] in _TALLY:
            try:
                found.append(_peer(line[0], cells))
            except (ValueError, OverflowError):
                continue
    return tuple(found)


def _peer(tally: str, cells: list[str]) -> TimeSource:
    reach, offset_s, jitter_s = int(cells[6], 8), float(cells[8]) / 1000, float(cells[9]) / 1000
    has_answered = reach > 0 and math.isfinite(offset_s + jitter_s)
    silent = Unknown("it does not answer")
    return TimeSource(
        address=cells[0],
        state=_TALLY[tally] if reach else "unreachable",
        stratum=int(cells[2]),
        poll_s=float(cells[5]),
        reach=reach,
        last_rx_s=_when(cells[4]) if has_answered else silent,
        # ntpq: plus means the server is ahead of us.
        offset_s=-offset_s if has_answered else silent,
        error_s=jitter_s if has_answered else silent,
    )


def _when(text: str) -> Maybe[float]:
    if text == "-":
        return Unknown("ntpq names no time")
    units = {"m": 60, "h": 3600, "d": 86400}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)


def read_timedatectl(text: str) -> Maybe[bool]:
    """`timedatectl show -p NTPSynchronized`; anything but yes and no is unknown."""
    match = re.search(r"^NTPSynchronized=(yes|no)\s*$", text, re.MULTILINE)
    return Unknown("timedatectl does not report it") if match is None else match[1] == "yes"


def read_adjtimex(text: str) -> Maybe[bool]:
    """`status=N maxerror=N esterror=N` of the census: whether the kernel's clock is steered."""
    match = re.search(r"\bstatus=(\d{1,9})\b", text)
    return Unknown("no status") if match is None else not int(match[1]) & STA_UNSYNC


def best_exchange(samples: Iterable[tuple[float, float, float]]) -> Maybe[Exchange]:
    """The sample with the shortest round trip of (sent, the node's time, received), all in seconds.

    A single sample is wrong by up to 10 to 20 ms on a busy machine; the shortest of eight is not.
    """
    trips = [
        (received - sent, there - (sent + received) / 2)
        for sent, there, received in samples
        # Received before it was sent: the head's own clock was stepped.
        if received >= sent and all(map(math.isfinite, (sent, there, received)))
    ]
    if not trips:
        return Unknown("no round trip")
    shortest_s, offset_s = min(trips, key=lambda trip: trip[0])
    return Exchange(offset_s, shortest_s / 2, len(trips))
