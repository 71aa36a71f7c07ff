"""Runs the checks over a fleet of facts. No IO: facts in, findings out."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Collection, Iterator

from checks import rules
from checks.facts import NOT_ASKED, Fleet, NodeFacts, Unknown
from checks.finding import Finding, Found, Report, Verdict, drafts, lacking, override, skip, unknown
from checks.profile import Profile
from checks.registry import Check, registry


def all_checks() -> dict[str, Check]:
    """Every check by id, in order of id; imports checks/rules/* on first use."""
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return dict(sorted(registry.items()))


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
    return Report(tuple(node.name for node in fleet.nodes), tuple(findings), seconds, advisory)


def _choose(checks: Collection[str], names: Collection[str]) -> set[str]:
    chosen: set[str] = set()
    for name in names:
        found = {id for id in checks if id == name or id.split(".")[0] == name}
        if not found:
            raise KeyError(name)
        chosen |= found
    return chosen


def _run(one: Check, fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Findings of a check with id, nodes and fix; one that fails or finds nothing is UNKNOWN."""
    # A node that was not reached has one finding, ssh.reachable: twenty UNKNOWN would hide it.
    asked = fleet.nodes if one.id == "ssh.reachable" else fleet.reached
    groups: list[tuple[NodeFacts, ...]] = [(node,) for node in asked]
    if one.scope in ("fleet", "active"):
        groups = [asked] if asked and (one.scope == "fleet" or fleet.active) else []
    for members in groups:
        try:
            found = drafts(_call, one, fleet, limits, members[0])
        except Exception as error:  # noqa: BLE001 - check boundary: the others go on
            text = f"fault in this check, please report it: {type(error).__name__}: {error}"
            found = [unknown(text)]
        names = tuple(node.name for node in members)
        for draft in found or [unknown("the check found nothing")]:
            fix = draft.fix
            if fix is None and draft.verdict in (Verdict.WARN, Verdict.FAIL):
                fix = one.fix
            yield dataclasses.replace(draft, id=one.id, nodes=draft.nodes or names, fix=fix or None)


def _call(one: Check, fleet: Fleet, limits: Profile, node: NodeFacts) -> Found:
    if one.scope == "launch" and fleet.launch is None:
        return skip("nothing to launch was named")
    known = {
        "node": node,
        "fleet": fleet,
        "limits": limits,
        "launch": fleet.launch,
        "active": fleet.active,
        "expected": limits.expected.get(one.id),
    }
    known |= {name: getattr(node, name) for name in one.arguments if name not in known}
    arguments = {name: known[name] for name in one.arguments}
    lacks = [value for value in arguments.values() if isinstance(value, Unknown)]
    if lacks:
        return lacking(NOT_ASKED if NOT_ASKED in lacks else lacks[0])
    return one.function(**arguments)


def record(report: Report) -> dict[str, str]:
    """Values on which all compared nodes agree, by id: the `expected` of a profile."""
    found: dict[str, set[str]] = {}
    for one in report.findings:
        if one.source in ("majority", "profile") and one.value is not None:
            found.setdefault(one.id, set()).add(one.value)
    return {id: values.pop() for id, values in sorted(found.items()) if len(values) == 1}
