"""What is entered of launches and checks, what counts, and what preflight is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.facts import Fleet, History, NodeFacts, Unknown
from checks.finding import Finding, Report, Verdict
from checks.profile import Profile
from checks.rules.history import history as rule
from checks.runner import run_checks
from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.ledger.entries import CHECK, EXCLUDED, FAILED, INCIDENT, PASSED, REPAIR, Entry
from clusterctl.ledger.file import append
from clusterctl.ledger.history import (
    COLUMNS,
    entry_lines,
    history_of,
    summaries,
    summary_row,
    with_history,
)
from clusterctl.ledger.write import of_checks, of_incident
from tests.checks.healthy import full

NOW, DAY = 1_795_269_600.0, 86400.0
WHERE = ("003-x", "id1", 2)


def incident(kind: Kind = Kind.XID, node: str | None = "n7", **more: object) -> Entry | None:
    said = Evidence(Source.KERNEL, "NVRM: Xid 79")
    cause = Cause(kind, "79" if kind is Kind.XID else "", node, 3, said, **more)  # type: ignore[arg-type]
    return of_incident(cause.to_json(), WHERE, NOW)


def test_root_on_a_node_is_entered_with_its_class_run_and_evidence() -> None:
    assert incident(is_of_node=True) == Entry(
        "n7", INCIDENT, "NVRM: Xid 79", NOW, "launch", "xid-79", "003-x", "id1", 2, counts=True
    )


@pytest.mark.parametrize(
    ("kind", "more"),
    [(Kind.USER_STOP, {}), (Kind.UNKNOWN, {}), (Kind.XID, {"node": None}), (Kind.PEER_LOST, {"is_root": False})],
)  # fmt: skip
def test_victims_and_what_names_no_node_are_not_entered(
    kind: Kind, more: dict[str, object]
) -> None:
    assert incident(kind, **more) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "of_node", "counts"),
    [(Kind.WORKER_EXCEPTION, False, False), (Kind.CUDA_OOM, False, False), (Kind.SIGNAL, False, True),
     (Kind.ENVIRONMENT, True, True), (Kind.HANG, False, True)],
)  # fmt: skip
def test_what_the_program_does_again_on_any_node_counts_against_none(
    kind: Kind, of_node: bool, counts: bool
) -> None:
    entry = incident(kind, is_of_node=of_node)
    assert entry is not None
    assert entry.counts is counts


def test_what_people_do_counts_against_no_node() -> None:
    """A kill by hand, a torch without CUDA, a folder that is not mounted, a full disk."""
    for signal, counts in (("9", False), ("15", False), ("7", True), ("11", True)):
        cause = Cause(Kind.SIGNAL, signal, "n7", 3, Evidence(Source.EXIT_CODE, "killed"))
        entry = of_incident(cause.to_json(), WHERE, NOW)
        assert entry is not None
        assert entry.counts is counts, signal
    ids = ("software.cuda_driver", "storage.mounts", "gpu.busy", "gpu.xid", "ib.links")
    found = of_checks(report(*(finding(id, Verdict.FAIL, "n2") for id in ids)), [], NOW)
    assert {one.what for one in found if one.counts} == {"gpu.xid", "ib.links"}
    by_hand = [fault(day, what="signal-9") for day in (1.0, 2.0, 3.0)]
    assert told(*by_hand).verdict is PASS  # entered by an older version
    again = told(*(fault(day) for day in (1.0, 2.0, 3.0)))
    assert again.fix is not None
    assert "-w n7 --repaired" in again.fix


def finding(id: str, verdict: Verdict, *nodes: str, because: str | None = None) -> Finding:
    return Finding(id, verdict, nodes, f"{id} of {nodes}", because=because)


def report(*findings: Finding) -> Report:
    return Report(("n1", "n2", "n3"), findings)


def entered(found: list[Entry]) -> list[tuple[str, str, str]]:
    return [(one.node, one.what, one.state) for one in found]


FAIL, PASS, WARN, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.WARN, Verdict.UNKNOWN


def test_check_is_entered_when_it_begins_and_when_it_ends_to_fail() -> None:
    known: list[Entry] = []
    for verdict, expected in (
        (FAIL, [("n2", "gpu.xid", FAILED)]), (FAIL, []), (UNKNOWN, []),
        (WARN, [("n2", "gpu.xid", PASSED)]), (PASS, []), (FAIL, [("n2", "gpu.xid", FAILED)]),
    ):  # fmt: skip
        found = of_checks(report(finding("gpu.xid", verdict, "n2")), known, NOW)
        assert entered(found) == expected
        known += found


def test_check_that_was_not_made_changes_nothing() -> None:
    known = [Entry("n2", CHECK, "x", NOW, what="gpu.xid", state=FAILED)]
    assert of_checks(report(finding("ib.state", PASS, "n2")), known, NOW) == []


def test_checks_of_the_launch_of_all_nodes_and_what_follows_are_not_entered() -> None:
    found = of_checks(
        report(
            finding("launch.files", FAIL, "n1"),
            finding("host.history", FAIL, "n1"),
            finding("software.python", FAIL, "n1", "n2", "n3"),
            finding("storage.mount", FAIL, "n2"),
            finding("storage.free", FAIL, "n2", because="storage.mount"),
            finding("time.skew", FAIL, "n3", because="storage.mount"),
        ),
        [],
        NOW,
    )
    assert entered(found) == [("n2", "storage.mount", FAILED), ("n3", "time.skew", FAILED)]


def fault(days: float, run: str = "r1", what: str = "xid-79", **more: object) -> Entry:
    given = {"counts": True, **more}
    return Entry("n7", INCIDENT, "", NOW - days * DAY, "launch", what, "003-x", run, **given)  # type: ignore[arg-type]


def told(*entries: Entry, limits: Profile | None = None) -> Finding:
    found = rule(full("n7"), history_of(entries, 0, NOW), limits or Profile())
    assert isinstance(found, Finding)
    return found


def test_node_that_failed_again_and_again_is_warned_of_with_how_often() -> None:
    found = told(
        fault(13, "r1"), fault(9, "r1"), fault(5, "r2"), fault(4, "r3"),
        Entry("n7", EXCLUDED, "x", NOW - 9 * DAY), Entry("n7", EXCLUDED, "x", NOW - 4 * DAY),
    )  # fmt: skip
    assert found.verdict is WARN
    assert found.evidence == (
        "4 incidents in 3 runs in the last 14 days, last: xid-79 on 2026-11-17; excluded twice"
    )


@pytest.mark.parametrize(
    "entries",
    [
        [fault(1), fault(2)],
        [fault(1), fault(2), fault(20)],
        [fault(1), fault(2), fault(3, counts=False)],
        [fault(3), fault(2), fault(1), Entry("n7", REPAIR, "new GPU", NOW - 0.5 * DAY)],
        [fault(1), Entry("n7", CHECK, "", NOW, what="gpu.xid", state=FAILED, counts=True),
         Entry("n7", CHECK, "", NOW, what="gpu.xid", state=PASSED)],
    ],
)  # fmt: skip
def test_few_old_foreign_or_repaired_faults_are_no_warning(entries: list[Entry]) -> None:
    assert told(*entries).verdict is PASS


def test_limits_are_those_of_the_profile() -> None:
    strict = Profile(history_days=2, history_faults_warn=1)
    assert told(fault(1), limits=strict).verdict is WARN
    assert told(fault(3), limits=strict).verdict is PASS
    assert told(limits=Profile(history_faults_warn=0)).verdict is PASS


def test_ledger_that_cannot_be_read_is_not_known_and_stops_nothing(tmp_path: Path) -> None:
    facts = (NodeFacts("n1"), NodeFacts("n7"))
    (tmp_path / "folder").mkdir()
    (one, _) = with_history(tmp_path / "folder", facts, NOW)
    assert isinstance(one.history, Unknown)
    found = run_checks(Fleet((one,)), only=["host.history"])
    assert [finding.verdict for finding in found.findings] == [UNKNOWN]
    assert found.go
    path = tmp_path / "x.jsonl"
    append(path, [fault(1), fault(2), fault(3)])
    one, other = with_history(path, facts, NOW)
    assert one.history == History()
    assert isinstance(other.history, History)
    assert [known.age_s for known in other.history.faults] == [3 * DAY, 2 * DAY, DAY]


def test_summary_has_a_row_of_each_node_most_faults_first() -> None:
    check = Entry("n1", CHECK, "no link", NOW, what="ib.state", state=FAILED)
    first, second = summaries(
        [check, fault(2, "r1"), fault(1, "r2"), Entry("n7", REPAIR, "x", NOW)]
    )
    assert summary_row(first, {"n7"}) == [
        "n7",
        "2",
        "2",
        "0",
        "0",
        "2026-11-21",
        "xid-79 on 2026-11-20",
    ]
    assert summary_row(second, {"n7"})[0] == "n1 (not in hostfile)"
    assert len(summary_row(second, ())) == len(COLUMNS)


def test_lines_are_80_columns_and_show_control_characters() -> None:
    made = [
        Entry("node-007", INCIDENT, "word " * 60 + "\x1b[31m", NOW, "launch", "xid-79", "003-x")
    ]
    shown = list(entry_lines(made))
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("2026-11-21T")
    assert "\x1b" not in "".join(shown)
