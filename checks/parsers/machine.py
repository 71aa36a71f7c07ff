"""Limits, mounts, network, processes, distribution of a node: lines of the census to facts."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from checks.facts import (
    Blocked,
    Disk,
    FileSeen,
    GitState,
    Interface,
    Maybe,
    Mount,
    Network,
    ProcessTable,
    ShellLimits,
    System,
    Unknown,
    then,
)
from checks.parsers.infiniband import parse_number
from checks.parsers.nvidia_smi import parse_quantity
from checks.parsers.section import Sections, parsed, rows_of, sections_of, text_of, unreadable

T = TypeVar("T")


def read_processes(text: str) -> Maybe[ProcessTable]:
    """Lines `zombie NAME`, `blocked PID NAME SINCE WHERE`, `count N`, `daemon NAME PID`…"""
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


def read_limits(text: str) -> Maybe[ShellLimits]:
    """`nofile=20000` lines; -1 and what is above 2**62 is unlimited."""
    numbers = {key: int(n) for key, n in re.findall(r"^(\w+)=(-?\d{1,20})$", text, re.MULTILINE)}
    found = {key: number if 0 <= number < 1 << 62 else None for key, number in numbers.items()}
    if not {"nofile", "nproc", "memlock"} <= found.keys():
        return Unknown("the limits are incomplete")
    shm = found.get("shm")
    shm_bytes = Unknown("no /dev/shm") if shm is None else shm
    return ShellLimits(found["nofile"], found["memlock"], shm_bytes)


def _json_lines(text: str, read: Callable[[str, dict[str, Any]], T]) -> Maybe[tuple[T, ...]]:
    """What `read(path, object)` makes of the JSON object in each line."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        try:
            data = json.loads(line)
            if not isinstance(data["path"], str):
                raise TypeError("no path")
            found.append(read(data["path"], data))
        except (ValueError, RecursionError, TypeError, KeyError):
            return unreadable(line)
    return tuple(found)


def read_mounts(text: str) -> Maybe[tuple[Mount, ...]]:
    """One JSON line for each file system; what did not answer has an `error`."""

    def mount(path: str, data: dict[str, Any]) -> Mount:
        disk = Unknown(str(data["error"])) if "error" in data else read_disk(data)
        kind, source = str(data.get("kind")), str(data.get("source"))
        return Mount(path, kind, source, data.get("read_only") is True, disk)

    return _json_lines(text, mount)


def read_disk(data: Mapping[str, Any]) -> Maybe[Disk]:
    """statfs as a child of the census prints it."""
    try:
        asked, path = str(data["asked"]), str(data["path"])
        names = ("free", "total", "inodes_free", "inodes")
        free, total, inodes_free, inodes = (int(data[name]) for name in names)
        writable, is_folder = bool(data["writable"]), bool(data["is_folder"])
        return Disk(asked, path, free, total, inodes_free, inodes, writable, is_folder)
    except (KeyError, TypeError, ValueError, OverflowError):
        return unreadable(str(data))


def parse_network(sections: Sections) -> Maybe[Network]:
    """Interfaces of sysfs with addresses of `ip -o addr`, and names as the node resolves them."""
    text, listed = text_of(sections.get("network")), text_of(sections.get("addresses"))
    if isinstance(text, Unknown):
        return text
    addresses: dict[str, list[str]] = {}
    if isinstance(listed, str):
        for name, address in re.findall(r"^\d+: (\S+)\s+inet6? (\S+)", listed, re.MULTILINE):
            addresses.setdefault(name.split("@")[0], []).append(address)
    rows = rows_of(text, 5)
    if not rows:
        return unreadable(text)
    interfaces = tuple(_interface(cells, addresses.get(cells[0], ())) for cells in rows)
    names = {key: parsed(one, _addresses) for key, one in sections_of(sections, "name:").items()}
    reach = parsed(sections.get("reach"), str.strip)
    unlisted = listed if isinstance(listed, Unknown) else None
    if isinstance(listed, str) and not addresses:  # even a machine without a network has lo
        unlisted = unreadable(listed)
    return Network(interfaces, names, reach, unlisted)


def _interface(cells: list[str], addresses: Iterable[str]) -> Interface:
    name, state, mtu, speed_text, is_hardware = cells
    speed = parse_number(speed_text)
    if isinstance(speed, Unknown) or speed <= 0:  # -1: the driver does not know
        speed = Unknown("not reported", is_absence=True)
    up = state in ("up", "unknown")
    return Interface(name, up, parse_number(mtu), speed, tuple(addresses), is_hardware == "1")


def _addresses(text: str) -> Maybe[tuple[str, ...]]:
    if text.startswith("error\t"):
        return Unknown(text.partition("\t")[2].strip(), is_absence=True)  # it has none
    found = tuple(text.split())
    try:
        for one in found:
            ipaddress.ip_address(one.partition("%")[0])
    except ValueError:
        return unreadable(text)
    return found


def read_system(text: str) -> Maybe[System]:
    """`distribution`, `governor`, `environ` lines."""
    rows = rows_of(text, 2)
    names = [value for key, value in rows if key == "distribution"]
    governors = tuple(value for key, value in rows if key == "governor")
    environ = dict(value.split("=", 1) for key, value in rows if key == "environ" and "=" in value)
    if not names:
        return unreadable(text)
    return System(
        next(filter(None, names), Unknown("no /etc/os-release")),
        governors or Unknown("the kernel shows no governor", is_absence=True),
        environ,
    )


def parse_git(sections: Sections) -> Maybe[GitState]:
    """`git rev-parse HEAD` and `git status --porcelain --branch`."""
    head, status = text_of(sections.get("git_head")), text_of(sections.get("git_status"))
    if isinstance(head, Unknown):
        return head
    commit = head.strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return Unknown(f"no commit: {commit[:80]!r}")
    if isinstance(status, Unknown):
        return Unknown(f"git status: {status}")
    branch, *changed = status.splitlines()
    if not branch.startswith("## "):
        return Unknown(f"git status: {unreadable(branch)}")
    return GitState(commit, tuple(line[3:] for line in changed if len(line) > 3))


def read_files(text: str) -> Maybe[Mapping[str, FileSeen]]:
    """One JSON line for each file. Where one of them hangs, nothing is known of any."""

    def seen(path: str, data: dict[str, Any]) -> tuple[str, FileSeen]:
        size, files = data["size"], data["files"]
        if not isinstance(size, int) or not isinstance(files, int):
            raise TypeError("no size")
        exists, is_folder, more = (data.get(key) is True for key in ("exists", "is_folder", "more"))
        return path, FileSeen(exists, is_folder, size, files, more)

    return then(_json_lines(text, seen), dict)


def read_wandb(text: str) -> Maybe[bool]:
    word = text.strip()
    return word == "yes" if word in ("yes", "no") else Unknown(f"cannot read {word[:40]!r}")
