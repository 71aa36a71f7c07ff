"""What the screens have done on nodes, on real ssh servers; threads that are cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, CouldNotFindOut, UsageError
from clusterctl.settings import Settings
from clusterctl.transport.base import Limits
from clusterctl.transport.loopback.nodes import LoopbackCluster
from dashboards.model.state import RunState
from dashboards.operations.actions import LOG_BYTES, Actions, ClusterActions
from dashboards.operations.background import Job, Watch
from tests.clusterctl.jobs.trees import tree, wait_until


def settings_of(cluster: LoopbackCluster) -> Settings:
    return Settings(cluster.hostfile, None, None, 8, Limits(), accept_new=False)


@pytest.fixture(scope="module")
def nodes(module_loopback: Callable[..., LoopbackCluster]) -> LoopbackCluster:
    return module_loopback(2)


@pytest.fixture
def actions(nodes: LoopbackCluster) -> ClusterActions:
    return ClusterActions(settings_of(nodes))


def test_preflight_of_one_node_tells_what_the_command_tells(
    actions: ClusterActions, nodes: LoopbackCluster
) -> None:
    lines = actions.preflight([nodes.names[1]], Watch())
    assert "on 1 node" in lines[0] or lines[0].startswith("NO-GO")
    with pytest.raises(UsageError, match="nowhere is not in"):
        actions.preflight(["nowhere"], Watch())


def test_processes_of_the_run_are_found_named_and_ended(
    actions: ClusterActions, nodes: LoopbackCluster, tmp_path: Path
) -> None:
    run = tmp_path / "001-x"
    run.mkdir()
    (run / ".run-id").write_text("top-kills-this\n")
    name = nodes.names[0]
    with tree(tmp_path, 1, 5, CLUSTERCTL_RUN="top-kills-this", CLUSTERCTL_NODE=name) as ours:
        ending = actions.find(str(run), [name], Watch())
        assert (ending.count, ending.nodes) == (5, [name])
        assert any(name in line and "5 processes" in line for line in ending.lines())
        assert len(ours.alive()) == 5  # looking ends nothing
        good, bad = actions.end(ending, Watch())
        assert (good.startswith("gone: 5 processes"), bad) == (True, [])
        wait_until(lambda: not ours.alive())
    assert actions.find(str(run), [], Watch()).count == 0


def test_stacks_without_a_run_say_so(actions: ClusterActions, tmp_path: Path) -> None:
    (tmp_path / ".run-id").write_text("not-there\n")
    with pytest.raises(CouldNotFindOut, match="no process of a run on"):
        actions.diagnose(RunState(str(tmp_path), "x"), [], Watch())


def test_log_comes_from_the_run_directory_else_from_the_ranks_node(
    actions: ClusterActions, nodes: LoopbackCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.log").write_text("a\nb\n")
    run = RunState(str(tmp_path), "x", tuple(nodes.names), (1, 1))
    assert actions.rank_log(run, 0, Watch()).text == "a\nb\n"
    # As where the directory is not shared: nothing here, the file on the node.
    (tmp_path / "ranks" / "1.log").write_text("x" * (LOG_BYTES + 10) + "\nend\n")
    monkeypatch.setattr(Actions, "rank_log", _nothing_here)
    log = actions.rank_log(run, 1, Watch())
    assert log.text.endswith("\nend\n")
    assert log.is_cut
    assert log.where.startswith(f"{nodes.names[1]}:")
    with pytest.raises(CouldNotFindOut):
        actions.rank_log(run, 7, Watch())  # nobody planned it


def _nothing_here(*_: object) -> None:
    raise CouldNotFindOut("not here")


def test_unreachable_node_is_a_sentence(nodes: LoopbackCluster, tmp_path: Path) -> None:
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("gone host=127.0.0.1 port=9 user=me\n")
    far = ClusterActions(Settings(hostfile, None, None, 8, Limits(), accept_new=False))
    with pytest.raises(ClusterctlError, match="tcp"):
        far.kernel_log("gone", Watch())


def test_without_nodes_only_what_was_written_down(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "3.log").write_bytes(b"caf\xe9\n")
    run = RunState(str(tmp_path), "x")
    here = Actions()
    assert here.rank_log(run, 3, Watch()).text == "caf\ufffd\n"
    for ask in (
        lambda: here.rank_log(run, 4, Watch()),
        lambda: here.kernel_log("a", Watch()),
        lambda: here.diagnose(None, [], Watch()),
        lambda: here.find(None, [], Watch()),
        lambda: here.preflight(["a"], Watch()),
    ):
        with pytest.raises(CouldNotFindOut):
            ask()


def test_places_of_ranks() -> None:
    run = RunState("d", "x", ("a", "b"), (2, 8))
    assert [run.place_of(rank) for rank in (1, 2, 10)] == [("a", 1), ("b", 0), None]
    assert list(run.ranks_of("b")) == list(range(2, 10))
    assert list(run.ranks_of("c")) == []


def ended(job: Job[int]) -> Job[int]:
    wait_until(lambda: job.done)
    return job


def test_job_tells_its_value_or_why_there_is_none() -> None:
    told: list[Job[int]] = []
    assert ended(Job(lambda watch: 7, told.append).start()).value == 7
    wait_until(lambda: told)

    def refuse(watch: Watch) -> int:
        raise UsageError("no", hint="yes")

    def break_down(watch: Watch) -> int:
        return 1 // 0

    assert ended(Job(refuse, lambda job: None).start()).error == "no (yes)"
    assert ended(Job(break_down, lambda job: None).start()).error.startswith("ZeroDivisionError")


@pytest.mark.long
def test_cancelled_job_ends_with_its_next_step_and_tells_nobody() -> None:
    told: list[Job[int]] = []
    began = threading.Event()

    def work(watch: Watch) -> int:
        while True:
            watch.say("still at it")
            began.set()
            time.sleep(0.01)

    job = Job(work, told.append).start()
    assert began.wait(30)
    assert job.watch.line() == "still at it"
    job.cancel()
    ended(job)
    assert (job.value, job.error, told) == (None, "", [])
