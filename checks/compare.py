"""Rules over several nodes: each with a fact that all have, or all with a value that they share."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from checks.facts import NOT_ASKED, Fleet, NodeFacts, Unknown
from checks.finding import Finding, fail, lacking, passed, skip, unknown

Reader = Callable[[NodeFacts], Any]
"""Gives a hashable value, `Unknown`, or None for a node that the comparison leaves out."""


def each_node(
    fleet: Fleet, fact: str, judge: Callable[[NodeFacts, Any], Finding]
) -> Iterator[Finding]:
    """What `judge(node, its fact)` finds; SKIP or UNKNOWN on nodes that lack the fact."""
    for node in fleet.reached:
        value = getattr(node, fact)
        found = lacking(value) if isinstance(value, Unknown) else judge(node, value)
        yield dataclasses.replace(found, nodes=(node.name,))


@dataclass(frozen=True, slots=True)
class Majority:
    """The most common value of the fleet; `value` is None where two are equally common."""

    value: Any
    count: int
    values: Mapping[str, Any]

    def groups(self) -> list[tuple[Any, tuple[str, ...]]]:
        """(value, nodes), most common first."""
        found: dict[Any, tuple[str, ...]] = {}
        for node, value in self.values.items():
            found[value] = (*found.get(value, ()), node)
        return sorted(found.items(), key=lambda one: -len(one[1]))


def majority(values: Mapping[str, Any]) -> Majority:
    """What most nodes have; values must be hashable."""
    ranked = Counter(values.values()).most_common(2)
    value, count = ranked[0] if ranked else (None, 0)
    if len(ranked) == 2 and ranked[1][1] == count:
        value = None
    return Majority(value, count, values)


def same(
    what: str, *, bad: Callable[..., Finding] = fail, because: str | None = None
) -> Callable[[Reader], Callable[..., Iterator[Finding]]]:
    """Turn a reader into the rule that all nodes have the value that it reads, see `compare`."""

    def decorate(read: Reader) -> Callable[..., Iterator[Finding]]:
        @functools.wraps(read)
        def rule(fleet: Fleet, expected: str | None) -> Iterator[Finding]:
            return compare(fleet, read, what, bad=bad, because=because, expected=expected)

        return rule

    return decorate


def compare(
    fleet: Fleet,
    read: Reader,
    what: str,
    *,
    bad: Callable[..., Finding] = fail,
    because: str | None = None,
    expected: str | None = None,
    fix: str | None = None,
) -> Iterator[Finding]:
    """Findings about a value that all nodes should share: the majority is right.

    `because` is the check that already gives the reason for an unknown value. `expected` is the
    value of a profile, which counts in place of the majority's.
    """
    values: dict[str, Any] = {}
    without: list[str] = []
    for node in fleet.reached:
        value = read(node)
        if value == NOT_ASKED:
            yield skip(value, nodes=(node.name,))
        elif isinstance(value, Unknown):
            yield unknown(f"{what}: {value}", nodes=(node.name,), because=because)
        elif value is not None:
            values[node.name] = value
        else:
            without.append(node.name)
    if len(without) == len(fleet.reached):
        yield skip(f"{what}: no node has one")
    if not values:
        return
    if without:
        yield skip(f"{what}: nothing to compare here", nodes=tuple(without))
    most = majority(values)
    groups = most.groups()
    if expected is None and most.value is None:
        seen = ", ".join(f"{value} on {len(nodes)}" for value, nodes in groups)
        yield bad(f"{what} differs without a majority: {seen}", nodes=tuple(values), fix=fix)
        return
    right = str(most.value) if expected is None else expected
    others = f"{most.count} nodes have {right}" if expected is None else f"the profile says {right}"
    source = "majority" if expected is None else "profile"
    peers = ""
    if expected is None and len(groups) == 1:
        peers = f" (all {len(values)} nodes)" if len(values) > 1 else " (one node, no peer)"
    for value, nodes in groups:
        if str(value) == right:
            yield passed(f"{what} {value}{peers}", value, nodes=nodes, source=source)
        else:
            text = f"{what} {value}, {others}"
            yield bad(text, value, right, nodes=nodes, source=source, fix=fix)
