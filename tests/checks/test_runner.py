"""Registration, majority, exit codes: what holds for every check."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re

import pytest

from checks import registry as table
from checks import rules, runner
from checks.compare import majority
from checks.facts import Fleet, LaunchNeeds, Unknown, Unreached
from checks.finding import Finding, Report, Verdict, fail, passed, unknown, warn
from checks.profile import Profile, ProfileError, profile_from
from checks.registry import Check, check
from checks.runner import all_checks, run_checks
from tests.checks.sections import node

NEEDS = LaunchNeeds(
    python="/venv/bin/python", port=29500, slots={}, device="cuda", run_dir_parent="/data",
    min_free_bytes=1 << 30,
)  # fmt: skip
DEAD = Unreached("banner", 5.0, "the server sent nothing", "look at sshd")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    """Checks of this test only."""
    monkeypatch.setattr(table, "registry", {})
    monkeypatch.setattr(runner, "all_checks", lambda: dict(table.registry))
    return table.registry


def test_every_check_has_a_proper_id_a_summary_and_every_file_has_one() -> None:
    checks = all_checks()
    for id, one in checks.items():
        assert re.fullmatch(r"[a-z]+\.[a-z0-9_]+", id)
        assert one.summary, id
    homes = {one.function.__module__ for one in checks.values()}
    for module in pkgutil.iter_modules(rules.__path__):
        name = f"{rules.__name__}.{module.name}"
        importlib.import_module(name)
        assert name in homes, f"{name} registers no check"


def test_two_checks_of_one_name_are_refused(registry) -> None:
    def one(node, limits):
        yield passed("x")

    check("a.b")(one)
    one.__module__ = "elsewhere"
    with pytest.raises(ValueError, match="two checks"):
        check("a.b")(dataclasses.replace)


def test_needed_fact_that_is_unknown_makes_the_check_unknown(registry) -> None:
    @check("a.b")
    def never(memory):
        raise AssertionError("must not run")
        yield

    report = run_checks(Fleet((node("n1", memory=Unknown("meminfo is empty")),)))
    assert [(one.verdict, one.evidence) for one in report.findings] == [
        (Verdict.UNKNOWN, "meminfo is empty")
    ]
    assert report.exit_code == 3


def test_docstring_of_a_check_has_its_texts_and_the_fix_of_its_findings(registry) -> None:
    @check("a.b")
    def bad(node):
        """All is well.

        Why: It often
            is not.
        Bad: WARN always
        How: by
            looking
        Fix: do this  (or that)
        """
        return [warn("1"), warn("2", fix="other"), warn("3", fix=""), unknown("4")]

    one = registry["a.b"]
    assert (one.summary, one.why) == ("All is well.", "It often is not.")
    assert (one.bad, one.how) == ("WARN always", "by looking")
    fixes = [found.fix for found in run_checks(Fleet((node("n1"),))).findings]
    assert fixes == ["do this  (or that)", "other", None, None]


def test_check_that_breaks_or_says_nothing_is_unknown_and_the_others_speak(registry) -> None:
    @check("a.broken")
    def broken(node):
        raise RuntimeError("boom")
        yield

    @check("a.good")
    def good(node, limits):
        yield passed("fine")

    @check("a.silent")
    def silent(node, limits):
        return
        yield

    report = run_checks(Fleet((node("n1"),)))
    verdicts = {one.id: one.verdict for one in report.findings}
    assert verdicts == {
        "a.broken": Verdict.UNKNOWN, "a.good": Verdict.PASS, "a.silent": Verdict.UNKNOWN,
    }  # fmt: skip
    assert "RuntimeError: boom" in report.findings[0].evidence


def test_dead_node_has_one_finding_and_is_never_good() -> None:
    report = run_checks(Fleet((node("n1"), node("n2", unreached=DEAD)), NEEDS))
    about = [
        one for one in report.findings if "n2" in one.nodes and one.verdict is not Verdict.PASS
    ]
    assert [(one.id, one.verdict) for one in about] == [("ssh.reachable", Verdict.UNKNOWN)]
    assert "banner" in about[0].evidence
    assert "n2" in report.bad_nodes


def test_fleet_of_dead_nodes_is_no_go() -> None:
    report = run_checks(Fleet((node("n1", unreached=DEAD), node("n2", unreached=DEAD)), NEEDS))
    assert (report.exit_code, report.go, report.good_nodes) == (3, False, ())


def finding(verdict: Verdict, *nodes: str) -> Finding:
    return Finding("a.b", verdict, nodes, "e")


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        ([Verdict.PASS, Verdict.SKIP], 0),
        ([Verdict.WARN, Verdict.PASS], 0),
        ([Verdict.UNKNOWN, Verdict.WARN], 3),
        ([Verdict.FAIL, Verdict.UNKNOWN], 1),
    ],
)
def test_exit_code_is_the_table(verdicts: list[Verdict], code: int) -> None:
    report = Report(("n1",), tuple(finding(verdict, "n1") for verdict in verdicts))
    assert report.exit_code == code
    assert report.go == (code == 0)


def test_equal_findings_fold_in_hostfile_order_worst_first() -> None:
    report = Report(
        ("n2", "n1", "n3"),
        (
            finding(Verdict.PASS, "n3"), finding(Verdict.FAIL, "n1"), finding(Verdict.FAIL, "n2"),
        ),
    )  # fmt: skip
    assert [(one.verdict, one.nodes) for one in report.folded()] == [
        (Verdict.FAIL, ("n2", "n1")), (Verdict.PASS, ("n3",)),
    ]  # fmt: skip
    assert report.bad_nodes == ("n2", "n1")
    assert report.good_nodes == ("n3",)


def test_of_one_machine_with_two_names_one_is_kept() -> None:
    def found(id: str, *nodes: str) -> Finding:
        return Finding(id, Verdict.FAIL, nodes, "bad")

    twice = found("host.same_machine", "n1", "n3")
    nodes = ("n1", "n2", "n3")
    assert Report(nodes, (twice,)).to_drop == ("n3",)
    assert Report(nodes, (twice, found("gpu.count", "n1"))).to_drop == ("n1",)
    every = (twice, found("gpu.count", "n1", "n3"))
    assert Report(nodes, every).to_drop == Report(nodes, every).bad_nodes == ("n1", "n3")


def test_what_only_follows_is_not_told_twice_but_stays_in_the_report() -> None:
    root = Finding("gpu.driver", Verdict.FAIL, ("n1",), "driver failed")
    after = Finding("gpu.busy", Verdict.UNKNOWN, ("n1",), "driver failed", because="gpu.driver")
    report = Report(("n1",), (root, after))
    assert report.folded() == [root, after]
    assert report.folded(following=False) == [root]
    assert report.counts()[Verdict.UNKNOWN] == 0
    # With the cause left out by the user it speaks for itself.
    alone = Report(("n1",), (after,))
    assert alone.folded(following=False) == [after]
    assert (alone.counts()[Verdict.UNKNOWN], alone.exit_code) == (1, 3)


def test_majority_and_tie() -> None:
    assert majority([8, 8, 7]) == 8
    assert majority([7, 8, 8]) == 8
    assert majority([8, 7]) is None
    assert majority([]) is None


def test_only_and_without_take_ids_and_subjects() -> None:
    fleet = Fleet((node("n1"),), NEEDS)
    assert {one.id for one in run_checks(fleet, only=["ssh.reachable"]).findings} == {
        "ssh.reachable"
    }
    ids = {one.id for one in run_checks(fleet, only=["gpu"], without=["gpu.busy"]).findings}
    assert {"gpu.driver", "gpu.count_majority", "gpu.xid"} <= ids
    assert all(id.startswith("gpu.") and id != "gpu.busy" for id in ids)
    with pytest.raises(KeyError):
        run_checks(fleet, only=["gup"])


def test_profile_can_silence_and_change_severity(registry) -> None:
    @check("a.b")
    def bad(node, limits):
        yield fail("bad")

    fleet = Fleet((node("n1"),))
    silenced = run_checks(fleet, Profile(silence=("a.b",)))
    assert [one.verdict for one in silenced.findings] == [Verdict.SKIP]
    assert "silenced: bad" in silenced.findings[0].evidence
    softer = run_checks(fleet, profile_from({"severity": {"a.b": "WARN"}}))
    assert softer.exit_code == 0


def test_profile_refuses_what_it_does_not_know() -> None:
    assert profile_from({"disk-used-warn": 0.5}).disk_used_warn == 0.5
    assert profile_from({"av_bad_to": [14, 3]}).av_bad_to == (14, 3)
    for data in ({"disk_usd": 1}, {"disk_used_warn": "much"}, {"severity": {"a.b": "BAD"}}):
        with pytest.raises(ProfileError):
            profile_from(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", -1, True])
def test_a_threshold_that_nothing_can_cross_is_refused(value: object) -> None:
    with pytest.raises(ProfileError, match="a threshold is a number from 0"):
        profile_from({"clock_skew_fail_s": value})


def test_report_is_json() -> None:
    import json

    report = run_checks(Fleet((node("n1"), node("n2", unreached=DEAD)), NEEDS), seconds=1.23456)
    data = json.loads(json.dumps(report.to_json()))
    assert data["verdict"] == "NO-GO"
    assert data["bad_nodes"] == ["n1", "n2"]
    keys = {
        "id",
        "verdict",
        "nodes",
        "evidence",
        "value",
        "expected",
        "source",
        "fix",
        "action",
        "because",
    }
    assert set(data["checks"][0]) == keys
