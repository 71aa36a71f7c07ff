"""Ask every node what it is, and judge the fleet: the library behind `preflight`, `launch`, `demo`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.facts import Fleet, LaunchNeeds
from checks.finding import Report, Verdict
from checks.profile import Profile
from checks.runner import run_checks
from clusterctl.census import read_fleet
from clusterctl.fanout import Fanout, NodeResult, in_order
from clusterctl.nodes import Node, fold
from clusterctl.payload.ask import ask, tool_timeout
from clusterctl.transport.base import Limits, Transport

Result = NodeResult[dict[str, Any]]


def run_preflight(
    nodes: Sequence[Node],
    transport: Transport,
    limits: Limits,
    needs: LaunchNeeds | None = None,
    width: int = 64,
    on_result: Callable[[Result], None] | None = None,
    *,
    profile: Profile | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    sweep: Callable[[Fanout[dict[str, Any]], int], Iterator[Result]] | None = None,
) -> Report:
    """One census over all nodes, then all checks; a node that gave no answer is in the report.

    `needs` adds what a launch asks for. `on_result` sees each node as it answers; `sweep` may
    wrap the fan-out for progress (`Output.sweep`). Raises `KeyError` for an unknown check id in
    `only` or `without`.
    """
    begun = time.monotonic()
    args: dict[str, Any] = {"tool_timeout_s": tool_timeout(limits)}
    if needs is not None:
        args |= {"python": needs.python, "ports": [needs.port], "paths": [needs.run_dir_parent]}
    fanout = ask(nodes, transport, "census", args, limits=limits, width=width)
    results = []
    for result in sweep(fanout, len(nodes)) if sweep else fanout:
        results.append(result)
        if on_result is not None:
            on_result(result)
    fleet = Fleet(read_fleet(in_order(nodes, results)), needs)
    seconds = time.monotonic() - begun
    return run_checks(fleet, profile, only=only, without=without, seconds=seconds)


def headline(report: Report) -> str:
    """`GO: 15 checks on 24 nodes`, `NO-GO: 1 fail, 3 warn; -x n5 to go with 23 nodes`."""
    counts = report.counts()
    bad_kinds = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
    words = ", ".join(f"{counts[kind]} {kind.value.lower()}" for kind in bad_kinds if counts[kind])
    if report.go:
        checks = len({finding.id for finding in report.findings})
        count = len(report.nodes)
        went = f"{checks} check{'s' * (checks != 1)} on {count} node{'s' * (count != 1)}"
        return f"GO: {went}{', ' + words if words else ''}"
    good, bad = report.good_nodes, report.bad_nodes
    if good and bad:
        words += f"; -x {fold(bad)} to go with {len(good)} node{'s' * (len(good) != 1)}"
    return f"NO-GO: {words}"


def table_rows(report: Report, everything: bool = False) -> list[tuple[Verdict, str, str, str]]:
    """(verdict, id, node set, evidence) of what is not PASS, equal ones folded, worst first.

    `everything` adds PASS, SKIP, and what only follows from another row.
    """
    rows: dict[tuple[Verdict, str, str], list[str]] = {}
    for one in report.folded(following=everything):
        if everything or one.verdict not in (Verdict.PASS, Verdict.SKIP):
            rows.setdefault((one.verdict, one.id, one.evidence), []).extend(one.nodes)
    return [(verdict, id, fold(nodes), text) for (verdict, id, text), nodes in rows.items()]


def fix_lines(report: Report) -> list[str]:
    """`fix n5: lspci | grep -i nvidia  [reboot]` for each bad finding that has one, each once.

    What could not be found out gets a `hint` instead: nobody knows what there is to fix.
    """
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for one in report.folded(following=False):
        if one.fix and one.verdict not in (Verdict.PASS, Verdict.SKIP):
            action = f"  [{one.action.value}]" if one.action.value != "none" else ""
            word = "hint" if one.verdict is Verdict.UNKNOWN else "fix"
            lines.setdefault((word, one.fix + action), {}).update(dict.fromkeys(one.nodes))
    return [f"{word} {fold(nodes)}: {text}" for (word, text), nodes in lines.items()]
