"""RAS's text, which is for people: it names only communicators with a problem.

Of ranks with different counts it lists the smaller groups; the ranks of the one group that is not
listed are those that are left. NCCL 2.24 and 2.25 count all collectives together, later ones by
operation.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from checks.facts import Maybe, RasAnswer, RasComm, RasMissing, RasRank, Unknown

ALL = "collective"  # the operation where all are counted together
MOST_COMMS = 4096
MOST_RANKS = 1 << 17  # of all communicators that are shown

_VERSION = re.compile(r"^NCCL version ([\w.+-]{1,40})", re.MULTILINE)
_ROW = re.compile(
    r"^ *(?P<group>\d{1,9}) +(?P<comms>\d{1,9}) +\d{1,9} +[\d-]{1,20} +(?P<size>\d{1,9}) +\d{1,9}"
    r" +(?P<status>[\w,]{1,60}) +(?P<error>[\w,]{1,60})$"
)
_COMM = re.compile(r"^#(?P<group>\d{1,9})-\d{1,9} \((?P<hash>[0-9a-f]{1,16})\) (?P<what>\w+)$")
_COUNTS = re.compile(r"^  Communicator ranks have different (?P<what>\w{1,60}) operation counts$")
_GROUP = re.compile(
    r"^  (?P<count>\d{1,9}) ranks have (?:launched up to operation (?P<value>\d{1,20})"
    r"|not launched any operations|status (?P<status>\w{1,20}))$"
)
_RANK = re.compile(
    r"^  Rank (?P<rank>\d{1,9})(?: has (?:launched up to operation (?P<value>\d{1,20})"
    r"|(?P<none>not launched any operations)|status (?P<status>\w{1,20})))?"
    r" -- (?:GPU .{1,40} managed by process (?P<pid>\d{1,10})"
    r" on node (?P<host>[\w.:%-]{1,60})|\[.*)$"
)
_MISSING = re.compile(r"^  The (?:missing|unknown) ranks?: (?P<ranks>[\d ,-]{1,2000})")
_JOB = re.compile(
    r"^ *Nodes +Processes.*\n *\(total\).*\n *\d{1,9} +(?P<a>\d{1,9}) +(?P<b>\d{1,9})"
    r"(?: +(?P<total>\d{1,9}) +\d{1,9})?$",
    re.MULTILINE,
)
_TIMEOUTS = re.compile(r"^  Encountered (\d{1,9}) communication timeout", re.MULTILINE)


@dataclass(slots=True)
class _Shown:
    """A communicator while its lines are read."""

    size: int
    counts: dict[str, dict[int, int]] = field(default_factory=dict)  # operation: {rank: value}
    rest: dict[str, int] = field(default_factory=dict)  # operation: value of ranks not listed
    unclear: set[str] = field(default_factory=set)  # operations with two groups not listed
    status: dict[int, str] = field(default_factory=dict)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    lost: int = 0  # ranks that are missing, and not named
    error: bool = False


def parse_text(text: str) -> Maybe[RasAnswer]:
    """Never raises."""
    version = _VERSION.search(text)
    if version is None or "\nCommunicators..." not in text:
        return Unknown("this is no answer of RAS")
    if "\nWarnings\n" not in text:
        return Unknown("the answer of RAS ends early")
    sizes: dict[int, int] = {}
    others: Counter[str] = Counter()
    for row in filter(None, map(_ROW.match, text.splitlines())):
        sizes[int(row["group"])] = int(row["size"])
        others[row["error"]] += int(row["comms"])
    shown: dict[str, _Shown] = {}
    _read_lines(text.splitlines(), sizes, shown)
    if len(shown) > MOST_COMMS or sum(one.size for one in shown.values()) > MOST_RANKS:
        return Unknown("the answer of RAS has too many communicators or ranks")

    del others["OK"]
    timeouts = _TIMEOUTS.search(text)
    job = list(_JOB.finditer(text))
    processes = int(job[-1]["total"] or job[-1]["a"]) if job else 0
    comms = tuple(_made(name, one) for name, one in shown.items())
    return RasAnswer(
        version[1],
        comms,
        False,
        timeouts=int(timeouts[1]) if timeouts else 0,
        processes=processes,
        others=dict(others),
    )


def _read_lines(lines: list[str], sizes: dict[int, int], shown: dict[str, _Shown]) -> None:
    one: _Shown | None = None
    part = operation = ""
    group: tuple[int, int | None, str | None] | None = None  # count, value, status; not listed yet
    open_groups: list[tuple[int, int]] = []  # (ranks, value) of the operation, not listed

    def close() -> None:
        if one is not None and operation:
            if len(open_groups) == 1:
                one.rest[operation] = open_groups[0][1]
            elif open_groups:
                one.unclear.add(operation)  # of two or more groups, who is in which
        open_groups.clear()

    for line in lines:
        if found := _COMM.match(line):
            close()
            part, operation, group = found["what"], "", None
            size = sizes.get(int(found["group"]), 0)
            one = shown.setdefault(found["hash"], _Shown(size))
            one.error = one.error or part == "ERROR"
        elif not line.startswith("  "):
            close()
            operation, group = "", None
            one = None if line else one  # an empty line is between two operations, too
        elif one is None:
            continue
        elif found := _COUNTS.match(line):
            close()
            operation, group = found["what"], None
            operation = ALL if operation == "collective" else operation
        elif line.startswith("  Communicator ranks have different status"):
            close()
            operation, group = "", None
        elif found := _GROUP.match(line):
            value = None if found["status"] else int(found["value"] or 0)
            group = int(found["count"]), value, found["status"]
            if value is not None:
                open_groups.append((group[0], value))
        elif found := _RANK.match(line):
            _take_rank(one, found, part, operation, group, open_groups)
        elif found := _MISSING.match(line):
            one.missing.update(int(word) for word in re.findall(r"\d{1,9}", found["ranks"]))
        elif part == "INCOMPLETE" and (number := re.search(r"from (\d{1,9}) rank", line)):
            one.lost = int(number[1])
    close()


def _take_rank(
    one: _Shown,
    found: re.Match[str],
    part: str,
    operation: str,
    group: tuple[int, int | None, str | None] | None,
    open_groups: list[tuple[int, int]],
) -> None:
    rank = int(found["rank"])
    if found["pid"]:
        one.places[rank] = found["host"], int(found["pid"])
    if part == "INCOMPLETE":
        one.missing.add(rank)
        return
    if part != "MISMATCH":
        return
    if found["value"] or found["none"]:
        one.counts.setdefault(operation, {})[rank] = int(found["value"] or 0)
    elif found["status"]:
        one.status[rank] = found["status"]
    elif group is not None and group[1] is not None and operation:
        one.counts.setdefault(operation, {})[rank] = group[1]
        if (group[0], group[1]) in open_groups:
            open_groups.remove((group[0], group[1]))
    elif group is not None and group[2]:
        one.status[rank] = group[2]


def _made(name: str, one: _Shown) -> RasComm:
    """Its ranks, with the counts in which ranks differ."""
    missing = one.missing | {rank for rank, word in one.status.items() if word == "NOCOMM"}
    ranks = []
    for rank in range(one.size):
        if rank in missing:
            continue
        counts = {}
        for operation in {*one.counts, *one.rest} - one.unclear:
            value = one.counts.get(operation, {}).get(rank, one.rest.get(operation))
            if value is not None:
                counts[operation] = value
        host, pid = one.places.get(rank, (None, None))
        error = -1 if one.error else 0
        ranks.append(RasRank(rank, host, pid, counts, one.status.get(rank, "RUNNING"), error))
    absent = []
    for rank in sorted(missing):
        host, pid = one.places.get(rank, (None, None))
        absent.append(RasMissing(rank, host, pid, one.status.get(rank) != "NOCOMM"))
    unnamed = max(0, one.lost - len(one.missing))
    absent += [RasMissing(-1, None, None, True)] * min(unnamed, 1)
    is_unclear = bool(one.unclear - set(one.rest))
    return RasComm(f"0x{int(name, 16):x}", one.size, tuple(ranks), tuple(absent), is_unclear)
