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

# MIG puts a GPU instance behind the address: (PCI:0000:01:00 GPU-I:05). Old drivers leave PCI: out.
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})[^)]{0,40}\): "
    r"(\d{1,4})\b"
)
_PCI = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?"
_SXID = re.compile(r"SXid \(PCI:([0-9A-Fa-f:.]{4,20})\): (\d{1,6})\b", re.IGNORECASE)
_ADDRESS = re.compile(r"NVRM: The NVIDIA GPU ([0-9A-Fa-f:.]{4,20})")
_OWN_ADDRESS = re.compile(rf"NVRM: GPU (?:at PCI:)?({_PCI})\b")  # of the line itself
LONGEST = 2000  # characters of a line that are searched
MOST_LINES = 2000  # the newest; the payload sends no more (payload/collect/kernel_log.py)

# What all drivers of network cards say of a link, by interface or port: `eth0: NIC Link is Down`
# (bnxt_en, ice, i40e, ixgbe, igb, e1000e), `eth0: Link is down` (tg3, r8169, phylib), `ib0: Link
# down` (mlx5), `mlx5_5: Port: 1 Link DOWN` (every RDMA device), `0000:04:00.0: Port: 1, link down`
# (mlx4), `bond0: (slave eth0): link status definitely down`, `(eth0)]Link is down` (qede),
# `ens6: Device link is down.` (gve), and of systemd-networkd `ib0: Lost carrier`.
_LINK = (
    r"(?:(?<![\w.@-])([A-Za-z][\w.@-]{1,40}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)(?: NIC |: "
    r"(?:NIC |Device |Port:? ?\d{1,3},? )?)|\(slave ([\w.@-]{1,40})\): |\(([\w.-]{1,40})\)\])"
    r"[Ll]ink(?: is| status definitely)? (?:%s)\b"
    r"|(?<![\w.@-])([\w.@-]{2,40}): %s [Cc]arrier"
)

# (kind, pattern, has a subject: the first group that matched). The first that matches has the line.
_KINDS: tuple[tuple[str, re.Pattern[str], bool], ...] = tuple(
    (kind, re.compile(pattern), has_subject)
    for kind, pattern, has_subject in (
        ("fell-off-bus", r"(?:NVRM|GPU).{0,200}fallen off the bus", False),
        ("probe-failed", r"NVRM: The NVIDIA probe routine failed for \d+ device", False),
        ("init-failed", rf"NVRM: (?:GPU (?:at PCI:)?({_PCI})[:,]? )?(?:RmInitAdapter failed|rm_init_adapter failed)", True),
        ("init-failed", rf"nvidia(?:: probe of ({_PCI})| ({_PCI}): probe with driver nvidia) failed with error", True),
        ("init-failed", r"NVRM: None of the NVIDIA (?:devices|GPUs|graphics adapters) (?:was|were) initialized", False),
        ("init-failed", r"NVRM: .{0,80}(?:Cannot initialize GSP firmware RM|failed to wait for GFW.?[Bb])", False),
        ("gsp-timeout", r"NVRM: (?:(GPU\d{1,3}) |GPU at PCI:[^ ]{4,20} )?.{0,80}(?:[Hh]eartbeat timed out|GSP (?:RPC )?[Tt]imeout|waiting for RPC (?:response )?from (?:GPU\d{1,3} )?GSP|GSP-CrashCat|GPU is probably locked)", True),
        ("driver-mismatch", r"NVRM: API mismatch", False),
        ("oom", r"Out of memory: Kill(?:ed)? process (\d+)", True),
        ("oom", r"oom-kill:constraint=|oom_reaper: reaped process", False),
        ("memory", r"EDAC (\w{2,8}): \d{1,9} UE ", True),
        ("memory", r"Uncorrected hardware memory error|Memory failure: 0x[0-9a-f]{1,16}: recovery action for [^:]{1,60}: (?:Failed|Ignored)", False),
        ("memory", r"\[Hardware Error\]: event severity: (?:fatal|recoverable)", False),
        ("mce", r"(?:mce: \[Hardware Error\]|Machine check events logged|\[Hardware Error\]: Machine check)", False),
        ("pcie-fatal", r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): PCIe Bus Error: severity=Uncorrect\w{1,4} \(Fatal\)", True),
        ("pcie-fatal", r"AER: Uncorrect\w{1,4} \(Fatal\) error\b.{0,60}([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)", True),
        ("pcie-fatal", r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:DPC: containment event|pciehp: Slot\(\S{1,20}\): (?:Link Down|Card not present)|AER: can't recover)", True),
        ("pcie", r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): PCIe Bus Error: severity=Uncorrect", True),
        ("nic-fatal", r"(?:mlx[45]_core|bnxt_en|ice|i40e|ena|efa|irdma) ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d).{0,120}(?:health compromised|[Ff]atal error|[Ff]irmware (?:fatal|internal error|heartbeat)|FW reported unresponsive|health recovery flow aborted|[Ee]rror detected, initiating reset|Keep alive watchdog timeout|[Dd]evice is in reset)", True),
        ("nic", r"NETDEV WATCHDOG: ([\w.-]{1,40}) ", True),
        ("nic", r"(?:mlx[45]_core|bnxt_en|ice|i40e|ena|efa|irdma) ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d).{0,120}(?:timeout\. Will cause a leak|Port module event\[error\]|TX driver issue|Tx hang|TX timeout|Unsupported cable|High Temperature)", True),
        ("lockup", r"(?:watchdog: )?BUG: (?:soft|hard) lockup|hard LOCKUP", False),
        ("hung-task", r"INFO: task (\S{1,60}) blocked for more than \d+ seconds", True),
        ("read-only", r"[Rr]emounting filesystem read-only|Remounting fs read-only", False),
        ("disk", r"(nvme\d{1,4})[^:]{0,40}: (?:I/O \S{1,20} .{0,60}timeout|.{0,60}(?:controller is down|Removing after probe failure))", True),
        ("disk", r"(?:blk_update_request|critical medium|I/O) error.{0,60}dev (\w{1,40})", True),
        ("nfs", r"nfs: server (\S{1,200}) not responding", True),
        ("link-lost", _LINK % ("[Dd]own|DOWN", "[Ll]ost"), True),
        ("link-back", _LINK % ("[Uu]p|UP|ACTIVE", "[Gg]ained"), True),
        ("nvlink", r"NVRM: knvlink\w{1,60}: .{0,80}[Ff]ailed|NVRM: .{0,60}NVLink.{0,60}training failed", False),
        ("peermem", r"nvidia-peermem .{0,200}ERROR detected invalid context", False),
        ("nccl-crash", r"segfault at .{1,200} in libnccl\.so", False),
        ("pcie-slow", r"([0-9A-Fa-f:.]{4,20}): [\d.]{1,12} Gb/s available PCIe bandwidth, limited by", True),
    )
)  # fmt: skip

START_S = 60.0  # of a machine's start: a log that begins there has lost nothing

INTERESTING = (
    r"NVRM|nvidia: probe of|driver nvidia failed|SXid|fallen off|Out of memory|oom-kill|oom_reaper"
    r"|ardware |Machine check|lockup|LOCKUP"
    r"|blocked for more|read-only|nvme|I/O error|medium error|not responding|arrier"
    r"|ink (?:is |status definitely )?(?:[Dd]own|DOWN|[Uu]p|UP|ACTIVE)\b|peermem|segfault"
    r"|PCIe B|PCIe bandwidth|AER: |DPC: |Slot\(|EDAC|Memory failure|WATCHDOG|health|atal error"
    r"|irmware |reported unr|Keep alive|in reset|initiating reset|a leak|module event|TX driver"
    r"|Tx hang|TX timeout|Unsupported cable|High Temp"
)
"""Lines that a node sends; the rest of the log stays there.

Each alternative begins with a literal: the search of a line takes less than half of the time that
it takes with one [Ll] at a begin.
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
    lines, first = section.out[match.end() :].splitlines(), match[2]
    is_cut = len(lines) > MOST_LINES
    if is_cut:
        lines = lines[-MOST_LINES:]
        first = lines[0]
    events = read_events("\n".join(lines), uptime_s, now_s)
    age_s = _age(first, uptime_s, now_s)
    whole = not section.truncated and not is_cut and _is_start(first, age_s, uptime_s)
    return KernelLog(events, int(match[1]), None if whole else age_s)


def _is_start(line: str, age_s: Maybe[float], uptime_s: Maybe[float]) -> bool:
    """Whether a line is one that the kernel prints as it starts."""
    begun_s = then(age_s, lambda age: then(uptime_s, lambda uptime: uptime - age))
    return "Linux version" in line or (isinstance(begun_s, float) and begun_s < START_S)


def read_events(text: str, uptime_s: Maybe[float], now_s: Maybe[float]) -> tuple[KernelEvent, ...]:
    """Events in the order of the log. Ages need the node's uptime or wall clock, by the prefix."""
    found: list[KernelEvent] = []
    address = ""
    for full in text.splitlines():
        line = full[:LONGEST]
        # A GPU that fell off the bus may log no number at all, but its address two lines before
        # the words (NVSentinel #155).
        if match := _ADDRESS.search(line):
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
    for kind, pattern, has_subject in _KINDS:
        if match := pattern.search(line):
            named = next(filter(None, match.groups()), "") if has_subject else ""
            if kind == "fell-off-bus":
                own = _OWN_ADDRESS.search(line)
                named = own[1] if own else address
            return kind, named.lower(), None
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
    match = _PREFIX.match(line[:LONGEST])
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
