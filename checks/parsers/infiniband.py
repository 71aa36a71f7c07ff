"""InfiniBand and RoCE: sysfs as `path TAB value` lines.

`ibdev2netdev` is not used: its (Up)/(Down) is the IP side, and all eight healthy ports of a pure
InfiniBand host print (Down) (imbue-ai/cluster-health #4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from checks.facts import NOT_ASKED, Fabric, Gid, IbPort, Maybe, Section, Unknown, then
from checks.parsers.section import text_of, unreadable

ERROR_COUNTERS = (
    "link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors",
    "excessive_buffer_overrun_errors", "local_link_integrity_errors",
    "port_rcv_constraint_errors", "port_xmit_constraint_errors", "out_of_sequence",
    "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_adp_retrans_to",
    "req_remote_access_errors"
)  # fmt: skip
"""Counters whose growth matters; their values do not (a healthy capture has 14)."""

_LINE = re.compile(r"^(?:/sys/class/infiniband/)?([\w.-]+)/(\S+)(?:\t| {2,})(.*)$")
_OF_PORT = re.compile(r"ports/(\d{1,3})/(.+)")
MOST_PORTS = 2048  # of a node; 256 virtual functions of each of eight cards
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\b(?:\s*(Gb|Mb)/sec)?")


def parse_fabric(first: Section | None, again: Section | None = None) -> Maybe[Fabric]:
    """Ports of a node from one or two reads of sysfs; growth comes from the second."""
    if first is not None and first.state == "missing":
        return Fabric()
    text, later = text_of(first), text_of(again)
    if isinstance(text, Unknown):
        return text
    if (most := sum(map(len, map(_ports, _tree(text).values())))) > MOST_PORTS:
        return Unknown(f"{most} ports of cards, at most {MOST_PORTS} are read")
    ports = parse_sysfs(text, later)
    marked = re.findall(r"^/sys/class/infiniband/([\w.-]+)/role\tSW_MNG$", text, re.MULTILINE)
    bridges = tuple(marked) or _bridges(ports)
    count = re.search(r"^#devices\t(\d{1,4})$", text, re.MULTILINE)
    if count is None:
        return unreadable(text)
    if (seen := len({port.device for port in ports})) != int(count[1]):
        return Unknown(f"{count[1]} cards, and {seen} of them with a port that can be read")
    loaded = re.search(r"^#peermem\t(yes|no)$", text, re.MULTILINE)
    peermem = loaded[1] == "yes" if loaded else Unknown("/proc/modules cannot be read")
    carrying = tuple(port for port in ports if port.device not in bridges)
    return Fabric(carrying, peermem, then(later, _growth_s), bridges)


def _bridges(ports: Sequence[IbPort]) -> tuple[str, ...]:
    """Cards that manage NVSwitches (HGX B200, B300), where only root may read that they do: one
    port of their board is the manager of its own subnet, and the others are active without an
    address, which no manager of a network would leave them."""
    found: list[str] = []
    band = [one for one in ports if one.link_layer == "InfiniBand"]
    for board in dict.fromkeys(one.board_id for one in band if isinstance(one.board_id, str)):
        mine = [one for one in band if one.board_id == board]
        heads = [one for one in mine if one.lid == one.sm_lid and one.lid not in (0, 65535)]
        others = [one for one in mine if one not in heads]
        if len(heads) == 1 and others and len(mine) < len(band):
            address = heads[0].lid
            if all((one.state, one.lid, one.sm_lid) == ("ACTIVE", 0, address) for one in others):
                found += dict.fromkeys(one.device for one in mine)
    return tuple(found)


def _growth_s(again: str) -> Maybe[float]:
    match = re.search(r"^#seconds\t(\d+(?:\.\d+)?)$", again, re.MULTILINE)
    return Unknown("no time between the reads") if match is None else float(match[1])


def parse_sysfs(text: str, later: Maybe[str] = NOT_ASKED) -> tuple[IbPort, ...]:
    """`/sys/class/infiniband/mlx5_0/ports/1/state<TAB>4: ACTIVE` lines, by device and port.

    `later` is a second read of the counters: what grew in between.
    """
    after = then(later, lambda again: {name: _ports(card) for name, card in _tree(again).items()})
    ports = [
        _port(device, card, number, files, after)
        for device, card in _tree(text).items()
        for number, files in _ports(card).items()
    ]
    return tuple(sorted(ports, key=lambda port: (_natural(port.device), port.port)))


def _ports(card: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """The files of each port of a card, by their path below it."""
    found: dict[int, dict[str, str]] = {}
    for match in filter(None, map(_OF_PORT.match, card)):
        found.setdefault(int(match[1]), {})[match[2]] = card[match[0]]
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    return [
        (int(part) if part.isdecimal() and len(part) < 10 else -1, part)
        for part in re.split(r"(\d+)", name)
    ]


def _tree(text: str) -> dict[str, dict[str, str]]:
    """Contents by device and path of file."""
    tree: dict[str, dict[str, str]] = {}
    for match in filter(None, map(_LINE.match, text.splitlines())):
        tree.setdefault(match[1], {})[match[2]] = match[3].strip()
    return tree


def _port(
    device: str,
    card: Mapping[str, str],
    number: int,
    files: Mapping[str, str],
    after: Maybe[Mapping[str, Mapping[int, Mapping[str, str]]]],
) -> IbPort:
    counters = _counters(files)

    def get(name: str) -> Maybe[str]:
        return files.get(name) or Unknown(f"no {name} in sysfs")

    def about(name: str) -> Maybe[str]:
        return card.get(name) or Unknown(f"no {name} in sysfs", is_absence=True)

    def growth(later: Mapping[str, Mapping[int, Mapping[str, str]]]) -> Maybe[Mapping[str, int]]:
        return _growth(counters, _counters(later.get(device, {}).get(number, {})))

    return IbPort(
        device=device,
        port=number,
        state=then(get("state"), _word),
        phys_state=then(get("phys_state"), _word),
        rate_gbps=parse_rate(files.get("rate", "")),
        link_layer=get("link_layer"),
        netdev=card.get("netdev") or Unknown("no network interface"),
        lid=parse_number(files.get("lid", "")),
        sm_lid=parse_number(files.get("sm_lid", "")),
        counters=counters,
        growth=then(after, growth),
        firmware=about("fw_ver"),
        guid=about("node_guid"),
        board_id=about("board_id"),
        model=about("hca_type"),
        gids=_gids(files),
        numa_node=parse_number(card.get("numa_node", "")),
    )


def _below(files: Mapping[str, str], folder: str) -> dict[str, str]:
    """The files of a folder by their path in it."""
    return {key.removeprefix(folder): v for key, v in files.items() if key.startswith(folder)}


def _counters(files: Mapping[str, str]) -> dict[str, int]:
    texts = _below(files, "counters/") | _below(files, "hw_counters/")
    values = {name: parse_number(text) for name, text in texts.items()}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _growth(before: Mapping[str, int], now: Mapping[str, int]) -> Maybe[Mapping[str, int]]:
    counted = [name for name in ERROR_COUNTERS if name in before]
    if lost := [name for name in counted if name not in now]:
        return Unknown(f"{lost[0]} was gone at the second read")
    # A counter that went down was reset between the reads: nothing is known about it.
    return {name: now[name] - before[name] for name in counted if now[name] >= before[name]}


def _gids(files: Mapping[str, str]) -> tuple[Gid, ...]:
    found = []
    for index, gid in _below(files, "gids/").items():
        if re.fullmatch(r"\d{1,5}", index) and gid.strip("0:"):
            kind = files.get(f"gid_attrs/types/{index}") or Unknown("no type in sysfs")
            netdev = files.get(f"gid_attrs/ndevs/{index}") or Unknown("no interface")
            found.append(Gid(int(index), gid, kind, netdev))
    return tuple(sorted(found, key=lambda one: one.index))


def parse_number(text: str) -> Maybe[int]:
    """`48`, `0x30`, `0x30 (…)`."""
    word = text.strip().split(" ")[0][:20]
    try:
        return int(word, 16 if word.lower().startswith("0x") else 10)
    except ValueError:
        return Unknown(f"cannot read {text[:40]!r}" if word else "empty")


def parse_rate(text: str) -> Maybe[float]:
    """Gb/s of `400 Gb/sec (4X NDR)`."""
    match = _RATE.match(text.strip())
    if match is None:
        return Unknown(f"cannot read {text[:40]!r}" if text.strip() else "empty")
    return float(match[1][:12]) / (1000 if match[2] == "Mb" else 1)


def _word(text: str) -> Maybe[str]:
    """`ACTIVE` of `4: ACTIVE`."""
    word = re.sub(r"^\d+:\s*", "", text)
    return "ACTIVE" if word == "ACTIVE_DEFER" else word or Unknown("empty")
