"""Runs of a launcher: running, ended well, given up, without a word of their supervisor."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.launch.incidents import Incident, record
from clusterctl.launch.journal import Journal
from clusterctl.launch.root_cause import Judgement
from clusterctl.runs import owner
from clusterctl.why.document import to_json
from clusterctl.why.explain import Explanation, explain
from clusterctl.why.show import lines
from tests.clusterctl.runs.attempts_of import BEGAN, Attempts, three_attempts
from tests.dashboards.runs import journal
from tests.trainer.runlog.test_slow_ranks import entry, said
from trainer.runlog.telemetry import Event, encode

CAPTURES = Path(__file__).parents[2] / "captures" / "why"
LATER = BEGAN + 1e6
PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:30130"
OWN = "Traceback (most recent call last):\nValueError: no frames in clip 7"


def logs(run_dir: Path, texts: Mapping[int, str], written_s: float = BEGAN) -> None:
    (run_dir / "ranks").mkdir(exist_ok=True)
    for rank, text in texts.items():
        path = run_dir / "ranks" / f"{rank}.log"
        path.write_text(f"{text}\n")
        os.utime(path, (written_s, written_s))


def failed_once(run_dir: Path, **more: Any) -> Path:
    """Four ranks on two nodes of which nobody wrote how they ended."""
    run = Attempts()
    run.attempt(**more)
    run.train(30)
    return run.write(run_dir)


def named(found: Explanation) -> tuple[str, str | None, int | None]:
    assert found.verdict is not None
    assert found.verdict.cause is not None
    return found.verdict.cause.name, found.verdict.cause.node, found.verdict.cause.rank


def test_run_that_ended_well_has_no_cause(tmp_path: Path) -> None:
    run = Attempts()
    run.attempt()
    run.train(30)
    run.end(0)
    found = explain(run.write(tmp_path / "001-x"), None, LATER)
    assert (found.state, found.verdict, found.exit_code) == ("ended well", None, 0)


def test_run_that_went_on_after_failures_tells_the_last_of_them_and_is_good(tmp_path: Path) -> None:
    run = three_attempts()
    run.end(0)
    found = explain(run.write(tmp_path / "001-x"), None, LATER)
    assert (found.state, found.number, found.exit_code) == ("ended well", 2, 0)
    assert named(found) == ("hang-data", "n1", 0)
    assert explain(tmp_path / "001-x", 1, LATER).exit_code == 1


def test_run_that_is_only_slow_names_the_slow_rank_and_the_reason(tmp_path: Path) -> None:
    run = Attempts()
    run.attempt()
    run.train(300)
    run.telemetry.append(said(entry(2, since_step=120), step=205))
    run.telemetry.append(said(step=290))
    run.telemetry.append(said(entry(3, since_step=295, reasons=[]), step=299))
    run.end(0)
    found = explain(run.write(tmp_path / "001-x"), None, LATER)
    assert found.exit_code == 0
    shown = "\n".join(text for text, _ in lines(found))
    assert "slow      steps 120-290: rank 2 on n1 is 6.2% slower than the others" in shown
    assert "since step 295: rank 3 on n1" in shown
    assert "reason unknown: nothing that was read differs" in " ".join(shown.split())
    first, second = to_json(found)["slow"]
    assert (first["rank"], first["since_step"], first["until_step"]) == (2, 120, 290)
    assert first["reasons"][0]["name"] == "sm_mhz"
    assert (second["rank"], second["until_step"], second["reasons"]) == (3, None, [])


def test_running_run_says_so(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    lock = owner.take(run_dir)
    try:
        found = explain(run_dir, None, LATER)
        assert (found.state, found.verdict, found.exit_code) == ("running", None, 0)
        assert f"process {os.getpid()}" in found.text
    finally:
        owner.give_back(run_dir, lock)
    # Without a supervisor what was written just now belongs to ranks that go on.
    logs(run_dir, dict.fromkeys(range(4), "step 31/1000"), LATER - 5)
    assert explain(run_dir, None, LATER).state == "running"
    assert explain(run_dir, None, LATER + 3600).state == "unknown"


def test_running_run_tells_the_attempt_that_failed_before(tmp_path: Path) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    lock = owner.take(run_dir)
    try:
        found = explain(run_dir, None, LATER)
    finally:
        owner.give_back(run_dir, lock)
    assert (found.state, found.number, found.exit_code) == ("running", 2, 0)
    assert named(found) == ("hang-data", "n1", 0)


def test_crash_of_a_moment_ago_is_not_running(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    logs(run_dir, {0: "step 30/1000", 1: OWN}, LATER - 1)
    assert named(explain(run_dir, None, LATER)) == ("worker-exception", "n1", 1)


def test_rank_that_alone_says_nothing_ended_first(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    for rank in (0, 1, 2):
        text = (CAPTURES / "killed" / f"{rank}.log").read_text()
        logs(run_dir, {rank if rank < 2 else 3: text, 2: PEER})
    assert named(explain(run_dir, None, LATER)) == ("unknown", "n2", 3)
    # A connection that timed out is no proof that a process has ended, nor are logs of some ranks.
    logs(run_dir, {2: "RuntimeError: Timed out waiting 1800000ms for send operation to complete"})
    assert explain(run_dir, None, LATER).exit_code == 3
    logs(run_dir, {2: PEER})
    (run_dir / "ranks" / "1.log").unlink()
    assert explain(run_dir, None, LATER).exit_code == 3


def test_rank_that_all_agree_on_is_the_cause(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    agreed = "error: rank 3: OSError: [Errno 5] Input/output error: 'clips/7.mp4'"
    logs(run_dir, dict.fromkeys(range(4), agreed))
    found = explain(run_dir, None, LATER)
    assert named(found) == ("storage-error", "n2", 3)
    assert found.verdict is not None
    assert found.verdict.ranks == (3,)


def test_run_without_a_launcher_is_judged_by_trainer_and_logs(tmp_path: Path) -> None:
    run = Attempts()
    run.start(0)
    run.train(5)
    run_dir = run.write(tmp_path / "001-x")
    for name in ("events.jsonl", "incidents.jsonl", "plan.json"):
        (run_dir / name).unlink()
    logs(run_dir, {0: PEER, 1: OWN})
    assert named(explain(run_dir, None, LATER)) == ("worker-exception", None, 1)
    logs(run_dir, {0: "step 5/5", 1: "step 5/5"})
    assert explain(run_dir, None, LATER).exit_code == 3
    run.telemetry.append(Event("done", "", {}, 5, BEGAN + 90))
    (run_dir / "telemetry.jsonl").write_text("".join(f"{encode(one)}\n" for one in run.telemetry))
    assert (explain(run_dir, None, LATER).state, explain(run_dir, None, LATER).exit_code) == ("ended well", 0)  # fmt: skip


def test_without_a_word_of_the_supervisor_the_logs_are_judged(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    logs(run_dir, {0: PEER, 1: PEER, 2: OWN, 3: PEER})
    found = explain(run_dir, None, LATER)
    assert named(found) == ("worker-exception", "n2", 2)
    assert found.victims == {"connection closed by peer": 3}
    assert (found.state, found.exit_code, found.log) == ("failed", 1, "ranks/2.log")


def test_exit_codes_that_came_before_the_supervisor_was_killed_count(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    logs(run_dir, {0: PEER, 1: "step 30/1000", 2: PEER, 3: PEER})
    for rank, code, mono_s in ((0, 1, 9.0), (1, -9, 9.4)):
        how = "killed by SIGKILL" if code < 0 else "exit code 1"
        journal(run_dir, "rank-ended", f"rank {rank}: {how}", BEGAN + 60, node="n1", mono_s=mono_s, data={"code": code})  # fmt: skip
    assert named(explain(run_dir, None, LATER)) == ("signal-9", "n1", 1)
    line = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
    journal(run_dir, "fact", f"xid: {line}", BEGAN + 60, node="n2", mono_s=9.5)
    found = explain(run_dir, None, LATER)
    assert named(found) == ("xid-79", "n2", None)


@pytest.mark.long
def test_many_ranks_that_follow_are_one_line(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x", world_size=192)
    bark = "[Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=600000)"  # fmt: skip
    logs(run_dir, {**dict.fromkeys(range(192), PEER), 7: bark, 150: OWN})
    found = explain(run_dir, None, LATER)
    assert named(found)[2] == 150
    cascade = "191 ranks followed: 190 connection closed by peer, 1 watchdog timed out"
    shown = " ".join(text.strip() for text, _ in lines(found))
    assert cascade in shown


def test_what_happened_in_these_minutes_is_shown(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    logs(run_dir, {0: PEER, 1: OWN})
    line = "NVRM: Xid (PCI:0000:44:00): 43, pid=71, Ch 00000008"
    journal(run_dir, "disconnected", "n9: connection reset, an hour before", BEGAN - 3600)
    journal(run_dir, "attempt", "attempt 1 on n[1-2]", BEGAN, data={"attempt": 1, "nodes": ["n1", "n2"]})  # fmt: skip
    journal(run_dir, "disconnected", "n2: connection reset", BEGAN + 50, node="n2")
    journal(run_dir, "fact", f"xid: {line}", BEGAN + 60, node="n2", mono_s=9.5)
    found = explain(run_dir, None, LATER)
    assert named(found)[0] == "worker-exception"  # Xid 43 follows what a program does
    assert f"n2: {line}" in found.clues
    assert any("n2: connection reset" in text for text in found.clues)
    assert not any("an hour before" in text for text in found.clues)


@pytest.mark.parametrize(
    "text", ["\x1b]0;evil\x07 \x1b[31mred" * 9, "\t" * 60, "x" * 500, "\u202e" * 90]
)
def test_lines_fit_whatever_a_log_holds(tmp_path: Path, text: str) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    logs(run_dir, {0: PEER, 1: f"{text}\nTraceback (most recent call last):\nValueError: {text}"})
    shown = [line for line, _ in lines(explain(run_dir, None, LATER))]
    assert max(map(len, shown)) <= 80
    assert not any("\x1b" in line for line in shown)


def test_lost_node_is_the_cause_where_all_ranks_blame_a_peer(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    logs(run_dir, {0: PEER, 1: PEER})
    journal(run_dir, "lost", "no sign of life for 8 s", BEGAN + 60, node="n2")
    assert named(explain(run_dir, None, LATER)) == ("node-unreachable", "n2", None)


def test_node_of_a_rank_is_not_taken_from_the_plan_of_another_attempt(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x", nodes=("n3", "n4"))  # plan.json has n1 and n2
    logs(run_dir, {0: PEER, 1: PEER, 2: OWN, 3: PEER})
    assert named(explain(run_dir, None, LATER)) == ("worker-exception", None, 2)


def test_what_the_launcher_recorded_counts(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    root = Cause(Kind.OOM_KERNEL, "", "n2", 3, Evidence(Source.KERNEL, "oom_kill in x grew from 0 to 1"))  # fmt: skip
    victims = tuple(Cause(Kind.PEER_LOST, "", "n1", rank, Evidence(Source.RANK_LOG, PEER), False) for rank in range(3))  # fmt: skip
    incident = Incident("rank 3 on n2: killed", Judgement(root, victims), "stopped the run", 30)
    record(Journal(run_dir), incident)
    journal(run_dir, "end", "rank 3 on n2: killed", BEGAN + 70, data={"exit_code": 1})
    found = explain(run_dir, None, LATER)
    assert named(found) == ("oom-kernel", "n2", 3)
    assert found.verdict is not None
    assert found.verdict.is_recorded
    assert found.victims == {"connection closed by peer": 3}
    assert "memory" in found.advice


def test_record_without_a_root_gives_way_to_a_log_that_names_one(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    victim = Cause(Kind.PEER_LOST, "", "n1", 0, Evidence(Source.RANK_LOG, PEER), is_root=False)
    record(Journal(run_dir), Incident("rank 0 ended", Judgement(victim), "stopped"))
    journal(run_dir, "end", "rank 0 ended", BEGAN + 70, data={"exit_code": 1})
    logs(run_dir, {0: PEER, 1: PEER, 2: PEER})
    found = explain(run_dir, None, LATER)
    assert found.verdict is not None
    assert (found.verdict.cause, found.exit_code) == (None, 3)
    assert "there is no log of rank 3" in found.verdict.why_not
    logs(run_dir, {3: OWN})
    assert named(explain(run_dir, None, LATER)) == ("worker-exception", "n2", 3)


def test_reason_of_the_launcher_is_the_cause_where_no_rank_began(tmp_path: Path) -> None:
    run_dir = failed_once(tmp_path / "001-x")
    reason = "n2: no free master port (29500, 29501 are taken)"
    for name in ("failure", "end"):
        journal(run_dir, name, reason, BEGAN + 9, data={"exit_code": 1})
    found = explain(run_dir, None, LATER)
    assert found.verdict is not None
    assert found.verdict.cause is not None
    assert found.verdict.cause.evidence == Evidence(Source.STARTER_LOG, reason)
    assert (found.verdict.cause.rank, found.exit_code) == (None, 1)
    assert found.advice == "put that right, and start it again"


def test_run_that_its_user_stopped_is_no_failure(tmp_path: Path) -> None:
    run = Attempts()
    run.attempt()
    run.train(3)
    run.incident("user-stop")
    run.end(130, "stopped by Ctrl-C")
    found = explain(run.write(tmp_path / "001-x"), None, LATER)
    assert (found.state, found.exit_code) == ("stopped", 0)


def test_attempt_that_is_not_there(tmp_path: Path) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    with pytest.raises(UsageError, match="has no attempt 9"):
        explain(run_dir, 9, LATER)


@pytest.mark.parametrize(
    "name", ["events.jsonl", "incidents.jsonl", "plan.json", "telemetry.jsonl"]
)
@pytest.mark.parametrize("text", ["", "{", "[1]", '{"event": 3}\n', '{"incident": "crash", "time_s": "x", "root": 7}\n', "\0" * 99])  # fmt: skip
def test_damaged_files_end_nothing(tmp_path: Path, name: str, text: str) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    (run_dir / name).write_text(text)
    assert explain(run_dir, None, LATER).exit_code in (0, 1, 3)


def test_changes_since_the_last_run_of_the_config_that_worked(tmp_path: Path) -> None:
    good = Attempts()
    good.attempt()
    good.train(3)
    good.end(0)
    paths = good.write(tmp_path / "001-x"), failed_once(tmp_path / "002-x")
    for path, commit, rate, nodes in zip(paths, ("a" * 40, "b" * 40 + "+"), (1e-4, 3e-4), (["n1"], ["n1", "n2"]), strict=True):  # fmt: skip
        plan = {"config": "stage1", "nodes": [{"name": name, "slots": 2} for name in nodes], "world_size": 2 * len(nodes)}  # fmt: skip
        (path / "plan.json").write_text(json.dumps(plan))
        config = {"commit": commit, "python": "3.11.7", "config": {"optim": {"lr": rate}}, "environment": {"NCCL_DEBUG": "WARN", "CLUSTERCTL_RUN": path.name, "DUMPS": f"{path}/stacks/x_", "PATHS": f"/a:{path}:/b", "CACHE": f"/cache/{path.name}", "BESIDE": f"{path}-2"}}  # fmt: skip
        (path / "config.json").write_text(json.dumps(config))
    logs(paths[1], {0: OWN, 1: PEER, 2: PEER, 3: PEER})
    changes = explain(paths[1], None, LATER).changes
    assert changes is not None
    assert changes.since == "run 001-x, which ended well"
    assert {what: (old, new) for what, old, new in changes.changes} == {
        "nodes": ("n1", "n[1-2]"),
        "world_size": ("2", "4"),
        "code": ("a" * 12, f"{'b' * 12} with local changes"),
        "config optim.lr": ("0.0001", "0.0003"),
        "CACHE": ("/cache/001-x", "/cache/002-x"),  # no path of the run's own directory
        "BESIDE": (f"{paths[0]}-2", f"{paths[1]}-2"),
    }
    assert "package versions" in changes.not_recorded


def test_changes_since_the_attempt_before(tmp_path: Path) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    logs(run_dir, {0: f"--- attempt 2 ---\n--- attempt 3 ---\n{OWN}"})
    changes = explain(run_dir, 3, LATER).changes
    assert changes is not None
    assert (changes.since, changes.changes) == ("attempt 2, which took steps", (("nodes", "n[1-2]", "n[1,3]"),))  # fmt: skip
