"""Which groups of nodes to test together, round by round, to name a bad node or a bad link. Pure.

A search is a generator: it yields a round, that is groups without a node in common, receives the
`Outcome`, and returns a `Diagnosis`. Three steps:

1. Pairs along the ring of the hostfile's order, which is also the ring that a collective takes: two
   rounds (three for an odd number of nodes) test every node twice. A node all of whose pairs are
   bad is tried twice more with those that are known to work; a bad pair of two nodes that work with
   others, tried twice more, is a bad link.
2. All good nodes together: gloo and NCCL connect them by ways that the ring does not take.
3. Where that fails, twice, although every pair was good: halving. Both halves of a bad group are
   tested at once; if both are good, the bad link lies between them, and its ends are halved in
   turn.

So one bad node or link of N is named within `most_rounds(N)` rounds, or the search says that it
cannot: with two nodes alone, or where a fault shows only while many talk at once.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

Group = tuple[str, ...]
Link = tuple[str, str]
TWICE = 2  # more tests before a node or link is named: a machine under load fails now and then
RESTARTS = 3  # of the test of all together, when a node is lost or named on the way


@dataclass(frozen=True, slots=True)
class Outcome:
    bad: frozenset[Group]  # failed, hung or far too slow; also earlier pairs, now seen to be slow
    named: Mapping[str, str] = field(default_factory=dict)  # nodes known to be the reason, and why
    lost: Mapping[str, str] = field(default_factory=dict)  # nodes that cannot be asked any more


@dataclass
class Diagnosis:
    """What the search can say. A node or link that is not in it was found good."""

    bad_nodes: dict[str, str] = field(default_factory=dict)
    bad_links: dict[Link, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    unclear: list[tuple[Group, str]] = field(default_factory=list)
    rounds: int = 0


Rounds = Generator[list[Group], Outcome, None]


def most_rounds(count: int) -> int:
    """Rounds that a search for one fault among `count` nodes takes at most."""
    return 10 + 2 * math.ceil(math.log2(max(2, count)))


def ring_rounds(nodes: Sequence[str]) -> list[list[Group]]:
    """Neighbours in pairs so that each pair of the ring comes once; no node twice in a round."""
    count = len(nodes)
    if count < 2:
        return []
    pairs: list[Group] = [(nodes[at], nodes[(at + 1) % count]) for at in range(count)]
    if count == 2:
        return [pairs[:1]]
    last = [pairs.pop()] if count % 2 else []
    return [one for one in (pairs[::2], pairs[1::2], last) if one]


def search(nodes: Sequence[str]) -> Generator[list[Group], Outcome, Diagnosis]:
    """See the head of this file. Names must be different."""
    found = _Search(nodes=list(nodes))
    for groups in ring_rounds(nodes):
        yield from found.try_groups(groups)
    yield from found.ask_nodes_again()
    yield from found.ask_links_again()
    yield from found.all_together()
    return found


@dataclass
class _Search(Diagnosis):
    nodes: list[str] = field(default_factory=list)
    good_pairs: set[Group] = field(default_factory=set)
    bad_pairs: list[Group] = field(default_factory=list)
    void: bool = False  # a node was named or lost in the last round

    @property
    def left(self) -> list[str]:
        """Nodes that are neither bad nor lost, in order."""
        return [node for node in self.nodes if self._is_left(node)]

    def _is_left(self, node: str) -> bool:
        return node not in self.bad_nodes and node not in self.lost

    def try_groups(self, groups: list[Group]) -> Generator[list[Group], Outcome, set[Group]]:
        """Test groups of nodes that are left; returns the bad ones with no node named or lost."""
        groups = [group for group in groups if all(map(self._is_left, group)) and len(group) > 1]
        self.void = False
        if not groups:
            return set()
        outcome = yield groups
        self.rounds += 1
        self.bad_nodes.update(outcome.named)
        self.lost.update({node: why for node, why in outcome.lost.items() if self._is_left(node)})
        sound = {group for group in groups if all(map(self._is_left, group))}
        self.void = len(sound) < len(groups)
        bad = sound & outcome.bad
        pairs = {group for group in sound if len(group) == 2}
        late = (self.good_pairs & outcome.bad) - sound
        self.good_pairs = (self.good_pairs - late) | (pairs - bad)
        self.bad_pairs += [*sorted(late), *sorted(pairs & bad)]
        return bad

    def _works(self, node: str) -> bool:
        """Whether it was good with at least one other."""
        return self._is_left(node) and any(node in pair for pair in self.good_pairs)

    def ask_nodes_again(self) -> Rounds:
        """Nodes that were good with no other, each with one that works: bad again is a bad node."""
        helpers = [node for node in self.left if self._works(node)]
        doubtful = [node for node in self.left if self._partners(node) and node not in helpers]
        if doubtful and not helpers:
            why = "no pair of nodes works: a common reason, or two nodes that cannot be told apart"
            self.unclear.append((tuple(doubtful), why))
            self.bad_pairs.clear()
            return
        while doubtful and helpers:
            batch, doubtful = doubtful[: len(helpers)], doubtful[len(helpers) :]
            for _ in range(TWICE):
                still = [node for node in batch if self._is_left(node) and not self._works(node)]
                helpers = [node for node in helpers if self._is_left(node)]
                if helpers:
                    yield from self.try_groups(self._with_helpers(still[: len(helpers)], helpers))
            for node in batch:
                if self._is_left(node) and not self._works(node):
                    others = " and ".join(sorted(self._partners(node)))
                    self.bad_nodes[node] = f"bad with {others}, which work with others"
            helpers = [node for node in self.left if self._works(node)]

    def _with_helpers(self, batch: list[str], helpers: list[str]) -> list[Group]:
        """Each with another helper, one that it has not been tested with where there is one."""
        pairs: list[Group] = []
        free = list(helpers)
        for node in batch:
            known = self._partners(node)
            helper = next((one for one in free if one not in known), free[0])
            free.remove(helper)
            pairs.append((node, helper))
        return pairs

    def _partners(self, node: str) -> set[str]:
        """The nodes that it was bad with."""
        return {one for pair in self.bad_pairs if node in pair for one in pair} - {node}

    def ask_links_again(self) -> Rounds:
        """Bad pairs of nodes that work with others, once more: bad again is a bad link."""
        found = [pair for pair in self.bad_pairs if all(map(self._is_left, pair))]
        todo = [pair for pair in dict.fromkeys(found) if pair not in self.good_pairs]
        while todo:
            batch: list[Group] = []
            taken: set[str] = set()
            for pair in todo:
                if taken.isdisjoint(pair):
                    batch.append(pair)
                    taken.update(pair)
            todo = [pair for pair in todo if pair not in batch]
            for _ in range(TWICE):
                batch = sorted((yield from self.try_groups(batch)))
            for first, second in batch:
                self.bad_links[first, second] = "both work with others"

    def all_together(self) -> Rounds:
        """All that are left together, without the later end of a bad link; then halving."""
        if self.unclear:
            return  # nothing works
        for _ in range(RESTARTS):
            later = {second for _, second in self.bad_links}
            group = tuple(node for node in self.left if node not in later)
            if len(group) < 3:
                return
            bad = yield from self.try_groups([group])
            if bad:
                bad = yield from self.try_groups([group])
            if bad:
                yield from self._within(group)
            if not self.void:
                return

    def _within(self, group: Group) -> Rounds:
        """`group` is bad: the link is inside one half, or between the two."""
        if len(group) == 2:
            yield from self._name_link(group)
            return
        first, second = group[: len(group) // 2], group[len(group) // 2 :]
        bad = yield from self.try_groups([first, second])
        if self.void:
            return
        if not bad:
            yield from self._between(first, second)
        for half in (first, second):
            if half in bad:
                yield from self._within(half)
                if self.void:
                    return

    def _between(self, first: Group, second: Group) -> Rounds:
        """Each is good alone, together they are bad: a link from one to the other."""
        if len(first) == len(second) == 1:
            yield from self._name_link(first + second)
            return
        for combination in _combinations(first, second):
            bad = yield from self.try_groups([one + other for one, other in combination])
            if self.void:
                return
            for one, other in combination:
                if one + other in bad:
                    yield from self._between(one, other)
                    return
        group = first + second
        why = f"{len(group)} nodes fail together, and no smaller part of them does"
        self.unclear.append((group, why))

    def _name_link(self, pair: Group) -> Rounds:
        if (yield from self.try_groups([pair])):
            why = "found by halving; every node works with its neighbours"
            self.bad_links[pair[0], pair[1]] = why
        elif not self.void:
            self.unclear.append((pair, "they failed together, and a moment later they did not"))


def _combinations(first: Group, second: Group) -> list[list[tuple[Group, Group]]]:
    """Rounds of (part of the first, part of the second): every link between them is in one."""
    one, two = first[: (len(first) + 1) // 2], first[(len(first) + 1) // 2 :]
    three, four = second[: (len(second) + 1) // 2], second[(len(second) + 1) // 2 :]
    rounds = [[(one, three), (two, four)], [(one, four), (two, three)]]
    return [[pair for pair in pairs if all(pair)] for pairs in rounds if any(map(all, pairs))]
