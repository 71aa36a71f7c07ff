"""Nodes that are out of reach, cut off, busy or without the shared directory."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launch.plan import Timing
from tests.clusterctl.launch.harness import WAIT, Launch, tagged, variables, wait_until


def test_unreachable_node_means_nothing_is_started_anywhere(bench) -> None:
    with socket.socket() as closed:  # bound, never listening: its port refuses
        closed.bind(("127.0.0.1", 0))
        first, second = bench.nodes
        dead = replace(second, host="127.0.0.1", port=closed.getsockname()[1])
        begun = time.monotonic()
        result, plan = bench.run("print('ran')", nodes=[first, dead])
    assert time.monotonic() - begun < 8
    assert result.exit_code == 3
    assert "node-2 cannot be reached, so nothing was started anywhere: tcp" in result.reason
    assert result.hint
    assert not list((plan.run_dir / "ranks").iterdir())
    assert tagged(plan.run_id) == []


def test_unknown_host_key_is_refused(bench, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    labels = {**dict(bench.nodes[1].labels), "known_hosts": str(tmp_path / "known_hosts")}
    first, second = bench.nodes
    stranger = replace(second, labels=tuple(labels.items()))
    result, plan = bench.run("print('ran')", nodes=[first, stranger])
    assert result.exit_code == 3
    assert "hostkey" in result.reason
    assert not list((plan.run_dir / "ranks").iterdir())


def test_missing_interpreter_is_named_before_anything_starts(bench) -> None:
    plan = replace(bench.plan("pass"), python="/no/such/python")
    result = Launch(plan).result()
    assert (result.exit_code, result.reason) == (1, "node-1: there is no /no/such/python")
    assert not list((plan.run_dir / "ranks").iterdir())


def test_second_launch_of_the_same_job_is_refused(bench) -> None:
    runs = bench.directory / "runs"
    first = bench.launch(bench.plan(WAIT, config="same", run_dir=runs / "001-test"))
    first.pids(2)
    plan = bench.plan(WAIT, config="same", run_dir=runs / "002-test")
    second = Launch(plan).result()
    assert second.exit_code == 1
    assert f"the same job runs already (run {first.plan.run_id}" in second.reason
    first.stop.set()
    assert first.result().exit_code == 130
    assert tagged(first.plan.run_id) == []


@pytest.mark.parametrize("races", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_of_two_launches_at_the_same_moment_one_at_most_starts(bench, races: int) -> None:
    runs = bench.directory / "race"
    for attempt in range(races):
        plans = [
            bench.plan(WAIT, config="race", run_dir=runs / f"{attempt}{which}-test")
            for which in "ab"
        ]
        launches = [Launch(plan) for plan in plans]
        wait_until(lambda launches=launches: any(one.refused for one in launches), 15)
        refused = [one for one in launches if one.refused]
        assert all("the same job runs already" in one.result().reason for one in refused)
        for one in launches:
            if one not in refused:
                one.pids(2)
                one.stop.set()
                assert one.result().exit_code == 130
        assert len(refused) == 1, [one.result().reason for one in launches]


def test_ctrl_c_does_not_wait_for_a_node_that_does_not_answer(bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, says nothing
        first, second = bench.nodes
        silent = replace(second, host="127.0.0.1", port=mute.getsockname()[1])
        launch = bench.launch(bench.plan("print('ran')", nodes=[first, silent]))
        peer, _ = mute.accept()
        begun = time.monotonic()
        launch.stop.set()
        result = launch.result()
        peer.close()
    assert time.monotonic() - begun < 1.5
    assert (result.exit_code, result.reason) == (130, "stopped by the user")
    assert not list((launch.plan.run_dir / "ranks").glob("[0-9]*"))


@pytest.mark.long
@pytest.mark.lab
def test_master_address_that_nodes_do_not_reach_is_replaced_or_named(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    say = "import os; print(os.environ['MASTER_ADDR'])"
    # Each node reaches itself there, as it does under its own name on Debian (127.0.1.1).
    result, _ = bench.run(say, master_addr="127.0.0.1")
    assert result.exit_code == 1
    assert result.reason == ("node-2 cannot reach the first node at 127.0.0.1: Connection refused")
    assert "--master_addr" in (result.hint or "")
    plan = replace(bench.plan(say), address="alias-of-the-head")
    result = Launch(plan).result()
    assert result.ok, result
    assert (plan.run_dir / "ranks" / "1.log").read_text() == f"{nodes.nodes[0].address}\n"


@pytest.mark.long
@pytest.mark.lab
def test_sshd_that_dies_under_a_run_ends_no_rank(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    go = bench.directory / "go"
    program = f"import os, time\nprint('up', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    launch = bench.launch(bench.plan(program + "print('end', flush=True)\n"))
    launch.pids(2)
    nodes.nodes[1].kill_sshd()
    go.touch()
    result = launch.result()
    assert [launch.log(rank) for rank in (0, 1)] == ["up\nend\n"] * 2
    # Its agent said that nothing is left; nobody else could look.
    assert result.exit_code == 3
    assert result.leftovers == ()
    assert [line.split(":")[0] for line in result.unconfirmed] == ["node-2"]


@pytest.mark.slow
def test_head_that_was_asleep_takes_no_node_for_silent(bench) -> None:
    timing = Timing(silent_s=2.0, lease_s=30.0, grace_s=2.0)
    launch = bench.launch(bench.plan(WAIT, timing=timing))
    launch.pids(2)
    own = os.getpid()
    subprocess.run(
        ["setsid", "-w", "sh", "-c", f"kill -STOP {own}; sleep 5; kill -CONT {own}"], check=True
    )
    assert launch.state.failure is None
    launch.stop.set()
    result = launch.result()
    assert (result.exit_code, result.reason) == (130, "stopped by the user")


@pytest.mark.long
@pytest.mark.lab
def test_taken_master_port_is_passed_over_or_named(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    with _listener(nodes.nodes[0].pid, 29500):
        result, plan = bench.run(
            "import os; print(os.environ['MASTER_PORT'])", ports=(29500, 29501)
        )
        assert result.ok, result
        assert (plan.run_dir / "ranks" / "1.log").read_text() == "29501\n"
        result, _ = bench.run("pass", ports=(29500,))
    assert result.exit_code == 1
    assert result.reason == "node-1: no free master port (29500 are taken)"
    assert "--master_port" in (result.hint or "")


def _listener(pid: int, port: int):
    """A port that is taken on another node."""
    program = (
        f"import socket; s = socket.create_server(('', {port})); print(flush=True); s.accept()"
    )
    process = subprocess.Popen(
        ["nsenter", "-t", str(pid), "-n", sys.executable, "-c", program], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()

    class Taken:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            process.kill()
            process.communicate()

    return Taken()


@pytest.mark.long
@pytest.mark.lab
def test_cut_network_is_noticed_and_that_node_is_not_confirmed(bench_on, lab) -> None:
    nodes = lab(3)
    timing = Timing(silent_s=2.0, lease_s=3.0, fail_grace_s=1.0)
    bench = bench_on(nodes)
    launch = bench.launch(bench.plan(WAIT, timing=timing))
    launch.pids(3)
    nodes.nodes[1].drop_network()
    begun = time.monotonic()
    wait_until(lambda: launch.state.failure, timing.silent_s + 5)
    noticed_s = time.monotonic() - begun
    result = launch.result()
    print(f"cut to notice {noticed_s:.1f} s, to the end {time.monotonic() - begun:.1f} s")
    assert result.exit_code == 3
    lost, why = result.reason.split(": ", 1)
    assert lost == "node-2 was lost"
    assert (  # whichever is known first
        why == "it cannot be reached again: tcp: no answer on port 22 within 2 s"
        or re.fullmatch(r"it has sent nothing for 2(\.\d)? s", why)
    )
    assert result.leftovers == ()
    assert [line.split(":")[0] for line in result.unconfirmed] == ["node-2"]
    # Its agent has heard nothing for the lease and ends the ranks by itself.
    wait_until(lambda: not tagged(launch.plan.run_id), 10)


@pytest.mark.long
@pytest.mark.lab
def test_frozen_node_is_noticed(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    timing = Timing(silent_s=2.0, lease_s=3.0, fail_grace_s=1.0)
    launch = bench.launch(bench.plan(WAIT, timing=timing))
    launch.pids(2)
    nodes.nodes[1].freeze()
    result = launch.result()
    assert result.exit_code == 3
    assert [line.split(":")[0] for line in result.unconfirmed] == ["node-2"]
    left = tagged(launch.plan.run_id)
    assert {variables(pid)["CLUSTERCTL_NODE"] for pid in left} <= {"node-2"}
    nodes.nodes[1].thaw()
    wait_until(lambda: not tagged(launch.plan.run_id), 10)


@pytest.mark.long
@pytest.mark.lab
def test_logs_and_telemetry_come_home_from_nodes_without_the_shared_directory(
    bench_on, lab, tmp_path: Path
) -> None:
    program = (
        "import os, sys\n"
        "sys.path.insert(0, os.getcwd())\n"
        "from pathlib import Path\n"
        "from trainer.runlog.telemetry import Event, Writer\n"
        "rank = os.environ['RANK']\n"
        "print('rank', rank, 'ünïcode', flush=True)\n"
        "if rank == '0':\n"
        "    Writer(Path(os.environ['CLUSTERCTL_RUN_DIR'])).write(Event('note', 'hello from afar'))\n"
        "if rank == '1':\n"
        "    print('x' * 200000)\n"
        "print('no newline', end='', flush=True)\n"
    )
    bench = bench_on(lab(2))
    # tmp_path is on the head only: the nodes have a /tmp of their own.
    result, plan = bench.run(program, run_dir=tmp_path / "runs" / "001-test")
    assert result.ok, result
    ranks = plan.run_dir / "ranks"
    assert (ranks / "0.log").read_text() == "rank 0 ünïcode\nno newline"
    assert (ranks / "1.log").read_text() == "rank 1 ünïcode\n" + "x" * 200000 + "\nno newline"
    assert "hello from afar" in (plan.run_dir / "telemetry.jsonl").read_text()


@pytest.mark.long
@pytest.mark.lab
def test_last_lines_of_a_killed_rank_come_from_a_node_without_the_shared_directory(
    bench_on, lab, tmp_path: Path
) -> None:
    bench = bench_on(lab(2))
    launch = bench.launch(bench.plan(WAIT, run_dir=tmp_path / "runs" / "001-test"))
    pids = launch.pids(2)
    os.kill(pids[1], signal.SIGKILL)
    result = launch.result()
    assert result.reason == "rank 1 on node-2: killed by SIGKILL"
    assert result.last_lines == ("up",)
    assert tagged(launch.plan.run_id) == []
