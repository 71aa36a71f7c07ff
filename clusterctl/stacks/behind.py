"""Who is behind in a job whose counts do not move, and what it never launched. Pure.

In a communicator the ranks that launched less are waited for by those that launched more. A rank
that is behind in one and ahead in another waits itself; the first cause is behind and nowhere ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from clusterctl.stacks.launched import Counts, Group, Launched, Member


class Lag(str, Enum):
    BEHIND = "behind"  # few have not launched what the others have
    AHEAD = "ahead"  # few have launched what the others have not
    DIFFERENT = "different"  # ranks launched different operations of one communicator
    ORDER = "order"  # ranks wait for each other in different communicators
    TIE = "tie"  # half of the ranks are ahead of the other half

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference that explains the hang, and whom it points at (nobody in a tie)."""

    lag: Lag
    group: Group
    members: tuple[Member, ...]
    what: str  # AllReduce number 101
    others: int  # ranks on the other side
    also: tuple[str, ...] = ()


def find_difference(launched: Launched) -> Difference | None:
    """None where all counts that can be compared are equal."""
    uneven = [group for group in launched.groups if not group.is_equal and not group.ends]
    for group in uneven:
        if found := _different(group):
            return found
    sides = {group.name: _sides(group) for group in uneven}
    ahead = {_key(member) for _, high in sides.values() for member in high}
    causes = []
    for group in uneven:
        low, high = sides[group.name]
        first = [member for member in low if _key(member) not in ahead]
        if first:
            causes.append((group, first, high))
    if not uneven:
        return None
    if not causes:
        group = uneven[0]
        names = tuple(one.title for one in uneven)
        return Difference(Lag.ORDER, group, (), _missed(group), len(group.counts), names)
    # The cause that blocks most: the others only follow from it.
    group, first, high = max(causes, key=lambda cause: len(cause[2]))
    also = tuple(one.title for one, _, _ in causes if one is not group)
    return _lag(group, first, high, also)


def _key(member: Member) -> object:
    return ("rank", member.rank) if member.rank is not None else (member.host, member.pid)


def _lag(
    group: Group, first: list[Member], high: Sequence[Member], also: tuple[str, ...]
) -> Difference:
    what = _missed(group)
    if len(first) == len(high):
        return Difference(Lag.TIE, group, (), what, len(high), also)
    if len(first) < len(high):
        return Difference(Lag.BEHIND, group, tuple(first), what, len(high), also)
    return Difference(Lag.AHEAD, group, tuple(high), what, len(first), also)


def _different(group: Group) -> Difference | None:
    """Ranks of which neither launched all that the other did, against the most of equal counts."""
    kinds: dict[tuple[tuple[str, int], ...], list[Member]] = {}
    for member, counts in group.counts.items():
        kinds.setdefault(tuple(sorted(counts.items())), []).append(member)
    many, most = max(kinds.items(), key=lambda item: len(item[1]))
    odd = {
        kind: members
        for kind, members in kinds.items()
        if not _within(dict(kind), dict(many)) and not _within(dict(many), dict(kind))
    }
    if not odd:
        return None
    members = [member for found in odd.values() for member in found]
    few = max(odd, key=lambda kind: len(odd[kind]))
    what = f"{_extra(dict(few), dict(many))} instead of {_extra(dict(many), dict(few))}"
    named = tuple(members) if len(members) < len(most) else ()
    return Difference(Lag.DIFFERENT, group, named, what, len(most))


def _within(a: Counts, b: Counts) -> bool:
    return all(value <= b.get(name, 0) for name, value in a.items())


def _extra(one: Counts, other: Counts) -> str:
    """What `one` launched and `other` did not."""
    more = [name for name in sorted(one) if one[name] > other.get(name, 0)]
    return ", ".join(f"{name} number {other.get(name, 0) + 1}" for name in more) or "none"


def _sides(group: Group) -> tuple[list[Member], list[Member]]:
    """Members with the fewest launches, and those with more."""
    totals = {member: sum(counts.values()) for member, counts in group.counts.items()}
    lowest = min(totals.values())
    return (
        [member for member, total in totals.items() if total == lowest],
        [member for member, total in totals.items() if total > lowest],
    )


def _missed(group: Group) -> str:
    """The next operation that the members with the fewest launches have not launched."""
    low, high = _sides(group)
    fewest = group.counts[low[0]]
    nearest = min((group.counts[member] for member in high), key=lambda one: sum(one.values()))
    return _extra(nearest, fewest)
