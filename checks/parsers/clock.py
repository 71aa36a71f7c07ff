"""A node's clock: chronyc as CSV (`-c -n`), ntpq, timedatectl, adjtimex, times over the channel.

All offsets here are positive where this node's clock is ahead. chrony itself has two conventions:
in tracking's CSV plus means our clock is slow, in sources' CSV minus does (measured with a server
that is 2.5 s ahead).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from checks.facts import (
    NOT_ASKED,
    ChronyTracking,
    Clock,
    Exchange,
    Maybe,
    Section,
    TimeSource,
    Unknown,
    known,
    then,
)
from checks.parsers.machine import read_processes
from checks.parsers.nvidia_smi import parse_quantity
from checks.parsers.section import Sections, first_line, parsed, rows_of, text_of, unreadable

STATES = {
    "*": "selected",
    "+": "combined",
    "-": "excluded",
    "x": "falseticker",
    "?": "unreachable",
    "~": "jittery",
}
"""chronyc's marks; ntpq has others beside them."""
_TALLY = STATES | {"o": "pps", "#": "excluded", ".": "excluded", " ": "rejected"}
_OWN_CLOCK = re.compile(r"127\.127\.1\.\d{1,3}|LOCAL\(\d{1,3}\)")  # the second is ntpsec's name
_Sample = tuple[Maybe[float], Maybe[float], Maybe[float]]  # age, offset and error, in seconds
NEVER = 4294967295  # LastRx of a server that has not answered yet
_NO_DAEMON = r"Request timed out|Connection refused|command not found"
STA_UNSYNC = 0x40


def parse_clock(
    sections: Sections,
    boot_s: float,
    now_s: float,
    samples: Iterable[tuple[float, float, float]] | None = None,
) -> Maybe[Clock]:
    """The clock of a node; a part that could not be read is Unknown.

    `samples` are the head's round trips: (sent, the node's time, received) in seconds.
    """
    if "began" not in sections and "adjtimex" not in sections:
        return NOT_ASKED
    get = sections.get
    sources = then(_of_chronyc(get("chrony_sources")), read_sources)
    if isinstance(sources, Unknown) and "ntpq" in sections:
        sources = parse_peers(sections["ntpq"])
    return Clock(
        time_s=now_s,
        boottime_s=boot_s,
        moved_s=parsed(get("began"), lambda text: _moved(text, now_s, boot_s)),
        kernel_synced=parsed(get("adjtimex"), read_adjtimex),
        kernel_max_error_s=parsed(get("adjtimex"), read_max_error),
        ntp_synchronized=parsed(get("timedatectl"), read_timedatectl),
        tracking=then(_of_chronyc(get("chrony_tracking")), read_tracking),
        sources=sources,
        daemons=parsed(get("processes"), _daemons),
        clocksource=parsed(get("clocksource"), _clocksource),
        log_ahead_s=parsed(get("log_ahead"), _log_ahead),
        exchange=NOT_ASKED if samples is None else best_exchange(samples),
    )


def _of_chronyc(section: Section | None) -> Maybe[str]:
    """Text of a section that may be read. chronyc without a daemon exits 1 with a message."""
    if section is not None and section.state == "ended":
        for line in (section.out + "\n" + section.err).splitlines():
            if re.match(r"\s*(506 |Could not open connect)", line):
                return Unknown("no chronyd answers: " + line.strip())
    return text_of(section)


def read_tracking(text: str) -> Maybe[ChronyTracking]:
    """`chronyc -c -n tracking`: the line with 14 fields anywhere in the text."""
    for line in text.splitlines():
        cells = line.strip().split(",")
        if len(cells) == 14 and re.fullmatch(r"[0-9A-Fa-f]{8}", cells[0]):
            try:
                numbers = [finite(cell) for cell in cells[3:13]]
                ref_id, name, stratum, leap = cells[0].upper(), cells[1], int(cells[2]), cells[13]
            except ValueError:
                return unreadable(line)
            at_s, slow_s, last_s, rms_s, ppm, _residual, skew, delay_s, spread_s, every_s = numbers
            offsets_s = (-slow_s, last_s, rms_s)
            rest = (ppm, skew, delay_s, spread_s, every_s)
            return ChronyTracking(ref_id, name, stratum, at_s, *offsets_s, *rest, leap.strip())
    return Unknown(f"chronyc tracking: {unreadable(first_line(text))}")


def finite(text: str) -> float:
    """Raises ValueError for nan and inf, too."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def read_sources(text: str) -> Maybe[tuple[TimeSource, ...]]:
    """`chronyc -c -n sources`: lines `^,*,10.0.0.1,2,6,377,21,0.000094,0.000095,0.001045`.

    No source at all is an answer too.
    """
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
    state, poll_s = STATES.get(cells[1], cells[1]), 2.0 ** min(int(cells[4]), 30)
    last_rx, reach = int(cells[6]), int(cells[5], 8)
    never = Unknown("it has never answered")
    seen: _Sample = (never, never, never)
    if state == "unreachable" and reach:
        state = "not usable"
    if last_rx != NEVER:
        seen = (float(last_rx), finite(cells[7]), finite(cells[9]))
    return TimeSource(cells[2], state, int(cells[3]), poll_s, reach, *seen)


def parse_peers(section: Section | None) -> Maybe[tuple[TimeSource, ...]]:
    """`ntpq -pn`. Without a daemon it exits 0, too, with a message."""
    if section is not None and section.state == "ended" and not section.out.strip():
        return read_peers(section.err)  # the message, if any
    return parsed(section, read_peers)


def read_peers(text: str) -> Maybe[tuple[TimeSource, ...]]:
    """Rows behind the line of equal signs; times are seconds, ntpq prints milliseconds."""
    for line in text.splitlines():
        if re.search(_NO_DAEMON, line):
            return Unknown("no ntpd answers: " + line.strip(" *"))
        if re.match(r"\W*No association", line):
            return ()  # it answers that it has no server
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
    silent = Unknown("it does not answer")
    seen: _Sample = (silent, silent, silent)
    if reach > 0 and math.isfinite(offset_s + jitter_s):
        # ntpq: plus means the server is ahead of us.
        seen = (_when(cells[4]), -offset_s, jitter_s)
    state = _TALLY[tally] if reach else "unreachable"
    own = _OWN_CLOCK.fullmatch(cells[0]) is not None or cells[1] in (".LOCL.", ".LCL.")
    is_own = own and cells[3] == "l"  # u: a server that serves its own clock
    return TimeSource(
        cells[0], state, int(cells[2]), float(cells[5]), reach, *seen, is_own_clock=is_own
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


def read_max_error(text: str) -> Maybe[float]:
    """The kernel's own bound on its error, in seconds; it counts microseconds."""
    match = re.search(r"\bmaxerror=(\d{1,18})\b", text)
    return Unknown("no maxerror") if match is None else int(match[1]) / 1e6


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


def _clocksource(text: str) -> Maybe[str]:
    word = text.strip()
    return word if re.fullmatch(r"[a-z][\w-]*", word) else unreadable(text)


def _log_ahead(text: str) -> Maybe[float]:
    """Seconds by which the newest file of /var/log is ahead; `none` without files."""
    if text.strip() == "none":
        return Unknown("there is no file in /var/log", is_absence=True)
    ahead_s = parse_quantity(text)
    return unreadable(text) if isinstance(ahead_s, Unknown) else ahead_s


def _moved(text: str, now_s: float, boot_s: float) -> Maybe[float]:
    """How far the wall clock went against boot time while the payload ran."""
    started = known(map(parse_quantity, text.split()))
    if len(started) != 2:
        return Unknown("the time at the start cannot be read")
    return (now_s - boot_s) - (started[0] - started[1])


def _daemons(text: str) -> Maybe[tuple[str, ...]]:
    table = read_processes(text)
    if isinstance(table, Unknown) or table.hidden:
        return table if isinstance(table, Unknown) else Unknown(table.hidden)
    names = [cells[1] for cells in rows_of(text) if cells[0] == "daemon" and len(cells) > 1]
    return tuple(dict.fromkeys(names))
