"""Decorators for rules that compare nodes: one fact of each, or one value that all share."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from checks.facts import NOT_ASKED, Fleet, NodeFacts, Unknown
from checks.finding import Finding, Found, drafts, fail, need, passed, skip, unknown

Reader = Callable[[NodeFacts], Any]
"""Gives a hashable value, `Unknown`, or None for a node that the comparison leaves out."""


def each_node(
    fleet: Fleet, fact: str, judge: Callable[[NodeFacts, Any], Found]
) -> Iterator[Finding]:
    """What `judge(node, its fact)` finds; SKIP or UNKNOWN on nodes that lack the fact."""
    return each(fleet, lambda node: judge(node, need(getattr(node, fact))))


def each(fleet: Fleet, judge: Callable[[NodeFacts], Found]) -> Iterator[Finding]:
    """What `judge` finds about each node."""
    for node in fleet.reached:
        for found in drafts(judge, node):
            yield dataclasses.replace(found, nodes=(node.name,))


def majority(values: Iterable[Any]) -> Any:
    """The most common of hashable values; None where two are equally common."""
    ranked = Counter(values).most_common(2)
    is_tie = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
    return None if is_tie or not ranked else ranked[0][0]


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
    by_value: defaultdict[Any, list[str]] = defaultdict(list)
    for node_name, value in values.items():
        by_value[value].append(node_name)
    groups = sorted(by_value.items(), key=lambda group: -len(group[1]))
    most = majority(values.values())
    if expected is None and most is None:
        seen = ", ".join(f"{value} on {len(nodes)}" for value, nodes in groups)
        yield bad(f"{what} differs without a majority: {seen}", nodes=tuple(values), fix=fix)
        return
    right, source, others, peers = expected, "profile", f"the profile says {expected}", ""
    if expected is None:
        right, source = str(most), "majority"
        others = f"{len(groups[0][1])} nodes have {right}"
        if len(groups) == 1:
            peers = f" (all {len(values)} nodes)" if len(values) > 1 else " (one node, no peer)"
    for value, nodes in groups:
        if str(value) == right:
            yield passed(f"{what} {value}{peers}", value, nodes=tuple(nodes), source=source)
        else:
            text = f"{what} {value}, {others}"
            yield bad(text, value, right, nodes=tuple(nodes), source=source, fix=fix)
