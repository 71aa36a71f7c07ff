"""Registers checks and runs them over a fleet of facts. No IO: facts in, findings out."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from checks import rules
from checks.facts import NOT_ASKED, Fleet, NodeFacts, Unknown
from checks.finding import Finding, Report, fail, override, passed, skip, unknown
from checks.profile import Profile

Scope = Literal["node", "launch", "fleet", "active"]
"""Arguments. node: (node, limits). launch: (node, limits, fleet), only with `fleet.launch`.

fleet: (fleet, limits). active: as fleet, only with `fleet.active`.
"""

Function = Callable[..., Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A registered check; its id is stable, users silence it by id."""

    id: str
    scope: Scope
    needs: tuple[str, ...]  # fields of NodeFacts; one that is Unknown makes the check UNKNOWN
    function: Function
    bad: str = ""  # when it warns and when it fails, in words
    how: str = ""  # what is read on the node
    fix: str = ""  # what usually repairs it
    advisory: bool = False  # to know it is good, not to know it stops no launch

    @property
    def summary(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "").split("\n", 1)[0]

    @property
    def why(self) -> str:
        """What stands behind the first line of the docstring."""
        text = inspect.cleandoc(self.function.__doc__ or "").partition("\n")[2]
        return " ".join(text.split())


_registry: dict[str, Check] = {}


def check(
    id: str,
    *,
    scope: Scope = "node",
    needs: Collection[str] = (),
    bad: str = "",
    how: str = "",
    fix: str = "",
    advisory: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as the check `id` (`subject.name`). Its docstring says what, then why."""

    def register(function: Function) -> Function:
        if id in _registry and _registry[id].function.__module__ != function.__module__:
            raise ValueError(f"two checks are called {id}")
        _registry[id] = Check(id, scope, tuple(needs), function, bad, how, fix, advisory)
        return function

    return register


def all_checks() -> dict[str, Check]:
    """Every check by id, in order of id; imports checks/rules/* on first use."""
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return dict(sorted(_registry.items()))


def run_checks(
    fleet: Fleet,
    limits: Profile | None = None,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    seconds: float = 0.0,
) -> Report:
    """All checks over all nodes. `only` and `without` take ids or subjects (`gpu`).

    Raises `KeyError` with the name for one that is neither.
    """
    limits = limits or Profile()
    checks = all_checks()
    chosen = _choose(checks, only) if only else set(checks)
    chosen -= _choose(checks, without)
    findings: list[Finding] = []
    for one in checks.values():
        if one.id in chosen:
            findings += _run(one, fleet, limits)
    findings = override(findings, limits.severity, limits.silence)
    advisory = frozenset(id for id, one in checks.items() if one.advisory)
    names = tuple(node.name for node in fleet.nodes)
    return Report(names, tuple(findings), seconds, advisory)


def _choose(checks: Collection[str], names: Collection[str]) -> set[str]:
    chosen: set[str] = set()
    for name in names:
        found = {id for id in checks if id == name or id.split(".")[0] == name}
        if not found:
            raise KeyError(name)
        chosen |= found
    return chosen


def _run(one: Check, fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    if one.scope == "active" and fleet.active is None:
        return
    # A node that was not reached has one finding, ssh.reachable: twenty UNKNOWN would hide it.
    if one.scope in ("fleet", "active"):
        if fleet.reached:
            everybody = tuple(node.name for node in fleet.reached)
            yield from _named(one, partial(one.function, fleet, limits), everybody)
        return
    nodes = fleet.nodes if one.id == "ssh.reachable" else fleet.reached
    for node in nodes:
        lacking = [
            content.reason
            for content in (getattr(node, name) for name in one.needs)
            if isinstance(content, Unknown)
        ]
        findings: Callable[[], Iterable[Finding]]
        if one.scope == "launch" and fleet.launch is None:
            findings = partial(iter, [skip("nothing to launch was named")])
        elif NOT_ASKED.reason in lacking:
            findings = partial(iter, [skip(NOT_ASKED.reason)])
        elif lacking:
            findings = partial(iter, [unknown(lacking[0])])
        elif one.scope == "launch":
            findings = partial(one.function, node, limits, fleet)
        else:
            findings = partial(one.function, node, limits)
        yield from _named(one, findings, (node.name,))


def _named(
    one: Check, findings: Callable[[], Iterable[Finding]], nodes: tuple[str, ...]
) -> list[Finding]:
    """Findings with id and nodes; a check that breaks or says nothing has found out nothing."""
    try:
        drafts = list(findings())
    except Exception as error:  # noqa: BLE001 - check boundary: the others still speak
        drafts = [
            unknown(f"fault in this check, please report it: {type(error).__name__}: {error}")
        ]
    if not drafts:
        drafts = [unknown("the check said nothing")]
    return [dataclasses.replace(draft, id=one.id, nodes=draft.nodes or nodes) for draft in drafts]


@dataclass(frozen=True, slots=True)
class Majority:
    """The most common value of the fleet; `value` is None where two are equally common."""

    value: Any
    count: int
    values: Mapping[str, Any]

    def groups(self) -> list[tuple[Any, tuple[str, ...]]]:
        """(value, nodes), most common first."""
        found: dict[Any, list[str]] = {}
        for node, value in self.values.items():
            found.setdefault(value, []).append(node)
        return sorted(
            ((value, tuple(nodes)) for value, nodes in found.items()), key=lambda one: -len(one[1])
        )


def majority(values: Mapping[str, Any]) -> Majority:
    """What most nodes have; values must be hashable."""
    ranked = Counter(values.values()).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return Majority(None, ranked[0][1] if ranked else 0, values)
    return Majority(ranked[0][0], ranked[0][1], values)


def compare(
    fleet: Fleet,
    read: Callable[[NodeFacts], Any],
    what: str,
    *,
    fix: str | None = None,
    because: str | None = None,
    bad: Callable[..., Finding] = fail,
    expected: str | None = None,
) -> Iterator[Finding]:
    """Findings about a value that all nodes should share: the majority is right.

    `read` gives a hashable value, `Unknown`, or None for a node that the question leaves out.
    `because` is the check that already says why a value is unknown. `expected` is what a profile
    says; then the majority has no voice.
    """
    values: dict[str, Any] = {}
    without: list[str] = []
    for node in fleet.reached:
        value = read(node)
        if value == NOT_ASKED:
            yield skip(NOT_ASKED.reason, nodes=(node.name,))
        elif isinstance(value, Unknown):
            yield unknown(f"{what}: {value.reason}", nodes=(node.name,), because=because)
        elif value is not None:
            values[node.name] = value
        else:
            without.append(node.name)
    if not values:
        if not any(isinstance(read(node), Unknown) for node in fleet.reached):
            yield skip(f"{what}: no node has one")
        return
    if without:
        yield skip(f"{what}: nothing to compare here", nodes=tuple(without))
    most = majority(values)
    groups = most.groups()
    if expected is not None:
        for value, nodes in groups:
            same: dict[str, Any] = {"nodes": nodes, "value": str(value), "source": "profile"}
            if str(value) == expected:
                yield passed(f"{what} {value}", **same)
            else:
                evidence = f"{what} {value}, the profile says {expected}"
                yield bad(evidence, expected=expected, fix=fix, **same)
        return
    if len(groups) == 1:
        nodes = tuple(values)
        peers = f"all {len(nodes)} nodes" if len(nodes) > 1 else "one node, no peer"
        yield passed(
            f"{what} {groups[0][0]} ({peers})",
            nodes=nodes,
            value=str(groups[0][0]),
            source="majority",
        )
        return
    if most.value is None:
        seen = ", ".join(f"{value} on {len(nodes)}" for value, nodes in groups)
        yield bad(f"{what} differs without a majority: {seen}", nodes=tuple(values), fix=fix)
        return
    for value, nodes in groups:
        if value == most.value:
            yield passed(f"{what} {value}", nodes=nodes, value=str(value), source="majority")
        else:
            yield bad(
                f"{what} {value}, {most.count} nodes have {most.value}",
                nodes=nodes,
                value=str(value),
                expected=str(most.value),
                source="majority",
                fix=fix,
            )


def record(report: Report) -> dict[str, str]:
    """What a good cluster shows, by id, for a profile: values that all compared nodes agree on."""
    found: dict[str, set[str]] = {}
    for one in report.findings:
        if one.source in ("majority", "profile") and one.value is not None:
            found.setdefault(one.id, set()).add(one.value)
    return {id: values.pop() for id, values in sorted(found.items()) if len(values) == 1}
