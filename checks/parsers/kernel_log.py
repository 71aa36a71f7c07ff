"""The kernel's log, in any of the prefixes it is printed with, to events that mean something.

Known forms of one line: `[ 1843.308145] …` (dmesg), `6,3973,227996636,-;…` (/dev/kmsg),
`[Sun Feb 23 16:24:18 2025] …` (dmesg -T), `kern  :warn  : 2025-01-21T04:41:44,283302+00:00 …`
(dmesg -x --time-format iso), `Aug 17 06:18:01 host systemd-networkd[5398]: …` (syslog) and nothing.
"""

from __future__ import annotations

import calendar
import datetime
import re
import time

from checks.facts import NOT_ASKED, KernelEvent, KernelLog, Maybe, Section, Unknown, then
from checks.parsers.section import unreadable

# MIG puts a GPU instance behind the address: (PCI:0000:01:00 GPU-I:05).
_XID = re.compile(
    r"NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})[^)]*\): (\d{1,4})\b(.*)"
)
_SXID = re.compile(
    r"SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d{1,6})\b.*?(Non-fatal|Fatal)?", re.IGNORECASE
)

# (kind, pattern, group that names the subject). The first that matches takes the line.
_KINDS: tuple[tuple[str, re.Pattern[str], int], ...] = tuple(
    (kind, re.compile(pattern), group)
    for kind, pattern, group in (
        ("fell-off-bus", r"(?:NVRM|GPU).*fallen off the bus", 0),
        ("probe-failed", r"NVRM: The NVIDIA probe routine failed for \d+ device", 0),
        ("oom", r"Out of memory: Kill(?:ed)? process (\d+)", 1),
        ("oom", r"oom-kill:constraint=|oom_reaper: reaped process", 0),
        ("mce", r"(?:mce: \[Hardware Error\]|Machine check events logged|\[Hardware Error\]: Machine check)", 0),
        ("lockup", r"(?:watchdog: )?BUG: (?:soft|hard) lockup|hard LOCKUP", 0),
        ("hung-task", r"INFO: task (\S+) blocked for more than \d+ seconds", 1),
        ("read-only", r"[Rr]emounting filesystem read-only|Remounting fs read-only", 0),
        ("disk", r"(nvme\d+)[^:]*: (?:I/O \S+ .*timeout|.*(?:controller is down|Removing after probe failure))", 1),
        ("disk", r"(?:blk_update_request|critical medium|I/O) error.*dev (\w+)", 1),
        ("nfs", r"nfs: server (\S+) not responding", 1),
        ("link-lost", r"\b((?:ib|eth|en|mlx5_|bond)[\w.-]*): (?:[Ll]ost carrier|[Ll]ink is [Dd]own|[Ll]ink [Dd]own)", 1),
        ("link-lost", r"mlx5_core \S+ ([\w.-]+): [Ll]ink [Dd]own", 1),
        ("link-back", r"\b((?:ib|eth|en|mlx5_|bond)[\w.-]*): (?:[Gg]ained carrier|[Ll]ink is [Uu]p|[Ll]ink [Uu]p)", 1),
        ("link-back", r"mlx5_core \S+ ([\w.-]+): [Ll]ink [Uu]p", 1),
        ("peermem", r"nvidia-peermem .*ERROR detected invalid context", 0),
        ("nccl-crash", r"segfault at .* in libnccl\.so", 0),
        ("pcie-slow", r"([0-9A-Fa-f:.]+): [\d.]+ Gb/s available PCIe bandwidth, limited by", 1),
    )
)  # fmt: skip

START_S = 60.0  # of a machine's start: a log that begins there has lost nothing

INTERESTING = (
    r"NVRM|SXid|fallen off|Out of memory|oom-kill|oom_reaper|Hardware Error|Machine check|lockup"
    r"|LOCKUP|blocked for more|read-only|nvme|I/O error|medium error|not responding|arrier"
    r"|Link (?:is )?(?:[Dd]own|[Uu]p)|link (?:is )?(?:[Dd]own|[Uu]p)|peermem|segfault"
    r"|PCIe bandwidth"
)
"""Lines that a node sends; the rest of the log stays there.

Each alternative begins with a literal: a line is then searched in 1 us, but in 2.4 with one [Ll]
among them.
"""


def parse_kernel_log(
    section: Section | None, uptime_s: Maybe[float], now_s: Maybe[float]
) -> Maybe[KernelLog]:
    """The lines that the census sent; a log that cannot be read is Unknown.

    It begins with `#lines N`, their number, and `#first LINE`, the oldest of them: the kernel's
    buffer and ours keep the newest only.
    """
    if section is None:
        return NOT_ASKED
    if section.state != "ended" or section.rc != 0:
        return Unknown(f"the kernel's log cannot be read: {section.why_not}")
    match = re.match(r"#lines\t(\d{1,9})\n#first\t(.*)\n", section.out)
    if match is None or int(match[1]) == 0:
        return Unknown(f"the kernel's log cannot be read: {unreadable(section.out)}")
    events = read_events(section.out[match.end() :], uptime_s, now_s)
    age_s = _age(match[2], uptime_s, now_s)
    whole = not section.truncated and _is_start(match[2], age_s, uptime_s)
    return KernelLog(events, int(match[1]), None if whole else age_s)


def _is_start(line: str, age_s: Maybe[float], uptime_s: Maybe[float]) -> bool:
    """Whether a line is one that the kernel prints as it starts."""
    begun_s = then(age_s, lambda age: then(uptime_s, lambda uptime: uptime - age))
    return "Linux version" in line or (isinstance(begun_s, float) and begun_s < START_S)


def read_events(text: str, uptime_s: Maybe[float], now_s: Maybe[float]) -> tuple[KernelEvent, ...]:
    """Events in the order of the log. Ages need the node's uptime or wall clock, by the prefix."""
    found: list[KernelEvent] = []
    address = ""
    for line in text.splitlines():
        # A GPU that fell off the bus may log no number at all, but its address two lines before
        # the words (NVSentinel #155).
        if match := re.search(r"NVRM: The NVIDIA GPU ([0-9A-Fa-f:.]+)", line):
            address = match[1].lower()
        if classified := _classify(line, address):
            kind, subject, xid = classified
            plain = line[_prefix(line).end() :].strip()[:300]
            age_s = _age(line, uptime_s, now_s)
            found.append(KernelEvent(kind, plain, age_s, subject, xid))
    return tuple(found)


def _classify(line: str, address: str) -> tuple[str, str, int | None] | None:
    """Kind, subject and Xid of a line that matters; `address` is that of a GPU named before."""
    if match := _XID.search(line):
        return "xid", match[1].lower(), int(match[2])
    if match := _SXID.search(line):
        fatal = "fatal" in line.lower() and "non-fatal" not in line.lower()
        return "sxid-fatal" if fatal else "sxid", match[1], int(match[2])
    for kind, pattern, group in _KINDS:
        if match := pattern.search(line):
            subject = match[group].lower() if group else ""
            return kind, address if kind == "fell-off-bus" else subject, None
    return None


_PREFIX = re.compile(
    r"^(?:\w+\s*:\w+\s*: )?(?:\d+,\d+,(?P<us>\d+),[^;]*;|<\d+>)?\s*"
    r"(?:\[\s*(?P<s>\d+\.\d+)\]\s?"
    r"|\[(?P<ctime>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s?"
    r"|(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:[+-]\d\d:?\d\d|Z)?)\s"
    r"|(?P<syslog>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\s\S+\s|(?P<mono>\d{1,9}\.\d{6})\s)?"
)


def _prefix(line: str) -> re.Match[str]:
    """What comes before the message; the pattern matches the empty text, too."""
    match = _PREFIX.match(line)
    assert match is not None
    return match


def _age(line: str, uptime_s: Maybe[float], now_s: Maybe[float]) -> Maybe[float]:
    """Seconds since a line was logged, by its prefix and the node's clocks."""
    match = _prefix(line)
    since_boot = match["s"] or match["mono"] or (match["us"] and str(int(match["us"][:18]) / 1e6))
    if since_boot:
        return uptime_s if isinstance(uptime_s, Unknown) else uptime_s - float(since_boot)
    if isinstance(now_s, Unknown):
        return now_s
    try:
        if match["ctime"]:
            # dmesg -T prints local time without saying which; good to some hours.
            return now_s - _stamp(match["ctime"], "%a %b %d %H:%M:%S %Y")
        if match["iso"]:
            text = match["iso"].replace(",", ".").replace("Z", "+00:00").replace(" ", "T")
            moment = datetime.datetime.fromisoformat(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text))
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=datetime.timezone.utc)
            return now_s - moment.timestamp()
        if match["syslog"]:
            # syslog names no year: the newest in which the line is not from the future by a day.
            year = time.gmtime(now_s).tm_year
            dates = (f"{one} {match['syslog']}" for one in (year, year - 1))
            stamps = (_stamp(date, "%Y %b %d %H:%M:%S") for date in dates)
            fits = (now_s - stamp for stamp in stamps if stamp < now_s + 86400)
            return next(fits, Unknown("no year fits"))
    except (ValueError, OverflowError):
        return Unknown(f"cannot read the time of {line[:40]!r}")
    return Unknown("the line has no time")


def _stamp(text: str, form: str) -> int:
    return calendar.timegm(time.strptime(text, form))
