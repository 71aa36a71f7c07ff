"""InfiniBand and RoCE: sysfs as `path TAB value` lines.

`ibdev2netdev` is not used: its (Up)/(Down) is the IP side, and all eight healthy ports of a pure
InfiniBand host print (Down) (imbue-ai/cluster-health #4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from checks.facts import NOT_ASKED, Fabric, Gid, IbPort, Maybe, Section, Unknown
from checks.parsers.section import text_of

ERROR_COUNTERS = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans_to",
    "req_remote_access_errors",
)
"""Counters whose growth says something; their values say nothing (a healthy capture holds 14)."""

_LINE = re.compile(r"^(?:/sys/class/infiniband/)?([\w.-]+)/(\S+)(?:\t| {2,})(.*)$")
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\b(?:\s*(Gb|Mb)/sec)?")
_STATES = {"initializing": "INIT", "initialize": "INIT", "active_defer": "ACTIVE"}
_PHYSICAL = {
    "link_up": "LinkUp",
    "linkup": "LinkUp",
    "disabled": "Disabled",
    "polling": "Polling",
    "nop": "NOP",
    "sleep": "Sleep",
    "linkerrorrecovery": "LinkErrorRecovery",
}


def parse_fabric(first: Section | None, again: Section | None = None) -> Maybe[Fabric]:
    """Ports of a node from one or two reads of sysfs; growth comes from the second."""
    if first is not None and first.state == "missing":
        return Fabric()
    text = text_of(first)
    if isinstance(text, Unknown):
        return text
    later = text_of(again)
    ports = parse_sysfs(text, later)
    said = re.search(r"^#devices\t(\d{1,4})$", text, re.MULTILINE)
    if said is None:
        return Unknown(f"cannot read {text.strip()[:80]!r}")
    if (seen := len({port.device for port in ports})) != int(said[1]):
        return Unknown(f"{said[1]} cards, and {seen} of them with a port that can be read")
    return Fabric(ports, _peermem(text), _growth_s(later))


def _peermem(text: str) -> Maybe[bool]:
    match = re.search(r"^#peermem\t(yes|no)$", text, re.MULTILINE)
    return Unknown("/proc/modules cannot be read") if match is None else match[1] == "yes"


def _growth_s(again: Maybe[str]) -> Maybe[float]:
    if isinstance(again, Unknown):
        return again
    match = re.search(r"^#seconds\t([\d.]+)$", again, re.MULTILINE)
    try:
        return Unknown("no time between the reads") if match is None else float(match[1])
    except ValueError:
        return Unknown("no time between the reads")


def parse_sysfs(text: str, later: Maybe[str] = NOT_ASKED) -> tuple[IbPort, ...]:
    """`/sys/class/infiniband/mlx5_0/ports/1/state<TAB>4: ACTIVE` lines, by device and port.

    `later` is a second read of the counters: what grew in between.
    """
    tree = _tree(text)
    after = later if isinstance(later, Unknown) else _tree(later)
    ports = []
    for device, files in tree.items():
        numbers = {key.split("/")[1] for key in files if key.startswith("ports/")}
        for number in sorted((one for one in numbers if one.isdecimal()), key=int):
            if len(number) < 4:
                ports.append(_port(device, files, int(number), after))
    return tuple(sorted(ports, key=lambda port: (_natural(port.device), port.port)))


def _natural(name: str) -> list[tuple[int, str]]:
    return [
        (int(part) if part.isdecimal() and len(part) < 10 else -1, part)
        for part in re.split(r"(\d+)", name)
    ]


def _tree(text: str) -> dict[str, dict[str, str]]:
    tree: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            tree.setdefault(match[1], {})[match[2]] = match[3].strip()
    return tree


def _port(
    device: str,
    files: Mapping[str, str],
    number: int,
    after: Maybe[Mapping[str, Mapping[str, str]]],
) -> IbPort:
    top = f"ports/{number}/"

    def get(name: str) -> Maybe[str]:
        return files.get(top + name) or Unknown(f"no {name} in sysfs")

    def whole(name: str) -> Maybe[int]:
        return parse_number(files.get(top + name, ""))

    def about(name: str) -> Maybe[str]:
        return files.get(name) or Unknown(f"no {name} in sysfs", is_absence=True)

    counters = _counters(files, top)
    return IbPort(
        device=device,
        port=number,
        state=_state(get("state")),
        phys_state=_physical(get("phys_state")),
        rate_gbps=parse_rate(files.get(top + "rate", "")),
        link_layer=get("link_layer"),
        netdev=files.get("netdev") or Unknown("no network interface"),
        lid=whole("lid"),
        sm_lid=whole("sm_lid"),
        counters=counters,
        growth=_growth(counters, device, top, after),
        firmware=about("fw_ver"),
        guid=about("node_guid"),
        board_id=about("board_id"),
        model=about("hca_type"),
        gids=_gids(files, top),
        numa_node=parse_number(files.get("numa_node", "")),
    )


def _counters(files: Mapping[str, str], top: str) -> dict[str, int]:
    found = {}
    for folder in ("counters/", "hw_counters/"):
        for key, text in files.items():
            if key.startswith(top + folder):
                value = parse_number(text)
                if isinstance(value, int):
                    found[key[len(top + folder) :]] = value
    return found


def _growth(
    before: Mapping[str, int], device: str, top: str, after: Maybe[Mapping[str, Mapping[str, str]]]
) -> Maybe[Mapping[str, int]]:
    if isinstance(after, Unknown):
        return after
    now = _counters(after.get(device, {}), top)
    lost = [name for name in ERROR_COUNTERS if name in before and name not in now]
    if lost:
        return Unknown(f"{lost[0]} was gone at the second look")
    # A counter that went down was reset between the looks: nothing is known about it.
    return {
        name: now[name] - before[name]
        for name in ERROR_COUNTERS
        if name in now and name in before and now[name] >= before[name]
    }


def _gids(files: Mapping[str, str], top: str) -> tuple[Gid, ...]:
    found = []
    for key, gid in files.items():
        number = key[len(top + "gids/") :] if key.startswith(top + "gids/") else ""
        if number.isdecimal() and len(number) < 6 and gid.strip("0:"):
            kind = files.get(f"{top}gid_attrs/types/{number}")
            netdev = files.get(f"{top}gid_attrs/ndevs/{number}")
            found.append(
                Gid(
                    int(number),
                    gid,
                    kind or Unknown("no type in sysfs"),
                    netdev or Unknown("no interface"),
                )
            )
    return tuple(sorted(found, key=lambda one: one.index))


def parse_number(text: str) -> Maybe[int]:
    """`48`, `0x30`, `0x30 (…)`."""
    word = text.strip().split(" ")[0][:20] if text.strip() else ""
    try:
        return int(word, 16 if word.lower().startswith("0x") else 10)
    except ValueError:
        return Unknown(f"cannot read {text[:40]!r}" if text.strip() else "empty")


def parse_rate(text: str) -> Maybe[float]:
    """Gb/s of `400 Gb/sec (4X NDR)` or the bare `400` of ibstat."""
    match = _RATE.match(text.strip())
    if match is None:
        return Unknown(f"cannot read {text[:40]!r}" if text.strip() else "empty")
    return float(match[1][:12]) / (1000 if match[2] == "Mb" else 1)


def _state(text: Maybe[str]) -> Maybe[str]:
    """`4: ACTIVE`, `Active`, `PORT_ACTIVE (4)`, `ACTIVE` are one."""
    if isinstance(text, Unknown):
        return text
    word = re.sub(r"^\d+:\s*|^PORT_|\s*\(\d+\)$", "", text.strip())
    return _STATES.get(word.lower(), word.upper()) if word else Unknown("empty")


def _physical(text: Maybe[str]) -> Maybe[str]:
    if isinstance(text, Unknown):
        return text
    word = re.sub(r"^\d+:\s*|\s*\(\d+\)$", "", text.strip())
    return _PHYSICAL.get(word.lower().replace(" ", ""), word) if word else Unknown("empty")


def active(ports: Iterable[IbPort], link_layer: str | None = None) -> list[IbPort]:
    """Ports that carry data, of one link layer if named."""
    return [one for one in ports if one.is_active and link_layer in (None, one.link_layer)]
