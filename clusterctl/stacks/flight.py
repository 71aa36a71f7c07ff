"""torch's flight records, which nodes read: which rank is behind or in another collective."""

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
    groups: dict[str, dict[int, Entry]] = {}
    completed: dict[str, int] = {}
    for row in sent.get("entries", ()):
        try:
            name, entry = _group_name(row.get("process_group")), _entry(row)
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
    caller = ""
    for frame in row["frames"]:  # at most one
        caller = f"{frame['name']} {str(frame['filename']).rpartition('/')[2]}:{frame['line']}"
    sequence, operation = int(row["collective_seq_id"]), str(row["profiling_name"])
    sizes, dtypes = str(row.get("input_sizes")), str(row.get("input_dtypes"))
    done = bool(row.get("retired")) or row.get("state") == "completed"
    return Entry(sequence, operation.rpartition(":")[2], sizes, dtypes, done, caller)


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
        text = f"no record of rank {fold_ranks(without)}: it may be the one that hangs"
        found.append((text, without))
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
        missed = f"rank {fold_ranks(behind)} never joined number {lowest + 1} of group {name}"
        text = f"{missed} ({what}); its last was {last.operation} at {last.caller}"
        return [(text, behind)]
    # All are at the same number: is it the same collective?
    first_open = min(dump.completed.get(name, 0) for dump in members.values()) + 1
    recorded = {number for dump in members.values() for number in dump.groups[name]}
    for sequence in sorted(number for number in recorded if number >= first_open - 1):
        found = {r: d.groups[name].get(sequence) for r, d in members.items()}
        entries = {rank: entry for rank, entry in found.items() if entry}
        calls = {rank: (e.operation, e.sizes, e.dtypes) for rank, e in entries.items()}
        (usual, count), *others = Counter(calls.values()).most_common()
        if others:
            odd = sorted(rank for rank, call in calls.items() if call != usual)
            one = entries[odd[0]]
            most = next(entries[rank] for rank, call in calls.items() if call == usual)
            here = f"{one.operation} {one.sizes} at {one.caller} on rank {fold_ranks(odd)}"
            there = f"{most.operation} {most.sizes} at {most.caller} on {count} others"
            return [(f"number {sequence} of group {name} is {here}, but {there}", odd)]
    if all(dump.completed.get(name, 0) < newest[rank] for rank, dump in members.items()):
        entry = next(iter(members.values())).groups[name][highest]
        joined = f"have joined number {highest} of group {name} ({entry.operation})"
        cause = "the cause is the network or a device, not a rank"
        text = f"all {len(members)} ranks {joined}, and none has finished it: {cause}"
        return [(text, sorted(members))]
    return []
