"""Every check: silent about a healthy fleet, and about the one bad node says what it should."""

from __future__ import annotations

import pytest

from checks.finding import Verdict
from checks.runner import all_checks, run_checks
from tests.checks import healthy
from tests.checks.cases import CASES, GOOD, Case

CONTENT = (Verdict.PASS, Verdict.SKIP)


def test_every_check_has_a_bad_case_and_no_case_is_of_a_check_that_is_gone() -> None:
    for id in sorted(all_checks()):
        print(
            f"{id:30} good, {', '.join(f'{c.verdict.value} {c.name}' for c in CASES.get(id, []))}"
        )
    assert {id for id, cases in CASES.items() if cases} == set(all_checks())
    assert len(all_checks()) >= 50


@pytest.mark.parametrize("id", sorted(all_checks()))
def test_healthy_nodes_pass(id: str) -> None:
    report = run_checks(GOOD.get(id, healthy.fleet()), only=[id])
    bad = [
        (one.verdict, one.nodes, one.evidence)
        for one in report.findings
        if one.verdict not in CONTENT
    ]
    assert not bad
    assert any(one.verdict is Verdict.PASS for one in report.findings), "it only skips"
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("id", "case"),
    [
        pytest.param(id, case, id=f"{id}-{case.name}")
        for id, cases in CASES.items()
        for case in cases
    ],
)
def test_bad_node_is_named_and_no_other(id: str, case: Case) -> None:
    report = run_checks(case.fleet, only=[id])
    about = {}
    for one in report.findings:
        for node in one.nodes:
            about.setdefault(node, []).append(one)
    worst = [one for one in about[case.node] if one.verdict not in CONTENT]
    assert case.verdict in {one.verdict for one in worst}, about[case.node]
    allowed = {case.node} | ({"n4"} if id == "host.same_machine" else set())
    others = [one for node, found in about.items() if node not in allowed for one in found]
    assert not [one for one in others if one.verdict not in CONTENT]
    for one in worst:
        assert one.evidence
        assert len(one.evidence) < 300
        assert "\n" not in one.evidence
        if one.verdict is Verdict.FAIL:
            assert one.fix, f"{id} names no fix"


def test_a_healthy_fleet_has_no_finding_at_all() -> None:
    report = run_checks(healthy.fleet())
    assert [(one.id, one.evidence) for one in report.findings if one.verdict not in CONTENT] == []
    assert (report.exit_code, report.go) == (0, True)


def test_advisory_unknown_is_said_and_stops_no_launch() -> None:
    case = next(case for case in CASES["gpu.xid"] if case.verdict is Verdict.UNKNOWN)
    report = run_checks(case.fleet, only=["gpu.xid"])
    assert (report.exit_code, report.go, report.bad_nodes) == (3, True, ())
    dead = run_checks(CASES["ssh.reachable"][0].fleet, only=["ssh.reachable"])
    assert (dead.exit_code, dead.go, dead.bad_nodes) == (3, False, ("n3",))
