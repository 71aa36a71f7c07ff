"""Limits, mounts, network, processes, distribution of a node: lines of the census to facts."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any

from checks.facts import (
    NOT_ASKED,
    Blocked,
    Clock,
    Disk,
    FileSeen,
    GitState,
    Interface,
    Maybe,
    Mount,
    Network,
    ProcessTable,
    Section,
    ShellLimits,
    System,
    Unknown,
)
from checks.parsers.chrony import parse_sources, parse_tracking
from checks.parsers.infiniband import parse_number
from checks.parsers.ntp import best_exchange, parse_adjtimex, parse_peers, parse_timedatectl
from checks.parsers.nvidia_smi import parse_quantity
from checks.parsers.section import Sections, rows_of, text_of, unreadable


def parse_clock(sections: Sections, who: Mapping[str, Any], samples: Any = None) -> Maybe[Clock]:
    """All that the census knows about time; a part that was not to be had is Unknown.

    `samples` are the head's round trips: [sent, the node's time, received] in seconds.
    """
    if "began" not in sections and "adjtimex" not in sections:
        return NOT_ASKED
    now_s, boot_s = _seconds(who.get("time_s")), _seconds(who.get("boottime_s"))
    sources = parse_sources(sections.get("chrony_sources"))
    if isinstance(sources, Unknown) and "ntpq" in sections:
        sources = parse_peers(sections["ntpq"])
    return Clock(
        time_s=now_s,
        boottime_s=boot_s,
        moved_s=_moved(sections.get("began"), now_s, boot_s),
        kernel_synced=parse_adjtimex(sections.get("adjtimex")),
        ntp_synchronized=parse_timedatectl(sections.get("timedatectl")),
        tracking=parse_tracking(sections.get("chrony_tracking")),
        sources=sources,
        daemons=_daemons(sections.get("processes")),
        clocksource=_clocksource(sections.get("clocksource")),
        log_ahead_s=_log_ahead(sections.get("log_ahead")),
        exchange=NOT_ASKED if samples is None else best_exchange(_triples(samples)),
    )


def _clocksource(section: Section | None) -> Maybe[str]:
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    word = text.strip()
    return word if re.fullmatch(r"[a-z][\w-]*", word) else unreadable(text)


def _log_ahead(section: Section | None) -> Maybe[float]:
    """Seconds by which the newest file of /var/log is ahead; `none` without files."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    if text.strip() == "none":
        return Unknown("there is no file in /var/log", is_absence=True)
    ahead_s = parse_quantity(text)
    return unreadable(text) if isinstance(ahead_s, Unknown) else ahead_s


def _triples(samples: Any) -> list[tuple[float, float, float]]:
    rows = samples if isinstance(samples, (list, tuple)) else ()
    return [
        (row[0], row[1], row[2])
        for row in rows
        if isinstance(row, (list, tuple))
        and len(row) == 3
        and all(isinstance(value, float) for value in row)
    ]


def _seconds(value: Any) -> Maybe[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12:
        return float(value)
    return Unknown("the node did not say its time")


def _moved(began: Section | None, now_s: Maybe[float], boot_s: Maybe[float]) -> Maybe[float]:
    """How far the wall clock went against boot time while the payload ran."""
    text = text_of(began)
    if isinstance(text, Unknown):
        return text
    words = [parse_quantity(word) for word in text.split()]
    if len(words) != 2 or isinstance(now_s, Unknown) or isinstance(boot_s, Unknown):
        return Unknown("the time at the start was not said")
    first, second = words
    if isinstance(first, Unknown) or isinstance(second, Unknown):
        return Unknown("the time at the start cannot be read")
    return (now_s - boot_s) - (first - second)


def _daemons(section: Section | None) -> Maybe[tuple[str, ...]]:
    table = parse_processes(section)
    if section is None or isinstance(table, Unknown):
        return table if isinstance(table, Unknown) else NOT_ASKED
    if table.hidden:
        return Unknown(table.hidden)
    names = [cells[1] for cells in rows_of(section.out) if cells[0] == "daemon" and len(cells) > 1]
    return tuple(dict.fromkeys(names))


def parse_processes(section: Section | None) -> Maybe[ProcessTable]:
    """Lines `zombie NAME`, `blocked PID NAME SINCE WHERE`, `count N`, `daemon NAME PID`…"""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    zombies, blocked, count, hidden = [], [], 0, ""
    for cells in rows_of(text):
        number = parse_number(cells[1]) if len(cells) > 1 else Unknown("no number")
        if cells[0] == "count" and isinstance(number, int):
            count = number
        elif cells[0] == "zombie" and len(cells) == 2:
            zombies.append(cells[1])
        elif cells[0] == "hidden" and len(cells) == 2:
            hidden = cells[1]
        elif cells[0] == "blocked" and len(cells) == 5 and isinstance(number, int):
            blocked.append(Blocked(number, cells[2], cells[4], parse_quantity(cells[3])))
        elif cells[0] != "daemon":
            return unreadable("\t".join(cells))
    if not count:
        return Unknown("no process was seen")
    return ProcessTable(tuple(zombies), tuple(blocked), count, hidden)


def parse_limits(section: Section | None) -> Maybe[ShellLimits]:
    """`nofile=20000` lines; -1 and what is above 2**62 is unlimited."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    found: dict[str, int | None] = {}
    for name, value in re.findall(r"^(\w+)=(-?\d{1,20})$", text, re.MULTILINE):
        number = int(value)
        found[name] = None if number < 0 or number >= 1 << 62 else number
    if not {"nofile", "nproc", "memlock"} <= found.keys():
        return Unknown("the limits were not said")
    shm, shm_free = found.get("shm"), found.get("shm_free")
    return ShellLimits(
        found["nofile"],
        found["nproc"],
        found["memlock"],
        Unknown("no /dev/shm") if shm is None else shm,
        Unknown("no /dev/shm") if shm_free is None else shm_free,
    )


def json_lines(section: Section | None) -> Maybe[list[dict[str, Any]]]:
    """The JSON objects of a section that has one in each line, each with a `path`."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    found = []
    for line in filter(str.strip, text.splitlines()):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            return unreadable(line)
        if not isinstance(data, dict) or not isinstance(data.get("path"), str):
            return unreadable(line)
        found.append(data)
    return found


def parse_mounts(section: Section | None) -> Maybe[tuple[Mount, ...]]:
    """One JSON line for each file system; what did not answer has an `error`."""
    rows = json_lines(section)
    if isinstance(rows, Unknown):
        return rows
    found = []
    for data in rows:
        found.append(
            Mount(
                data["path"],
                str(data.get("kind")),
                str(data.get("source")),
                data.get("read_only") is True,
                Unknown(str(data["error"])) if "error" in data else read_disk(data),
            )
        )
    return tuple(found)


def read_disk(data: Mapping[str, Any]) -> Maybe[Disk]:
    """statfs as a child of the census prints it."""
    try:
        return Disk(
            asked=str(data["asked"]),
            path=str(data["path"]),
            free_bytes=int(data["free"]),
            total_bytes=int(data["total"]),
            inodes_free=int(data["inodes_free"]),
            inodes_total=int(data["inodes"]),
            writable=bool(data["writable"]),
            is_folder=bool(data["is_folder"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return Unknown(f"cannot read {str(data)[:80]!r}")


def parse_network(sections: Sections) -> Maybe[Network]:
    """Interfaces of sysfs with addresses of `ip -o addr`, and names as the node resolves them."""
    text = text_of(sections.get("network"))
    if isinstance(text, Unknown):
        return text
    addresses: dict[str, list[str]] = {}
    listed = text_of(sections.get("addresses"))
    if isinstance(listed, str):
        for name, address in re.findall(r"^\d+: (\S+)\s+inet6? (\S+)", listed, re.MULTILINE):
            addresses.setdefault(name.split("@")[0], []).append(address)
    interfaces = []
    for cells in rows_of(text):
        if len(cells) == 5:
            speed = parse_number(cells[3])
            interfaces.append(
                Interface(
                    name=cells[0],
                    up=cells[1] in ("up", "unknown"),
                    mtu=parse_number(cells[2]),
                    # -1 is what a driver says that does not know.
                    speed_mbps=speed
                    if isinstance(speed, int) and speed > 0
                    else Unknown("not said", is_absence=True),
                    addresses=tuple(addresses.get(cells[0], ())),
                    is_hardware=cells[4] == "1",
                )
            )
    if not interfaces:
        return unreadable(text)
    names = {
        key.split(":", 1)[1]: _addresses(section)
        for key, section in sections.items()
        if key.startswith("name:")
    }
    reach = text_of(sections.get("reach"))
    if isinstance(reach, str):
        reach = reach.strip() or Unknown("empty")
    unlisted = listed if isinstance(listed, Unknown) else None
    if unlisted is None and not addresses:  # even a machine without a network has lo
        unlisted = unreadable(text if isinstance(listed, Unknown) else listed)
    return Network(tuple(interfaces), names, reach, unlisted)


def _addresses(section: Section) -> Maybe[tuple[str, ...]]:
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    if text.startswith("error\t"):
        return Unknown(text.partition("\t")[2].strip(), is_absence=True)  # it has none
    found = tuple(text.split())
    return found if all(map(_is_address, found)) else unreadable(text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def parse_system(section: Section | None) -> Maybe[System]:
    """`distribution`, `governor`, `environ` lines."""
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    rows = [cells for cells in rows_of(text) if len(cells) == 2]
    if not any(key == "distribution" for key, _ in rows):
        return unreadable(text)
    governors = tuple(value for key, value in rows if key == "governor")
    names = [value for key, value in rows if key == "distribution" and value]
    environ = dict(value.split("=", 1) for key, value in rows if key == "environ" and "=" in value)
    return System(
        names[0] if names else Unknown("no /etc/os-release"),
        governors or Unknown("the kernel shows no governor", is_absence=True),
        environ,
    )


def parse_git(sections: Sections) -> Maybe[GitState]:
    """`git rev-parse HEAD` and `git status --porcelain --branch`."""
    head = text_of(sections.get("git_head"))
    if isinstance(head, Unknown):
        return head
    commit = head.strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return Unknown(f"no commit: {commit[:80]!r}")
    status = text_of(sections.get("git_status"))
    if isinstance(status, Unknown):
        return Unknown(f"git status: {status.reason}")
    branch, *changed = status.splitlines()
    if not branch.startswith("## "):
        return Unknown(f"git status: {unreadable(branch).reason}")
    return GitState(commit, tuple(line[3:] for line in changed if len(line) > 3))


def parse_files(section: Section | None) -> Maybe[Mapping[str, FileSeen]]:
    """One JSON line for each file. Where one of them hangs, nothing is known of any."""
    rows = json_lines(section)
    if isinstance(rows, Unknown):
        return rows
    found = {}
    for data in rows:
        size, files = data.get("size"), data.get("files")
        if not isinstance(size, int) or not isinstance(files, int):
            return unreadable(str(data))
        found[data["path"]] = FileSeen(
            data.get("exists") is True,
            data.get("is_folder") is True,
            size,
            files,
            data.get("more") is True,
        )
    return found


def parse_token(section: Section | None) -> Maybe[str]:
    """The first bytes of the token file."""
    text = text_of(section)
    return text if isinstance(text, Unknown) else text.strip() or Unknown("the file is empty")


def parse_wandb(section: Section | None) -> Maybe[bool]:
    text = text_of(section)
    if isinstance(text, Unknown):
        return text
    word = text.strip()
    return word == "yes" if word in ("yes", "no") else Unknown(f"cannot read {word[:40]!r}")
