"""torch's flight recorder: which rank is behind, and which one is in another collective.

Nodes read the records (payload/dump/flight.py) and send their newest entries as plain values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.jobs.processes import fold_ranks


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective as a rank recorded it."""

    sequence: int
    operation: str  # all_reduce, without the backend's name
    sizes: str
    dtypes: str
    done: bool
    caller: str  # innermost frame outside of torch, `step train.py:17`


@dataclass(frozen=True, slots=True)
class Dump:
    """The newest entries of each process group, by name of the group."""

    groups: Mapping[str, Mapping[int, Entry]]
    completed: Mapping[str, int]


def read_dump(sent: Mapping[str, Any]) -> Dump | str:
    """A record as the payload sent it, or why it cannot be read."""
    if sent.get("error"):
        return f"{sent.get('path')}: {sent['error']}"
    try:
        return make_dump(sent)
    except ValueError as error:
        return f"{sent.get('path')}: {error}"


def make_dump(data: Any) -> Dump:
    """Entries by group. Raises `ValueError` for another shape than torch's."""
    if not isinstance(data, dict) or not isinstance(data.get("entries", []), list):
        raise ValueError("not a flight record: no entries")
    groups: dict[str, dict[int, Entry]] = {}
    completed: dict[str, int] = {}
    for row in data.get("entries", []):
        try:
            if row.get("is_p2p"):
                continue
            name = _group_name(row.get("process_group"))
            entry = _entry(row)
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError):
            continue  # of a version that we do not know
        groups.setdefault(name, {})[entry.sequence] = entry
        if entry.done:
            completed[name] = max(completed.get(name, 0), entry.sequence)
    return Dump(groups, completed)


def _group_name(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return " ".join(str(word) for word in value if word != "undefined")
    return str(value)


def _entry(row: Mapping[str, Any]) -> Entry:
    operation = str(row["profiling_name"]).rpartition(":")[2]
    caller = ""
    for frame in row.get("frames") or ():
        if "/torch/" not in str(frame["filename"]):
            caller = f"{frame['name']} {str(frame['filename']).rpartition('/')[2]}:{frame['line']}"
            break
    return Entry(
        sequence=int(row["collective_seq_id"]),
        operation=operation,
        sizes=str(row.get("input_sizes")),
        dtypes=str(row.get("input_dtypes")),
        done=bool(row.get("retired")) or row.get("state") == "completed",
        caller=caller,
    )


def compare(dumps: Mapping[int, Dump], world: int) -> list[tuple[str, list[int]]]:
    """(sentence, ranks it is about): which are behind, and which are in another collective."""
    if not dumps:
        return []
    found: list[tuple[str, list[int]]] = []
    for name in sorted({name for dump in dumps.values() for name in dump.groups}):
        members = {rank: dump for rank, dump in dumps.items() if name in dump.groups}
        found += _compare_group(name, members)
    without = [rank for rank in range(world) if rank not in dumps]
    if without and len(without) < world:
        found.append(
            (f"no record of rank {fold_ranks(without)}: it may be the one that hangs", without)
        )
    return found


def _compare_group(name: str, members: Mapping[int, Dump]) -> list[tuple[str, list[int]]]:
    newest = {rank: max(dump.groups[name]) for rank, dump in members.items()}
    highest, lowest = max(newest.values()), min(newest.values())
    if lowest < highest:
        behind = sorted(rank for rank, sequence in newest.items() if sequence == lowest)
        ahead = next(rank for rank, sequence in newest.items() if sequence == highest)
        last = members[behind[0]].groups[name][lowest]
        wanted = members[ahead].groups[name].get(lowest + 1)
        what = f"{wanted.operation} at {wanted.caller}" if wanted else "the next collective"
        text = (
            f"rank {fold_ranks(behind)} never joined number {lowest + 1} of group {name} ({what}); "
            f"its last was {last.operation} at {last.caller}"
        )
        return [(text, behind)]
    # All are at the same number: is it the same collective?
    first_open = min(dump.completed.get(name, 0) for dump in members.values()) + 1
    recorded = {number for dump in members.values() for number in dump.groups[name]}
    for sequence in sorted(number for number in recorded if number >= first_open - 1):
        entries = {
            r: d.groups[name][sequence] for r, d in members.items() if sequence in d.groups[name]
        }
        votes = Counter((e.operation, e.sizes, e.dtypes) for e in entries.values())
        if len(votes) < 2:
            continue
        (usual, count), *_ = votes.most_common()
        odd = sorted(r for r, e in entries.items() if (e.operation, e.sizes, e.dtypes) != usual)
        one = entries[odd[0]]
        usual_one = next(e for e in entries.values() if (e.operation, e.sizes, e.dtypes) == usual)
        text = (
            f"number {sequence} of group {name} is {one.operation} {one.sizes} at {one.caller} on "
            f"rank {fold_ranks(odd)}, but {usual_one.operation} {usual_one.sizes} at "
            f"{usual_one.caller} on {count} others"
        )
        return [(text, odd)]
    open_now = [
        rank for rank, dump in members.items() if dump.completed.get(name, 0) < newest[rank]
    ]
    if len(open_now) == len(members):
        entry = next(iter(members.values())).groups[name][highest]
        text = (
            f"all {len(members)} ranks have joined number {highest} of group {name} "
            f"({entry.operation}), and none has finished it: the cause is the network or a device, "
            "not a rank"
        )
        return [(text, sorted(members))]
    return []
