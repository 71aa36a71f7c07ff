"""chronyc's answers, as CSV (`-c`) and as people see them.

All offsets here are positive where this node's clock is ahead. chrony itself is of two minds: in
tracking's CSV plus means our clock is slow, in sources' CSV minus does (measured with a server
that is 2.5 s ahead).
"""

from __future__ import annotations

import calendar
import math
import re
import time

from checks.facts import ChronyTracking, Maybe, Section, TimeSource, Unknown
from checks.parsers.section import text_of

STATES = {
    "*": "selected",
    "+": "combined",
    "-": "excluded",
    "x": "falseticker",
    "?": "unreachable",
    "~": "jittery",
}
NEVER = 4294967295  # LastRx of a server that has not answered yet
_SCALE = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_tracking(section: Section | None) -> Maybe[ChronyTracking]:
    """`chronyc -c -n tracking`, or the same without -c."""
    text = usable(section)
    return text if isinstance(text, Unknown) else read_tracking(text)


def usable(section: Section | None) -> Maybe[str]:
    """Text of a section that may be read. chronyc without a daemon exits 1 and says so."""
    if section is not None and section.state == "ended":
        for line in (section.out + "\n" + section.err).splitlines():
            if re.match(r"\s*(506 |Could not open connection|Could not open connect)", line):
                return Unknown("no chronyd answers: " + line.strip())
    return text_of(section)


def read_tracking(text: str) -> Maybe[ChronyTracking]:
    """The line with 14 fields anywhere in the text; else the words of the human format."""
    for line in text.splitlines():
        cells = line.strip().split(",")
        if len(cells) == 14 and re.fullmatch(r"[0-9A-Fa-f]{8}", cells[0]):
            try:
                numbers = [_finite(cell) for cell in cells[3:13]]
                stratum = int(cells[2])
            except ValueError:
                return Unknown(f"cannot read {line[:80]!r}")
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
    return _read_words(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _read_words(text: str) -> Maybe[ChronyTracking]:
    words = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(" : ") for line in text.splitlines())
    }
    try:
        reference = re.match(r"([0-9A-Fa-f]{8}) \((.*)\)", words["Reference ID"])
        offset = re.match(r"([\d.]+) seconds (fast|slow) of NTP time", words["System time"])
        if reference is None or offset is None:
            return Unknown("chronyc tracking: cannot read reference and offset")

        def first(key: str) -> float:
            return _finite(words[key].split()[0])

        return ChronyTracking(
            ref_id=reference[1].upper(),
            ref_name=reference[2],
            stratum=int(words["Stratum"]),
            ref_time_s=float(
                calendar.timegm(time.strptime(words["Ref time (UTC)"], "%a %b %d %H:%M:%S %Y"))
            ),
            offset_s=_finite(offset[1]) * (1 if offset[2] == "fast" else -1),
            last_offset_s=first("Last offset"),
            rms_offset_s=first("RMS offset"),
            frequency_ppm=first("Frequency") * (-1 if words["Frequency"].endswith("slow") else 1),
            skew_ppm=first("Skew"),
            root_delay_s=first("Root delay"),
            root_dispersion_s=first("Root dispersion"),
            update_interval_s=first("Update interval"),
            leap=words["Leap status"],
        )
    except (KeyError, ValueError, IndexError) as error:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "empty")
        lacking = f" (no {error.args[0]})" if isinstance(error, KeyError) else ""
        return Unknown(f"chronyc tracking: cannot read {said[:80]!r}{lacking}")


def parse_sources(section: Section | None) -> Maybe[tuple[TimeSource, ...]]:
    """`chronyc -c -n sources`; no source at all is an answer too."""
    text = usable(section)
    return text if isinstance(text, Unknown) else read_sources(text)


def read_sources(text: str) -> Maybe[tuple[TimeSource, ...]]:
    """CSV lines `^,*,10.0.0.1,2,6,377,21,0.000094,0.000095,0.001045`, or the human table."""
    found: list[TimeSource] = []
    strange: list[str] = []
    for line in text.splitlines():
        cells = line.strip().split(",")
        if len(cells) == 10 and cells[0] in ("^", "=", "#"):
            try:
                found.append(_source(cells))
            except (ValueError, OverflowError):
                strange.append(line)
        elif match := re.match(r"^\s*[\^=#]([*+\-x?~])\s+(\S+)\s+(.*)$", line):
            source = _from_table(match[1], match[2], match[3])
            strange += [line] if source is None else []
            found += [] if source is None else [source]
        elif line.strip() and not re.match(r"^(MS Name|=+$|\s*[|/\\'.])", line.strip()):
            strange.append(line)
    if strange and not found:
        return Unknown(f"chronyc sources: cannot read {strange[0].strip()[:80]!r}")
    return tuple(found)


def _source(cells: list[str]) -> TimeSource:
    last_rx, reach = int(cells[6]), int(cells[5], 8)
    heard = last_rx != NEVER
    silent = Unknown("it has never answered")
    return TimeSource(
        address=cells[2],
        state=STATES.get(cells[1], cells[1]),
        stratum=int(cells[3]),
        poll_s=2.0 ** min(int(cells[4]), 30),
        reach=reach,
        last_rx_s=float(last_rx) if heard else silent,
        offset_s=_finite(cells[7]) if heard else silent,
        error_s=_finite(cells[9]) if heard else silent,
    )


def _from_table(state: str, address: str, rest: str) -> TimeSource | None:
    """`2   2   377     0    +94us[  +96us] +/- 1046us`."""
    match = re.match(
        r"(\d+)\s+(\d+)\s+(\d+)\s+(\S+)\s+([+-]?\d+)(ns|us|ms|s)\[.*\] \+/-\s*(\d+)(ns|us|ms|s)",
        rest,
    )
    if match is None:
        return None
    heard = match[4] != "-"
    silent = Unknown("it has never answered")
    try:
        return TimeSource(
            address=address,
            state=STATES[state],
            stratum=int(match[1]),
            poll_s=2.0 ** min(int(match[2]), 30),
            reach=int(match[3], 8),
            last_rx_s=_ago(match[4]) if heard else silent,
            offset_s=int(match[5]) * _SCALE[match[6]] if heard else silent,
            error_s=int(match[7]) * _SCALE[match[8]] if heard else silent,
        )
    except (ValueError, OverflowError):
        return None


def _ago(text: str) -> float:
    units = {"m": 60, "h": 3600, "d": 86400, "y": 31536000}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)
