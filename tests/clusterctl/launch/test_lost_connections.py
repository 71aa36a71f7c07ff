"""Connections that drop or fall silent under a run that takes steps: no step is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from clusterctl.launch.plan import Timing
from tests.clusterctl.launch.harness import command_line, tagged, wait_until

# Two ranks without collectives: rank 0 writes steps; each prints numbered lines until told to end.
STEPS = """
import os, sys, time
sys.path.insert(0, os.getcwd())
from pathlib import Path
from trainer.runlog.telemetry import StepRecord, Writer
rank, end = os.environ["RANK"], Path(sys.argv[1])
writer = Writer(Path(os.environ["CLUSTERCTL_RUN_DIR"])) if rank == "0" else None
print("up", flush=True)
step = 0
while not end.exists():
    step += 1
    print("line", step, flush=True)
    if writer is not None:
        writer.write(StepRecord(step=step, steps_total=1000, epoch=0, samples=1, tokens=1, loss=1.0,
                                grad_norm=1.0, lr=1.0, step_s=0.05, seconds={}, weight_norm=1.0,
                                time_s=time.time()))
    time.sleep(0.05)
print("end", flush=True)
"""
TIMING = Timing(silent_s=3.0, lease_s=20.0, grace_s=3.0, fail_grace_s=1.0)


def cut_connections(node) -> None:
    """As a firewall that forgets them: the processes of sshd that serve them are killed."""
    for pid in node.processes():
        if command_line(pid).startswith(b"sshd: ") and b"listener" not in command_line(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.lab
def test_dropped_connections_cost_no_step_and_no_line(
    bench_on, lab, tmp_path: Path, shared: bool
) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    end = bench.directory / "end"
    run_dir = None if shared else tmp_path / "runs" / "001-test"
    launch = bench.launch(bench.plan(STEPS, str(end), timing=TIMING, run_dir=run_dir))
    pids = launch.pids(2)
    wait_until(lambda: launch.state and launch.state.step)
    for node in nodes.nodes:
        cut_connections(node)
        wait_until(lambda node=node: any(
            event["event"] == "reconnected" and event["node"] == node.name for event in launch.events()
        ))  # fmt: skip
    step = launch.state.step.step
    wait_until(lambda: launch.state.step.step > step + 3)
    assert launch.pids(2) == pids
    end.touch()
    result = launch.result()
    assert result.ok, result
    for rank in (0, 1):
        lines = launch.log(rank).splitlines()
        count = len(lines) - 2
        assert count > 5
        assert lines == ["up", *(f"line {number}" for number in range(1, count + 1)), "end"]
    assert tagged(launch.plan.run_id) == []


@pytest.mark.long
@pytest.mark.lab
def test_node_that_falls_silent_while_steps_go_on_is_connected_again(bench_on, lab) -> None:
    nodes = lab(3)
    bench = bench_on(nodes)
    end = bench.directory / "end"
    launch = bench.launch(bench.plan(STEPS, str(end), timing=TIMING))
    pids = launch.pids(3)
    wait_until(lambda: launch.state and launch.state.step)
    nodes.nodes[1].drop_network()
    wait_until(lambda: "disconnected" in [event["event"] for event in launch.events()])
    step = launch.state.step.step
    wait_until(lambda: launch.state.step.step > step + 20)
    assert launch.state.failure is None
    nodes.nodes[1].restore()
    wait_until(lambda: "reconnected" in [event["event"] for event in launch.events()], 20)
    assert launch.pids(3) == pids
    end.touch()
    result = launch.result()
    assert result.ok, result
    assert tagged(launch.plan.run_id) == []


@pytest.mark.slow
@pytest.mark.lab
def test_head_that_reaches_no_node_ends_no_rank(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    end = bench.directory / "end"
    launch = bench.launch(bench.plan(STEPS, str(end), timing=TIMING))
    pids = launch.pids(2)
    wait_until(lambda: launch.state and launch.state.step)
    to_head = f"10.231.{nodes.subnet}.1/32"

    def told() -> list[str]:
        return [event["text"] for event in launch.events() if event["event"] == "cut-off"]

    for node in nodes.nodes:
        node.exec(["ip", "route", "add", "blackhole", to_head])
    wait_until(told)
    assert told() == [
        "none of the 2 nodes that run can be reached from here; their ranks go on, connecting again"
    ]
    step = launch.state.step.step
    for node in nodes.nodes:
        node.exec(["ip", "route", "del", "blackhole", to_head])
    wait_until(lambda: launch.state.step.step > step + 60, 20)  # more than 3 s of steps at once
    assert len(told()) == 2
    assert launch.pids(2) == pids
    assert launch.state.failure is None
    end.touch()
    result = launch.result()
    assert result.ok, result
    assert tagged(launch.plan.run_id) == []


@pytest.mark.long
@pytest.mark.lab
def test_sshd_that_is_away_on_every_node_ends_no_rank(bench_on, lab) -> None:
    """As while it is updated: its port refuses, and the steps cannot be heard for so long."""
    nodes = lab(2)
    bench = bench_on(nodes)
    end = bench.directory / "end"
    launch = bench.launch(bench.plan(STEPS, str(end), timing=TIMING))
    pids = launch.pids(2)
    wait_until(lambda: launch.state and launch.state.step)
    for node in nodes.nodes:
        node.kill_sshd()
        cut_connections(node)

    def told() -> list[str]:
        return [event["text"] for event in launch.events() if event["event"] == "cut-off"]

    wait_until(told)
    step = launch.state.step.step
    for node in nodes.nodes:
        node.start_sshd()
    wait_until(lambda: launch.state.step.step > step + 60, 20)
    assert launch.pids(2) == pids
    assert launch.state.failure is None
    end.touch()
    result = launch.result()
    assert result.ok, result


@pytest.mark.slow
@pytest.mark.lab
def test_only_node_is_lost_where_a_spare_answers(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    first, spare = bench.nodes
    end = bench.directory / "end"
    plan = bench.plan(STEPS, str(end), nodes=[first], timing=TIMING)
    launch = bench.launch(plan, bench.rules(plan, [spare]))
    wait_until(lambda: launch.state and launch.state.step)
    nodes.nodes[0].die()
    wait_until(lambda: (found := launch.state.nodes.get(spare.name)) and found.pids, 20)
    assert not [event for event in launch.events() if event["event"] == "cut-off"]
    end.touch()
    result = launch.result()
    assert result.ok, result


@pytest.mark.long
@pytest.mark.lab
def test_stop_reaches_a_node_that_comes_back_meanwhile(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    launch = bench.launch(bench.plan(STEPS, str(bench.directory / "end"), timing=TIMING))
    launch.pids(2)
    wait_until(lambda: launch.state and launch.state.step)
    cut_connections(nodes.nodes[1])
    launch.stop.set()
    result = launch.result()
    assert result.exit_code == 130, result
    assert result.leftovers == ()
    assert tagged(launch.plan.run_id) == []
