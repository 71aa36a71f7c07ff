"""chronyc's answers as CSV (`-c -n`).

All offsets here are positive where this node's clock is ahead. chrony itself has two conventions:
in tracking's CSV plus means our clock is slow, in sources' CSV minus does (measured with a server
that is 2.5 s ahead).
"""

from __future__ import annotations

import math
import re

from checks.facts import ChronyTracking, Maybe, Section, TimeSource, Unknown
from checks.parsers.section import first_line, text_of, unreadable

STATES = {
    "*": "selected",
    "+": "combined",
    "-": "excluded",
    "x": "falseticker",
    "?": "unreachable",
    "~": "jittery",
}
NEVER = 4294967295  # LastRx of a server that has not answered yet


def usable(section: Section | None) -> Maybe[str]:
    """Text of a section that may be read. chronyc without a daemon exits 1 with a message."""
    if section is not None and section.state == "ended":
        for line in (section.out + "\n" + section.err).splitlines():
            if re.match(r"\s*(506 |Could not open connection|Could not open connect)", line):
                return Unknown("no chronyd answers: " + line.strip())
    return text_of(section)


def parse_tracking(section: Section | None) -> Maybe[ChronyTracking]:
    """`chronyc -c -n tracking`."""
    text = usable(section)
    return text if isinstance(text, Unknown) else read_tracking(text)


def read_tracking(text: str) -> Maybe[ChronyTracking]:
    """The line with 14 fields anywhere in the text."""
    for line in text.splitlines():
        cells = line.strip().split(",")
        if len(cells) == 14 and re.fullmatch(r"[0-9A-Fa-f]{8}", cells[0]):
            try:
                numbers = [_finite(cell) for cell in cells[3:13]]
                stratum = int(cells[2])
            except ValueError:
                return unreadable(line)
            return ChronyTracking(
                ref_id=cells[0].upper(),
                ref_name=cells[1],
                stratum=stratum,
                ref_time_s=numbers[0],
                offset_s=-numbers[1],
                last_offset_s=numbers[2],
                rms_offset_s=numbers[3],
                frequency_ppm=numbers[4],
                skew_ppm=numbers[6],
                root_delay_s=numbers[7],
                root_dispersion_s=numbers[8],
                update_interval_s=numbers[9],
                leap=cells[13].strip(),
            )
    return Unknown(f"chronyc tracking: {unreadable(first_line(text))}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_sources(section: Section | None) -> Maybe[tuple[TimeSource, ...]]:
    """`chronyc -c -n sources`; no source at all is an answer too."""
    text = usable(section)
    return text if isinstance(text, Unknown) else read_sources(text)


def read_sources(text: str) -> Maybe[tuple[TimeSource, ...]]:
    """Lines `^,*,10.0.0.1,2,6,377,21,0.000094,0.000095,0.001045`."""
    found: list[TimeSource] = []
    strange: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        cells = line.strip().split(",")
        try:
            if len(cells) != 10 or cells[0] not in ("^", "=", "#"):
                raise ValueError(line)
            found.append(_source(cells))
        except (ValueError, OverflowError):
            strange.append(line)
    if strange and not found:
        return Unknown(f"chronyc sources: {unreadable(strange[0])}")
    return tuple(found)


def _source(cells: list[str]) -> TimeSource:
    last_rx, silent = int(cells[6]), Unknown("it has never answered")
    has_answered = last_rx != NEVER
    return TimeSource(
        address=cells[2],
        state=STATES.get(cells[1], cells[1]),
        stratum=int(cells[3]),
        poll_s=2.0 ** min(int(cells[4]), 30),
        reach=int(cells[5], 8),
        last_rx_s=float(last_rx) if has_answered else silent,
        offset_s=_finite(cells[7]) if has_answered else silent,
        error_s=_finite(cells[9]) if has_answered else silent,
    )
