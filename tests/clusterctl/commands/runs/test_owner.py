"""Only its owner ends a run, and then it stays ended: signals, stops between attempts, attach."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launch import saved_run
from clusterctl.payload.launch import stopped
from clusterctl.runs import owner
from tests.clusterctl.commands.user import SHORT, User
from tests.clusterctl.launch.harness import parent, ranks_of, tagged, wait_until

AGAIN = SHORT[:-2]  # it is started again
# It saves and ends in order, as the trainer does. One rank of the pair asks the other one.
SAVES = """
import os, signal, sys, time
from pathlib import Path
folder, attempt = Path(os.environ["CLUSTERCTL_RUN_DIR"]), os.environ["CLUSTERCTL_ATTEMPT"]
end = folder / ("end-" + attempt)
signal.signal(signal.SIGTERM, lambda *_: end.touch())
print("up", attempt, flush=True)
while not end.exists():
    time.sleep(0.02)
print("saved", flush=True)
sys.exit(130)
"""


def attempts(user: User) -> int:
    return sum(event["event"] == "attempt" for event in user.events())


def rank(user: User, run_id: str) -> int:
    return ranks_of(run_id)[1]


def starter(user: User, run_id: str) -> int:
    return parent(rank(user, run_id))


def agent(user: User, run_id: str) -> int:
    return parent(starter(user, run_id))


def end_of(user: User) -> dict[str, Any]:
    return next(event for event in user.events() if event["event"] == "end")


@pytest.mark.long
@pytest.mark.parametrize(
    ("whom", "cause"),
    [
        (rank, "signal-15"),
        pytest.param(starter, "signal-15", marks=pytest.mark.slow),
        pytest.param(agent, "node-stopped", marks=pytest.mark.slow),
    ],
)
def test_sigterm_on_a_node_is_no_stop_by_the_user(
    user: User, whom: Callable[[User, str], int], cause: str
) -> None:
    user.program(SAVES)
    process = user.start(*AGAIN)
    run_id = user.run_id()
    os.kill(whom(user, run_id), signal.SIGTERM)
    wait_until(lambda: attempts(user) == 2, 30)
    wait_until(lambda: "up 2" in (user.run_dir / "ranks" / "0.log").read_text(), 30)
    assert "saved" in (user.run_dir / "ranks" / "0.log").read_text()  # and no step is lost
    (restart,) = [one for one in user.events() if one["event"] == "restart"]
    assert restart["data"]["cause"] == cause
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 130
    assert tagged(run_id) == []


@pytest.mark.long
def test_signal_to_the_supervisor_leaves_the_run_to_the_next_one(user: User) -> None:
    """As in a reboot of its machine."""
    process = user.start(*SHORT)
    run_id = user.run_id()
    ranks = ranks_of(run_id)
    before = owner.find(user.run_dir).pid
    os.kill(before, signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert f"clusterctl attach {user.run_dir} continues with it" in err
    wait_until(lambda: not Path(f"/proc/{before}").exists())
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"]) == (3, "without supervisor")
    assert user.ask("attach", str(user.run_dir), "--detach")[0] == 0
    wait_until(lambda: user.ask("status", str(user.run_dir))[1]["state"] == "running", 20)
    assert ranks_of(run_id) == ranks
    assert attempts(user) == 1


@pytest.mark.long
def test_run_whose_ranks_heard_no_supervisor_for_too_long_continues_and_says_why(
    user: User,
) -> None:
    """The head slept, or was off, for longer than --orphan-timeout."""
    user.start(*AGAIN, "--orphan-timeout", "8s")
    run_id = user.run_id()
    os.kill(owner.find(user.run_dir).pid, signal.SIGKILL)
    wait_until(lambda: not ranks_of(run_id), 30)
    assert user.ask("attach", str(user.run_dir), "--detach")[0] == 0
    wait_until(lambda: attempts(user) == 2, 30)
    (restart,) = [one for one in user.events() if one["event"] == "restart"]
    assert restart["data"]["cause"] == "node-stopped"
    assert "no supervisor was heard for 8 s (--orphan-timeout)" in restart["text"]
    user.ask("kill", str(user.cluster.hostfile), "--run", run_id, "--yes")


@pytest.mark.long
def test_attach_all_finds_every_run_that_continues(user: User) -> None:
    """The newest one is a short test; the one of weeks has lost its supervisor."""
    user.start(*SHORT, "--detach").communicate(timeout=40)
    run_id = user.run_id()
    os.kill(owner.find(user.run_dir).pid, signal.SIGKILL)
    newer = user.outputs / "002-test"
    newer.mkdir()
    (newer / "events.jsonl").write_text("")
    wait_until(lambda: owner.find(user.run_dir) is None)
    code, found = user.ask("attach", "--all", str(user.outputs))
    assert (code, [one["run_id"] for one in found["runs"]]) == (0, [run_id])
    assert owner.find(user.run_dir) is not None
    supervisor = owner.find(user.run_dir).pid
    os.kill(supervisor, signal.SIGSTOP)
    code, found = user.ask("attach", "--all", str(user.outputs))
    os.kill(supervisor, signal.SIGCONT)
    assert (code, found["runs"][0]["why"]) == (3, "the supervisor says nothing within 10 s")
    assert user.command("attach", "--all", str(user.run_dir)).wait(40) == 2
    user.ask("kill", str(user.cluster.hostfile), "--run", run_id, "--yes")


def start_that_waits(user: User) -> str:
    """The id of a run whose next attempt waits: its nodes were excluded before a rank died."""
    hostfile = user.directory / "nodes.txt"
    hostfile.write_text(Path(user.cluster.hostfile).read_text())
    user.hosts = hostfile
    user.start(*AGAIN, "--detach", hostfile=hostfile).communicate(timeout=40)
    run_id = user.run_id()
    words = ("exclude", "add", "node-[1-2]", str(hostfile), "--reason", "a test")
    user.command(*words).communicate(timeout=40)
    os.kill(rank(user, run_id), signal.SIGKILL)
    wait_until(lambda: any(one["event"] == "waiting" for one in user.events()), 40)
    return run_id


def lifts(user: User) -> None:
    """Nothing keeps the next attempt from starting any more, but that the run is over."""
    words = ("exclude", "remove", "node-[1-2]", str(user.hosts))
    user.command(*words).communicate(timeout=40)


@pytest.mark.long
def test_run_that_waits_is_shown_as_such_and_not_as_good(user: User) -> None:
    run_id = start_that_waits(user)
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"], found["phase"]) == (1, "waiting", "waiting")
    assert "no node can be used" in found["reason"]
    assert found["phase_s"] >= 0
    out, _ = user.command("status", str(user.run_dir)).communicate(timeout=40)
    assert "state      waiting: no node can be used of the 2 that are needed (node-1: " in out
    code, document = user.ask("runs", str(user.hosts))
    (run,) = [one for one in document["runs"] if one["run_id"] == run_id]
    assert (code, run["run_id"], run["phase"], run["ranks"]) == (1, run_id, "waiting", 0)
    wait_until(  # the next look has told the nodes
        lambda: "no node can be used" in json.dumps(user.ask("runs", str(user.hosts))[1]["runs"]),
        30,
    )
    code, found = user.ask("why", str(user.run_dir))
    assert code == 1
    assert "no node can be used" in json.dumps(found)
    assert user.ask("kill", str(user.hosts), "--yes")[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "named"), [("stop", False), pytest.param("kill", True, marks=pytest.mark.slow)]
)
def test_stop_and_kill_between_two_attempts_end_the_run(
    user: User, command: str, named: bool
) -> None:
    run_id = start_that_waits(user)
    words = ("--run", run_id) if named else ()
    code, found = user.ask(command, str(user.hosts), *words, "--yes")
    assert code == 0, found
    assert [one["run"] for one in found["waiting"]] == [run_id]
    assert found["ended"][0].startswith(f"run {run_id} is over: ")
    assert end_of(user)["data"]["exit_code"] == 130
    lifts(user)
    assert user.ask("status", str(user.run_dir))[1]["state"] == "ended"
    code, _ = user.command("attach", str(user.run_dir), "--detach").communicate(timeout=40)
    assert owner.find(user.run_dir) is None
    assert attempts(user) == 1
    assert tagged(run_id) == []
    assert not (user.run_dir / stopped.IN_RUN_DIR).exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["kill"])
def test_stop_between_two_attempts_holds_without_a_supervisor_that_hears_it(
    user: User, command: str
) -> None:
    """As on another machine than the supervisor's, which ends before its next look."""
    run_id = start_that_waits(user)
    os.kill(owner.find(user.run_dir).pid, signal.SIGKILL)
    wait_until(lambda: owner.find(user.run_dir) is None)
    code, found = user.ask(command, str(user.hosts), "--yes")
    assert [one["run"] for one in found["waiting"]] == [run_id]
    assert "is not started again" in found["ended"][0]
    assert code == 0
    lifts(user)
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"]) == (3, "without supervisor")
    assert f"by clusterctl {command} (" in found["end"]
    code, found = user.ask("attach", str(user.run_dir), "--detach")
    assert (code, f"by clusterctl {command} (" in found["over"]) == (0, True)
    wait_until(lambda: not (user.run_dir / saved_run.FILE).exists(), 30)
    assert attempts(user) == 1
    assert f"by clusterctl {command} (" in end_of(user)["text"]
    assert end_of(user)["data"]["exit_code"] == 130


@pytest.mark.slow
def test_run_that_its_user_has_stopped_is_not_started_by_attach(user: User) -> None:
    """The supervisor dies while it proves that nothing is left."""
    process = user.start(*AGAIN)
    run_id = user.run_id()
    supervisor = owner.find(user.run_dir).pid
    process.send_signal(signal.SIGINT)
    wait_until(lambda: '"stopped": "stopped by' in (user.run_dir / saved_run.FILE).read_text())
    os.kill(supervisor, signal.SIGKILL)
    process.communicate(timeout=20)
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"]) == (3, "without supervisor")
    assert found["end"].startswith("stopped by the user; clusterctl attach ")
    view = user.command("attach", str(user.run_dir))
    _, err = view.communicate(timeout=40)
    assert view.returncode == 130, err
    assert (attempts(user), end_of(user)["text"][:19]) == (1, "stopped by the user")
    assert tagged(run_id) == []


@pytest.mark.long
def test_stop_of_a_run_that_nobody_knows_is_remembered_by_the_nodes(user: User) -> None:
    run_id = start_that_waits(user)
    code, found = user.ask("stop", str(user.hosts), "--run", "20260101-000000-000000", "--yes")
    assert (code, found["waiting"]) == (0, [])
    assert user.ask("status", str(user.run_dir))[1]["state"] == "waiting"
    assert user.ask("kill", str(user.hosts), "--run", run_id, "--yes")[0] == 0
