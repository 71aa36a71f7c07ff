"""Lines of incidents.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.launch.incidents import MOST_CONSEQUENCES, Incident, record
from clusterctl.launch.journal import EVENTS_FILE, INCIDENTS_FILE, Journal
from clusterctl.launch.root_cause import Judgement
from dashboards.feeds.run_dir import journal_event
from dashboards.model.run_progress import is_bad, one_line
from tests.clusterctl.launch.harness import read_lines

ROOT = Cause(Kind.MISSING_FILE, "", "node-1", 0, Evidence(Source.RANK_LOG, "no s3cret.csv"))
VICTIM = Cause(Kind.PEER_LOST, "", "node-2", 1, is_root=False)


def written(run_dir: Path, incident: Incident) -> dict[str, object]:
    record(Journal(run_dir), incident, lambda text: text.replace("s3cret", "***"))
    (line,) = read_lines(run_dir / INCIDENTS_FILE)
    return line


def test_crash_has_its_cause_its_victims_and_what_was_done(tmp_path: Path) -> None:
    incident = Incident("rank 0 ended", Judgement(ROOT, (VICTIM,) * 99), "stopped", step=4)
    line = written(tmp_path, incident)
    assert (line["incident"], line["class"], line["node"], line["rank"]) == (
        "crash", "missing-file", "node-1", 0,
    )  # fmt: skip
    assert line["evidence"] == {"source": "rank log", "line": "no ***.csv"}
    assert (line["step"], line["attempt"], line["action"]) == (4, 1, "stopped")
    assert line["root"]["is_root"] is line["root"]["is_deterministic"] is True  # type: ignore[index]
    assert len(line["consequences"]) == MOST_CONSEQUENCES  # type: ignore[arg-type]
    assert line["consequence_count"] == 99


def test_dashboards_show_a_crash_as_a_problem_in_one_line(tmp_path: Path) -> None:
    written(tmp_path, Incident("rank 0 ended", Judgement(ROOT), "stopped", step=4))
    (line,) = (tmp_path / EVENTS_FILE).read_bytes().splitlines()
    event = journal_event(line)
    assert event is not None
    assert is_bad(event)
    assert one_line(event) == "missing-file on rank 0 (node-1): no ***.csv"
    assert (event.step, event.data["class"], event.data["node"]) == (4, "missing-file", "node-1")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Kind.HANG, "hang"), (Kind.NODE_UNREACHABLE, "node-lost"), (Kind.USER_STOP, "user-stop")],
)
def test_type_follows_the_class(kind: Kind, name: str, tmp_path: Path) -> None:
    assert written(tmp_path, Incident("x", Judgement(Cause(kind)), "stopped"))["incident"] == name


def test_disk_that_is_full_raises_nothing_and_is_in_the_journal(tmp_path: Path) -> None:
    (tmp_path / INCIDENTS_FILE).mkdir()
    record(Journal(tmp_path), Incident("x", Judgement(ROOT), "stopped"))
    names = [json.loads(one)["event"] for one in (tmp_path / EVENTS_FILE).read_text().splitlines()]
    assert names == ["incident", "error"]


@pytest.mark.parametrize(
    "cause",
    [
        Cause(Kind.WORKER_EXCEPTION, "ValueError", "node-1", 3, ROOT.evidence, file="train.py:45"),
        Cause(Kind.SIGNAL, "9", "node-1", 0, note="possibly out of memory; unconfirmed"),
        Cause(Kind.HANG, "data", is_root=False),
        Cause(Kind.XID, "79", "node-2", is_of_node=True),
        Cause(Kind.UNKNOWN),
    ],
    ids=lambda cause: cause.name,
)
def test_next_supervisor_reads_the_cause_that_was_written(cause: Cause) -> None:
    assert Cause.from_json(json.loads(json.dumps(cause.to_json()))) == cause
