"""reap ends a run's processes by their tag alone, and tells what was there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload.launch.about import clean, facts_file
from clusterctl.payload.launch.session import socket_path
from clusterctl.remote import payload as ship
from tests.clusterctl.launch.harness import wait_until
from tests.clusterctl.payload.agents import Agent
from tests.clusterctl.payload.local import LocalConnection

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_id() -> str:
    return f"reap-{os.getpid()}"


@pytest.fixture
def start(run_id: str) -> Iterator[Start]:
    children: list[subprocess.Popen[bytes]] = []

    def start(script: str, run: str = run_id, node: str = "here", **env: str):
        tags = {"CLUSTERCTL_RUN": run, "CLUSTERCTL_NODE": node, **env}
        child = subprocess.Popen(
            ["sh", "-c", f"{script}\necho; exec sleep 100"],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **tags},
        )
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def reap(run: str, **args: Any) -> dict[str, Any]:
    args = {"run": run, "node": "here", "grace_s": 0.5, **args}
    return ship.probe(LocalConnection(), "reap", args, 15)


@pytest.mark.long
def test_only_the_run_on_this_node_is_ended(start: Start, run_id: str) -> None:
    ours = start("trap '' TERM", RANK="3")
    others = [start("", run=run_id + "x"), start("", node="there")]
    answer = reap(run_id)
    assert [(found["pid"], found["rank"]) for found in answer["found"]] == [(ours.pid, 3)]
    assert answer["left"] == []
    assert ours.wait(5) == -signal.SIGKILL
    assert [child.poll() for child in others] == [None, None]


@pytest.mark.long
def test_looking_ends_nothing(start: Start, run_id: str) -> None:
    child = start("")
    answer = reap(run_id, kill=False)
    assert answer["found"] == answer["left"] != []
    assert child.poll() is None


@pytest.mark.long
def test_stopped_process_is_woken_for_its_sigterm(start: Start, run_id: str) -> None:
    child = start("")
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: reap(run_id, kill=False)["found"][0]["state"] == "T")
    assert reap(run_id, grace_s=5)["left"] == []
    assert child.wait(5) == -signal.SIGTERM


@pytest.mark.long
def test_command_lines_are_not_told(start: Start, run_id: str) -> None:
    start("")
    assert reap(run_id)["found"][0]["command"] in ("sleep", "sh")


@pytest.mark.long
def test_reap_typed_inside_the_run_does_not_end_itself(run_id: str) -> None:
    connection = LocalConnection({"CLUSTERCTL_RUN": run_id, "CLUSTERCTL_NODE": "here"})
    answer = ship.probe(connection, "reap", {"run": run_id, "node": "here"}, 15)
    assert answer["found"] == answer["left"] == []


def test_files_of_killed_agents_and_starters_are_removed_and_those_of_others_stay() -> None:
    run = f"clean-{os.getpid()}-{time.monotonic_ns()}"
    left = [Path(socket_path(run, "n1", kind)) for kind in ("agent", "starter", "head")]
    other = Path(socket_path(f"{run}x", "n1"))
    for path in (*left, other):
        path.write_text("")
        path.with_suffix(".pid").write_text("1 1")
    clean(run)
    assert [path.exists() for path in (*left, other)] == [False, False, True, True]
    assert [path.with_suffix(".pid").exists() for path in left] == [False, False, True]
    for path in (left[2], other):
        path.unlink()
        path.with_suffix(".pid").unlink()


@pytest.mark.long
def test_run_that_another_head_supervises_is_ended_for_its_owner_alone(
    agent: Callable[..., Agent], tmp_path: Path
) -> None:
    """A head that slept between two attempts wakes while another one has taken the run."""
    one = agent()
    rank = one.start("import time; print('up', flush=True); time.sleep(60)", tmp_path)
    answer = reap(one.run_id, head="ann@two, process 2")
    assert answer["supervised"] == "user@here, process 1"
    assert answer["found"] == answer["left"] != []
    # A ping keeps it so; a head whose machine has lost its power stays connected and says nothing.
    facts, long_ago = Path(facts_file(socket_path(one.run_id, "here"))), time.time() - 60
    os.utime(facts, (long_ago, long_ago))
    one.send(op="ping")
    wait_until(lambda: facts.stat().st_mtime > long_ago + 1)
    assert reap(one.run_id, head="ann@two, process 2")["left"] != []
    assert Path(f"/proc/{rank}").exists()
    assert reap(one.run_id, kill=False, head="user@here, process 1")["supervised"] is None
    os.utime(facts, (long_ago, long_ago))
    assert reap(one.run_id, head="ann@two, process 2")["left"] == []


@pytest.mark.long
def test_owner_ends_a_run_whoever_supervises_it(
    agent: Callable[..., Agent], tmp_path: Path
) -> None:
    one = agent()
    one.start("import time; print('up', flush=True); time.sleep(60)", tmp_path)
    answer = reap(one.run_id, head=None)
    assert answer["found"] != []
    assert (answer["left"], answer["supervised"]) == ([], None)
