"""A launch from start to end over real ssh servers: what goes well and what dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.launch import leftovers
from clusterctl.launch.journal import INCIDENTS_FILE
from clusterctl.launch.plan import Timing
from clusterctl.launch.state import Left
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.launch.harness import REPO, WAIT, command_line, read_lines, tagged, wait_until


def test_ranks_of_two_nodes_run_to_their_end_and_each_has_its_log(bench) -> None:
    result, plan = bench.run(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
        "print('on', os.environ['CLUSTERCTL_NODE'])\n",
        slots=2,
    )
    assert result.ok, result
    assert result.reason == "all ranks have ended well"
    logs = {path.name: path.read_text() for path in (plan.run_dir / "ranks").glob("[0-9]*.log")}
    assert logs == {
        f"{rank}.log": f"rank {rank} of 4\non node-{1 + rank // 2}\n" for rank in range(4)
    }


def test_killed_rank_fails_the_launch_within_ten_seconds_and_is_named(bench) -> None:
    launch = bench.launch(bench.plan(WAIT, slots=2))
    pids = launch.pids(4)
    begun = time.monotonic()
    os.kill(pids[2], signal.SIGKILL)
    result = launch.result()
    seconds = time.monotonic() - begun
    print(f"rank death to launch end: {seconds:.2f} s")
    assert seconds < 10
    assert result.exit_code == 1
    assert result.reason == "rank 2 on node-2: killed by SIGKILL"
    assert result.failed_rank == 2
    assert result.last_lines == ("up",)
    (incident,) = read_lines(launch.plan.run_dir / INCIDENTS_FILE)
    assert (incident["incident"], incident["class"], incident["rank"]) == ("crash", "signal-9", 2)
    assert result.cause == incident["root"]
    assert result.cause["note"] == "possibly out of memory; unconfirmed"
    assert result.leftovers == result.unconfirmed == ()
    assert tagged(launch.plan.run_id) == []


def test_exit_code_of_a_rank_is_named_and_its_peers_are_stopped(bench) -> None:
    program = (
        "import os, sys, time\nprint('rank', os.environ['RANK'], flush=True)\n"
        "if os.environ['RANK'] == '1':\n    print('the last words'); sys.exit(7)\ntime.sleep(60)\n"
    )
    result, plan = bench.run(program)
    assert (result.exit_code, result.failed_rank) == (1, 1)
    assert result.reason == "rank 1 on node-2: exit code 7"
    assert result.last_lines == ("rank 1", "the last words")
    assert tagged(plan.run_id) == []


def test_reason_comes_from_the_log_that_has_it_though_another_rank_ends_first(bench) -> None:
    """An error that all ranks have agreed on is printed by rank 0, which may be the last to end."""
    program = (
        "import os, sys, time\nprint('Warning: deprecated', flush=True)\n"
        "if os.environ['RANK'] == '1': sys.exit(1)\ntime.sleep(0.8)\n"
        "print('error: no batch for step 1', *map(str, range(40)), sep='\\n', flush=True)\nsys.exit(1)\n"
    )
    result, plan = bench.run(program)
    assert (result.exit_code, result.failed_rank) == (1, 0)
    assert result.reason == "rank 0 on node-1: exit code 1: no batch for step 1"
    assert result.last_lines[:2] == ("error: no batch for step 1", "0")
    events = (plan.run_dir / "events.jsonl").read_text()
    assert "rank 0: exit code 1: no batch for step 1" in events
    assert tagged(plan.run_id) == []


def test_sentence_of_a_rank_that_lingers_is_the_cause_though_the_run_is_stopped_for_another(
    bench,
) -> None:
    """Its peer ends first and says nothing; the head hears of this one only when it stops it."""
    program = (
        "import os, sys, time\nprint('UserWarning: deprecated', flush=True)\n"
        "if os.environ['RANK'] == '1': time.sleep(0.3); sys.exit(1)\n"
        "print('error: there is no /data/clips.csv for dataset.data_path', flush=True)\n"
        "time.sleep(60)\n"
    )
    result, plan = bench.run(program)
    assert (result.exit_code, result.failed_rank) == (1, 0)
    assert result.reason.endswith("there is no /data/clips.csv for dataset.data_path")
    assert result.last_lines[-1].startswith("error: there is no /data/clips.csv")
    (incident,) = read_lines(plan.run_dir / INCIDENTS_FILE)
    assert (incident["class"], incident["rank"], incident["node"]) == (
        "missing-file", 0, "node-1",
    )  # fmt: skip
    assert incident["root"]["is_deterministic"] is True
    assert [one["rank"] for one in incident["consequences"]] == [1]
    assert incident["evidence"]["source"] == "rank log"
    assert incident["text"] == result.reason
    assert incident["action"] == "stopped the run"


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("sys.exit(9)", "exit code 9"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ],
)
def test_end_of_a_rank_that_nobody_has_seen_alive_is_known(bench, end: str, how: str) -> None:
    program = f"import os, signal, sys\nif os.environ['RANK'] == '1': {end}\n"
    result, _ = bench.run(program + WAIT, slots=2)
    assert result.exit_code == 1
    assert result.reason.startswith(f"rank 1 on node-1: {how}")


def test_ranks_that_end_well_while_others_run_are_no_failure(bench) -> None:
    program = (
        "import os, time\nif os.environ['RANK'] == '1': time.sleep(1)\nprint('done', flush=True)\n"
    )
    result, _ = bench.run(program, slots=2)
    assert result.ok, result


def test_starter_that_fails_is_shown_with_its_log(bench) -> None:
    starter = ("/bin/sh", "-c", "echo no module named torch >&2; exit 4", "starter")
    result, plan = bench.run("pass", starter=starter)
    assert result.exit_code == 1
    assert result.reason in (
        f"{node}: what starts its ranks ended with code 4" for node in ("node-1", "node-2")
    )
    assert result.last_lines == ("no module named torch",)
    (incident,) = read_lines(plan.run_dir / INCIDENTS_FILE)
    assert (incident["class"], incident["rank"]) == ("unknown", None)


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(bench) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    launch = bench.launch(bench.plan(deaf, slots=2, timing=Timing(grace_s=1.5, fail_grace_s=1.0)))
    launch.pids(4)
    begun = time.monotonic()
    launch.stop.set()
    result = launch.result()
    assert 1.5 < time.monotonic() - begun < 8
    assert result.exit_code == 130
    assert result.leftovers == result.unconfirmed == ()
    assert tagged(launch.plan.run_id) == []


def test_second_ctrl_c_does_not_wait_for_the_grace(bench) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    launch = bench.launch(bench.plan(deaf, timing=Timing(grace_s=60.0)))
    launch.pids(2)
    launch.stop.set()
    wait_until(lambda: launch.state and launch.state.failure)
    launch.kill.set()
    begun = time.monotonic()
    assert launch.result(15).exit_code == 130
    assert time.monotonic() - begun < 8
    assert tagged(launch.plan.run_id) == []


def test_orderly_stop_lets_ranks_save_and_end_by_themselves(bench) -> None:
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.5); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n" + WAIT
    )
    launch = bench.launch(bench.plan(program))
    launch.pids(2)
    launch.stop.set()
    assert launch.result().exit_code == 130
    assert [launch.log(rank) for rank in (0, 1)] == ["up\nsaved\n"] * 2


def test_grandchildren_in_sessions_of_their_own_are_found_and_ended(bench) -> None:
    program = (
        "import os, signal, time\n"
        "env = dict(os.environ)\n"
        "for clean in (False, True):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "            signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "            words = ['sleep', '98761' if clean else '98762']\n"
        "            os.execvpe('sleep', words, {'PATH': env['PATH']} if clean else env)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    launch = bench.launch(bench.plan(program))
    launch.pids(2)
    wait_until(lambda: len(sleepers("98761")) == len(sleepers("98762")) == 2)
    launch.stop.set()
    assert launch.result().leftovers == ()
    # The tag finds the first kind, descent from the agent the one that wears none.
    assert sleepers("98761") == sleepers("98762") == []


def sleepers(seconds: str) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and command_line(int(entry.name)) == b"sleep\0%s\0" % seconds.encode()
    ]


def test_killed_agent_ends_the_run_and_nothing_is_left(bench) -> None:
    launch = bench.launch(bench.plan(WAIT))
    pids = launch.pids(2)
    starter = parent(pids[1])
    os.kill(parent(starter), signal.SIGKILL)  # the agent of node-2
    result = launch.result()
    assert result.exit_code == 3
    assert result.reason.startswith("node-2 was lost")
    (incident,) = read_lines(launch.plan.run_dir / INCIDENTS_FILE)
    assert (incident["incident"], incident["class"], incident["node"]) == (
        "node-lost", "node-unreachable", "node-2",
    )  # fmt: skip
    assert result.leftovers == result.unconfirmed == ()
    assert tagged(launch.plan.run_id) == []


@pytest.mark.long
def test_run_without_a_first_step_ends_at_the_deadline(bench) -> None:
    timing = Timing(start_s=1.5, fail_grace_s=1.0)
    program = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(REPO)!r})\n"
        "from trainer.runlog.telemetry import Heartbeat\n"
        "if os.environ['RANK'] == '0': Heartbeat.from_environment(0).beat('forward', 0)\n"
    )
    result, plan = bench.run(program + WAIT, timing=timing)
    assert result.exit_code == 1
    assert result.reason == "no step within 1.5 s of the start; rank 1 never showed a heartbeat"
    assert tagged(plan.run_id) == []


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_stopped_processes_are_ended_too(bench) -> None:
    launch = bench.launch(bench.plan(WAIT, timing=Timing(grace_s=1.0, fail_grace_s=1.0)))
    pids = launch.pids(2)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(parent(pids[1]), signal.SIGSTOP)
    launch.stop.set()
    assert launch.result().leftovers == ()
    assert tagged(launch.plan.run_id) == []


@pytest.mark.long
def test_ranks_that_were_asked_to_stop_on_their_node_are_no_failure_of_theirs(bench) -> None:
    program = (
        "import os, signal, sys, time\n"
        "sys.path.insert(0, os.getcwd())\n"
        "from pathlib import Path\n"
        "from trainer.runlog.telemetry import Event, StepRecord, Writer\n"
        "def save(*_):\n"
        "    if os.environ['RANK'] == '0':\n"
        "        writer = Writer(Path(os.environ['CLUSTERCTL_RUN_DIR']))\n"
        "        writer.write(StepRecord(46, 99, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01))\n"
        "        writer.write(Event('checkpoint', data={'path': '/x/epoch0-global_step46'}))\n"
        "    print('saved', flush=True); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, save)\n" + WAIT
    )
    launch = bench.launch(bench.plan(program))
    wait_until(lambda: launch.log(0) == launch.log(1) == "up\n")
    words = ["stop", bench.cluster.hostfile, "--run", launch.plan.run_id, "--yes"]
    subprocess.run([sys.executable, "-m", "clusterctl", *map(str, words)], check=True)
    result = launch.result()
    assert result.exit_code == 130
    assert re.fullmatch(
        r"stopped by clusterctl stop \(.+@.+\) on node-[12] at step 46"
        "; last checkpoint: /x/epoch0-global_step46",
        result.reason,
    )
    (incident,) = read_lines(launch.plan.run_dir / INCIDENTS_FILE)
    assert (incident["incident"], incident["class"]) == ("user-stop", "user-stop")
    assert sorted(one["rank"] for one in incident["consequences"]) == [0, 1]
    events = map(json.loads, (launch.plan.run_dir / "events.jsonl").read_text().splitlines())
    assert [one["data"]["exit_code"] for one in events if one["event"] == "failure"] == [130]


@pytest.mark.long
def test_head_that_has_lost_its_run_to_another_ends_nothing_of_it(bench, monkeypatch) -> None:
    """It slept between two attempts; its locks do not reach the machine of the other one."""
    launch = bench.launch(bench.plan(WAIT))
    pids = launch.pids(2)
    monkeypatch.setattr(leftovers, "this_head", lambda: "ann@two, process 2")
    cluster = Cluster(launch.plan.nodes, ParamikoTransport())
    for options in ({}, {"keep_standby": True}, {"is_over": True}):
        with pytest.raises(Left, match=r"node-\d is supervised by .*, process \d+"):
            leftovers.prove_gone(launch.plan, cluster, **options)
    assert launch.pids(2) == pids
    assert leftovers.prove_gone(launch.plan, cluster, is_over=True, is_asked=True) == ((), ())
    assert tagged(launch.plan.run_id) == []
    launch.result()
