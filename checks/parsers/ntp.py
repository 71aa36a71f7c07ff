"""ntpq, timedatectl, adjtimex and the exchange of times over a channel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from checks.facts import Exchange, Maybe, Section, TimeSource, Unknown
from checks.parsers.section import text_of

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
STA_UNSYNC = 0x40


def parse_peers(section: Section | None) -> Maybe[tuple[TimeSource, ...]]:
    """`ntpq -pn`. Without a daemon it still exits 0: only its words tell."""
    if section is not None and section.state == "ended" and not section.out.strip():
        return read_peers(section.err)  # its words, if any, say why
    text = text_of(section)
    return text if isinstance(text, Unknown) else read_peers(text)


def read_peers(text: str) -> Maybe[tuple[TimeSource, ...]]:
    """Rows behind the line of equal signs; times are seconds, ntpq prints milliseconds."""
    for line in text.splitlines():
        if re.search(
            r"Request timed out|Connection refused|No association|command not found", line
        ):
            return Unknown("no ntpd answers: " + line.strip(" *"))
    head, ruler, body = text.partition("\n====")
    if not ruler or "remote" not in head:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "empty")
        return Unknown(f"ntpq: cannot read {said[:80]!r}")
    found = []
    for line in body.splitlines()[1:]:
        cells = line[1:].split()
        if len(cells) < 10 or line[0] not in _TALLY:
            continue
        try:
            reach = int(cells[6], 8)
            offset_s, jitter_s = float(cells[8]) / 1000, float(cells[9]) / 1000
            heard = reach > 0 and math.isfinite(offset_s + jitter_s)
            silent = Unknown("it does not answer")
            found.append(
                TimeSource(
                    address=cells[0],
                    state=_TALLY[line[0]] if reach else "unreachable",
                    stratum=int(cells[2]),
                    poll_s=float(cells[5]),
                    reach=reach,
                    last_rx_s=_when(cells[4]) if heard else silent,
                    # ntpq: plus means the server is ahead of us.
                    offset_s=-offset_s if heard else silent,
                    error_s=jitter_s if heard else silent,
                )
            )
        except (ValueError, OverflowError):
            continue
    return tuple(found)


def _when(text: str) -> Maybe[float]:
    if text == "-":
        return Unknown("ntpq names no time")
    units = {"m": 60, "h": 3600, "d": 86400}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)


def parse_timedatectl(section: Section | None) -> Maybe[bool]:
    """`timedatectl show -p NTPSynchronized`; anything but yes and no is unknown."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    match = re.search(r"^NTPSynchronized=(yes|no)\s*$", text, re.MULTILINE)
    return Unknown("timedatectl says nothing about it") if match is None else match[1] == "yes"


def parse_adjtimex(section: Section | None) -> Maybe[bool]:
    """`status=N maxerror=N esterror=N` of the census: whether the kernel's clock is steered."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    match = re.search(r"\bstatus=(\d{1,9})\b", text)
    return Unknown("no status") if match is None else not int(match[1]) & STA_UNSYNC


def best_exchange(samples: Iterable[tuple[float, float, float]]) -> Maybe[Exchange]:
    """The sample with the shortest round trip of (sent, the node's time, received), all in seconds.

    A single sample is wrong by up to 10 to 20 ms on a busy machine; the shortest of eight is not.
    """
    best: tuple[float, float] | None = None
    count = 0
    for sent, there, received in samples:
        trip = received - sent
        if trip < 0 or not all(map(math.isfinite, (sent, there, received))):
            continue  # the head's own clock was stepped
        count += 1
        if best is None or trip < best[0]:
            best = (trip, there - (sent + received) / 2)
    if best is None:
        return Unknown("no round trip")
    return Exchange(best[1], best[0] / 2, count)
