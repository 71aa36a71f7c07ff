"""Who is behind in a job whose counts do not move, and what it never launched. Pure.

In a communicator the ranks that launched less are waited for by those that launched more. A rank
that is behind in one and ahead in another waits itself; the first cause is behind and nowhere
ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from clusterctl.stacks.counts.launched import Counts, Group, Launched, Member
from clusterctl.stacks.verdict import FEW


class Lag(str, Enum):
    BEHIND = "behind"  # few have not launched what the others have
    AHEAD = "ahead"  # few have launched what the others have not
    DIFFERENT = "different"  # ranks launched different operations of one communicator
    ORDER = "order"  # ranks wait for each other in different communicators
    TIE = "tie"  # too many are on either side
    FROZEN = "frozen"  # those that are behind wait for each other, with equal counts
    UNCLEAR = "unclear"  # others cannot be excluded, see `why`

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
    why: str = ""


def find_difference(launched: Launched) -> Difference | None:
    """None where all counts that can be compared are equal."""
    groups = [group for group in launched.groups if not group.ends]
    uneven = [group for group in groups if not group.is_equal]
    if not uneven:
        return None
    for group in uneven:
        if found := _different(group):
            return found
    sides = [(group, *_sides(group)) for group in uneven]
    ahead = {_key(member) for _, _, high in sides for member in high}
    hidden = [set(map(_key, low)) for _, low, high in sides if _nameless(high)]
    causes = []
    for group, low, high in sides:
        first = [one for one in low if _key(one) not in ahead and not _may_wait(one, hidden)]
        if first:
            causes.append((group, first, high))
    group, low, high = sides[0]
    if not causes:
        titles = tuple(one.title for one in uneven)
        is_unclear = any(_nameless(members) for _, _, members in sides)
        lag = Lag.UNCLEAR if is_unclear else Lag.ORDER
        return Difference(lag, group, (), _missed(group), len(group.counts), titles, TEXT)
    # The cause that blocks most: the others only follow from it.
    group, first, high = max(causes, key=lambda cause: len(cause[2]))
    behind = {_key(member) for _, low, _ in sides for member in low}
    for closed in groups:
        members = list(closed.counts)
        is_stuck = closed.is_equal and all(_key(one) in behind for one in members)
        if is_stuck and any(closed.counts[members[0]].values()) and set(map(_key, members)) & set(map(_key, first)):  # fmt: skip
            return Difference(Lag.FROZEN, closed, (), _missed(group), len(high), (group.title,))
    if launched.is_text and not _explains_all(first, group, sides):
        return Difference(Lag.UNCLEAR, group, (), _missed(group), len(high), why=TEXT)
    if _has_odd_partner(first, high, groups):
        return Difference(Lag.UNCLEAR, group, (), _missed(group), len(high), why=PARTNER)
    also = tuple(one.title for one, _, _ in causes if one is not group)
    return _lag(group, first, high, also)


TEXT = "the text of NCCL RAS does not show all ranks and equal counts"
PARTNER = "a rank that shares another communicator with it differs from the others, too"
Sides = Sequence[tuple[Group, list[Member], list[Member]]]  # with the fewest launches, with more


def _nameless(members: Sequence[Member]) -> bool:
    return any(member.rank is None and member.pid is None for member in members)


def _may_wait(one: Member, hidden: Sequence[set[object]]) -> bool:
    """Whether it may be one of those that are ahead and that the text does not name.

    `hidden` are the members with the fewest launches where that is so.
    """
    return any(_key(one) not in lowest for lowest in hidden)


def _has_odd_partner(
    first: Sequence[Member], high: Sequence[Member], groups: Sequence[Group]
) -> bool:
    """Whether it may wait for a rank that skipped a call and ran on, until counts were equal again.

    Such a rank has launched less than the others in communicators of that size.
    """
    profiles: dict[object, list[tuple[int, int]]] = {}
    for group in groups:
        for member, counts in group.counts.items():
            profiles.setdefault(_key(member), []).append((group.size, sum(counts.values())))
    usual = Counter(tuple(sorted(profiles[_key(one)])) for one in high).most_common(1)[0][0]
    causes = set(map(_key, first))
    for group in groups:
        keys = set(map(_key, group.counts))
        is_closed = group.is_equal and any(next(iter(group.counts.values())).values())
        if is_closed and keys & causes:
            partners = keys & set(map(_key, high))
            if any(tuple(sorted(profiles[key])) != usual for key in partners):
                return True
    return False


def _explains_all(first: Sequence[Member], group: Group, sides: Sides) -> bool:
    """Whether the others that are behind wait for this one: a text hides where counts are equal."""
    if len(first) > 1:
        return False
    cause = _key(first[0])
    waiting = {_key(member) for _, low, high in sides if cause in map(_key, low) for member in high}
    low, _ = _sides(group)
    return all(_key(one) == cause or _key(one) in waiting for one in low)


def _key(member: Member) -> object:
    return ("rank", member.rank) if member.rank is not None else (member.host, member.pid)


def _lag(
    group: Group, first: list[Member], high: Sequence[Member], also: tuple[str, ...]
) -> Difference:
    what = _missed(group)
    if len(first) <= max(1, FEW * len(group.counts)) and len(first) < len(high):
        return Difference(Lag.BEHIND, group, tuple(first), what, len(high), also)
    if len(high) <= max(1, FEW * len(group.counts)) and len(high) < len(first):
        return Difference(Lag.AHEAD, group, tuple(high), what, len(first), also)
    return Difference(Lag.TIE, group, (), what, len(high), also)


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
