"""What agents report of their kernels is the cause of a run's end, by the evidence of the kernel."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launch.journal import EVENTS_FILE, INCIDENTS_FILE, Journal
from clusterctl.launch.node_reports import FACTS, Reports
from clusterctl.launch.state import NodeState, RunFailed, RunState
from clusterctl.ledger.entries import path_beside
from clusterctl.ledger.file import read
from clusterctl.remote.inbox import NodeMessage
from tests.clusterctl.hostile.test_agent import HostileLaunch, line
from tests.clusterctl.launch.harness import WAIT, read_lines
from tests.clusterctl.launch.test_saved_run import saved

XID = {
    "type": "fact", "kind": "xid", "detail": "79", "age_s": 2.5,
    "text": "NVRM: Xid (PCI:0000:44:00): 79, pid=8, GPU has fallen off the bus.",
}  # fmt: skip
OOM = {
    "type": "fact", "kind": "oom-kernel", "rank": 1, "age_s": 0.0,
    "text": "oom_kill in /sys/fs/cgroup/memory/user.slice/memory.oom_control grew from 0 to 1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fact", "code", "name", "of_node"), [(XID, 1, "xid-79", True), (OOM, -9, "oom-kernel", False)]
)
def test_fact_of_a_kernel_is_the_cause(
    bench, fact: dict[str, Any], code: int, name: str, of_node: bool
) -> None:
    ended = {"type": "rank_ended", "rank": 1, "code": code, "how": f"ended with {code}", "tail": []}
    over = [{"type": "ended", "code": 1, "tail": []}, {"type": "gone", "left": []}]
    plan = bench.plan(WAIT)
    excluded = bench.directory / f"{name}.cluster" / "exclude.toml"
    excluded.parent.mkdir()
    rules = bench.rules(plan, max_restarts=0, exclude_file=excluded)
    lines = iter([line(one) for one in (fact, ended, *over)])
    result = HostileLaunch(plan, lines, rules).result(60)
    assert result.exit_code == 1
    (incident,) = read_lines(plan.run_dir / INCIDENTS_FILE)
    assert (incident["class"], incident["node"]) == (name, "node-2")
    assert incident["evidence"] == {"source": "kernel", "line": fact["text"]}
    assert incident["root"]["is_of_node"] is of_node
    history = read(path_beside(excluded)).entries
    assert [(one.node, one.kind) for one in history] == [
        ("node-2", "incident"), *[("node-2", "excluded")] * of_node
    ]  # fmt: skip
    first = history[0]
    assert (first.what, first.text, first.run, first.counts) == (
        name,
        fact["text"],
        "001-test",
        of_node,  # memory that a job used up is no fault of its node
    )
    assert (first.run_id, first.attempt) == (plan.run_id, 1)
    assert any(f"{fact['kind']}: {fact['text']}" == event["text"] for event in _facts(plan))


def test_history_that_cannot_be_written_is_told_and_ends_nothing(bench) -> None:
    ended = {"type": "rank_ended", "rank": 1, "code": 1, "how": "ended with 1", "tail": []}
    over = [{"type": "ended", "code": 1, "tail": []}, {"type": "gone", "left": []}]
    plan = bench.plan(WAIT)
    rules = bench.rules(
        plan, max_restarts=0, exclude_file=bench.directory / "none" / "exclude.toml"
    )
    lines = iter([line(one) for one in (XID, ended, *over)])
    result = HostileLaunch(plan, lines, rules).result(60)
    assert (result.exit_code, result.cause and result.cause["class"]) == (1, "xid-79")
    errors = [
        one["text"] for one in read_lines(plan.run_dir / "events.jsonl") if one["event"] == "error"
    ]
    assert any("not entered in the history of nodes" in text for text in errors)


def _facts(plan: Any) -> list[dict[str, Any]]:
    events = read_lines(plan.run_dir / "events.jsonl")
    return [event for event in events if event["event"] == "fact"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["unread", "stopped", "fact", "rank"])
def test_what_a_node_repeats_is_on_record_a_few_times(tmp_path: Path, kind: str) -> None:
    """A hostile one sends 1,400 messages a second; a run of weeks has one journal."""
    plan = saved(tmp_path).plan
    name, rank = plan.shares[0].node.name, plan.shares[0].first_rank
    state = RunState()
    state.nodes = {share.node.name: NodeState() for share in plan.shares}
    reports = Reports(plan, state, Journal(tmp_path))
    state.nodes[name].pids[rank + 1] = 7  # its ranks run: the stop waits for their save
    for number in range(2000):
        said: dict[str, Any] = {"type": kind, "text": f"text {number}"}
        said |= {"kind": "xid", "age_s": 0.0, "by": "stop", "who": f"somebody {number}"}
        said |= {"rank": rank, "pid": number}
        with contextlib.suppress(RunFailed):
            reports.take(NodeMessage(name, said))
    lines = read_lines(tmp_path / EVENTS_FILE)
    assert 0 < len([one for one in lines if one["event"] == kind]) <= FACTS
