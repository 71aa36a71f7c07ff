"""Runs that fail and are started again over real ssh servers."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.exclude import change
from clusterctl.exclude.entries import Exclusion
from clusterctl.launch import leftovers, positions
from clusterctl.launch.journal import EVENTS_FILE, INCIDENTS_FILE, Journal
from clusterctl.launch.restart import cleaner, next_attempt
from clusterctl.launch.restart.past import Past
from clusterctl.launch.state import Left
from clusterctl.ledger.entries import path_beside
from clusterctl.ledger.file import read
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.launch.harness import QUICK, read_lines, tagged, wait_until
from trainer.runlog import run_files
from trainer.runlog.telemetry import StepRecord

SOON = replace(QUICK, silent_s=3.0)  # for a node that is lost
# A rank of the first attempt waits for its death; those of later ones end well.
ONCE = """
import os, sys, time
print("attempt", os.environ["CLUSTERCTL_ATTEMPT"], flush=True)
if os.environ["CLUSTERCTL_ATTEMPT"] == "1": time.sleep(60)
"""


@pytest.mark.long
def test_killed_rank_is_followed_by_an_attempt_that_ends_well(bench) -> None:
    plan = bench.plan(ONCE, slots=2)
    hostfile = bench.directory / "cluster.txt"
    launch = bench.launch(plan, bench.rules(plan, exclude_file=path_beside(hostfile)))
    pids = launch.pids(4)
    begun = time.monotonic()
    os.kill(pids[2], signal.SIGKILL)
    result = launch.result()
    print(f"rank death to the end of the next attempt: {time.monotonic() - begun:.2f} s")
    assert result.ok, result
    assert (result.attempts, result.cause) == (2, None)
    assert launch.log(0) == "attempt 1\n--- attempt 2 ---\nattempt 2\n"
    (incident,) = read_lines(plan.run_dir / INCIDENTS_FILE)
    assert (incident["class"], incident["attempt"]) == ("signal-9", 1)
    assert incident["action"] == "starts it again as attempt 2"
    (entry,) = read(path_beside(hostfile)).entries
    assert (entry.node, entry.what, entry.attempt) == (incident["node"], "signal-9", 1)
    names = [event["event"] for event in launch.events()]
    assert names.count("attempt") == 2
    assert names.index("failure") < names.index("restart") < names.index("end")
    (again,) = [event["data"] for event in launch.events() if event["event"] == "restart"]
    assert again == {"attempt": 2, "wait_s": 0.0, "cause": "signal-9", "restarts": 1}
    assert tagged(plan.run_id) == []


@pytest.mark.long
def test_root_that_comes_again_and_again_is_given_up(bench) -> None:
    program = "import os, time\ntime.sleep(0.3)\nos.kill(os.getpid(), 11)\n"
    plan = bench.plan(program)
    result = bench.launch(plan, bench.rules(plan, max_restarts=2)).result(60)
    assert (result.exit_code, result.attempts) == (93, 3)
    assert result.reason.endswith("given up: --max-restarts allows 2 restarts")
    assert result.cause["class"] == "signal-11"
    incidents = read_lines(plan.run_dir / INCIDENTS_FILE)
    assert [one["attempt"] for one in incidents] == [1, 2, 3]
    assert incidents[-1]["action"] == "stopped the run"
    assert tagged(plan.run_id) == []


@pytest.mark.long
def test_stop_ends_a_run_that_waits_for_its_next_attempt(bench) -> None:
    plan = bench.plan("import os\nos.kill(os.getpid(), 11)\n")
    launch = bench.launch(plan, bench.rules(plan))
    wait_until(
        lambda: [e for e in launch.events() if e["event"] == "restart" and e["data"]["wait_s"]]
    )
    launch.stop.set()
    result = launch.result()
    assert (result.exit_code, result.attempts) == (130, 2)
    assert tagged(plan.run_id) == []


@pytest.mark.long
def test_every_attempt_knows_when_the_first_one_began(bench) -> None:
    """For the effective training time ratio, which is the same for the trainer and for `status`."""
    program = "import os\nprint(os.environ['CLUSTERCTL_LAUNCHED_S'], flush=True)\n"
    program += "if os.environ['CLUSTERCTL_ATTEMPT'] == '1': os.kill(os.getpid(), 11)\n"
    plan = bench.plan(program)
    launch = bench.launch(plan, bench.rules(plan))
    assert launch.result().attempts == 2
    first, again = (float(text.split()[0]) for text in launch.log(0).split("--- attempt 2 ---"))
    (attempt, *_) = [one for one in launch.events() if one["event"] == "attempt"]
    assert first == pytest.approx(attempt["time_s"], abs=1.0)
    assert again == pytest.approx(first, abs=0.1)


@pytest.mark.long
def test_new_supervisor_knows_that_the_run_has_trained(bench) -> None:
    """A missing file before the first step of a run is told at once, later it is tried again."""
    program = "import os\nif os.environ['CLUSTERCTL_ATTEMPT'] == '1': open('/not/there')\n"
    plan = bench.plan(program)
    step = StepRecord(46, 99, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01)
    past = Past(phase="starting", step=step, checkpoint="/x/epoch0-global_step46")
    result = bench.launch(plan, bench.rules(plan), past=past).result()
    assert (result.exit_code, result.attempts) == (0, 2), result
    (incident,) = read_lines(plan.run_dir / INCIDENTS_FILE)
    assert (incident["step"], incident["action"]) == (46, "starts it again as attempt 2")


@pytest.mark.long
@pytest.mark.lab
def test_spare_takes_the_place_of_a_dead_node(bench_on, lab) -> None:
    nodes = lab(3)
    bench = bench_on(nodes)
    *first, spare = bench.nodes
    stat = "print('starter', open(f'/proc/{os.getppid()}/stat').read().split(')')[1].split()[19])\n"
    plan = bench.plan(ONCE + stat, nodes=first, timing=SOON)
    launch = bench.launch(plan, bench.rules(plan, [spare]))
    launch.pids(2)
    nodes.nodes[0].die()
    result = launch.result(90)
    assert result.ok, result
    # The spare had its starter before the attempt was even planned.
    begun_s = int(launch.log(0).split("starter ")[1].split()[0]) / os.sysconf("SC_CLK_TCK")
    restart = next(event for event in launch.events() if event["event"] == "restart")
    assert begun_s < restart["mono_s"] + 0.01
    second = [event["data"] for event in launch.events() if event["event"] == "attempt"][1]
    assert second["nodes"] == ["node-3", "node-2"]
    assert [one["node"] for one in second["excluded"]] == ["node-1"]


@pytest.mark.slow
@pytest.mark.lab
def test_run_goes_on_with_fewer_nodes_where_that_is_allowed(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    plan = bench.plan(ONCE, timing=SOON)
    launch = bench.launch(plan, bench.rules(plan, min_nodes=1))
    launch.pids(2)
    nodes.nodes[1].die()
    result = launch.result(90)
    assert result.ok, result
    assert [
        event["data"]["world_size"] for event in launch.events() if event["event"] == "attempt"
    ] == [2, 1]


def test_node_that_is_excluded_while_the_run_lasts_is_left_out_from_then_on(bench) -> None:
    file = bench.directory / "exclude.toml"
    plan = bench.plan(ONCE)
    launch = bench.launch(plan, bench.rules(plan, exclude_file=file, min_nodes=1))
    pids = launch.pids(2)
    change.add(file, [Exclusion("node-1", "flaky"), Exclusion("elsewhere", "of another run")])
    os.kill(pids[1], signal.SIGKILL)
    result = launch.result()
    assert (result.exit_code, result.attempts) == (0, 2), result
    second = [event["data"] for event in launch.events() if event["event"] == "attempt"][1]
    assert (second["nodes"], second["world_size"]) == (["node-2"], 1)
    assert second["excluded"] == [{"node": "node-1", "why": "excluded: flaky"}]


def test_attempt_says_that_it_could_not_read_which_nodes_are_excluded(bench) -> None:
    file = bench.directory / "exclude.toml"
    plan = bench.plan(ONCE)
    launch = bench.launch(plan, bench.rules(plan, exclude_file=file))
    pids = launch.pids(2)
    file.write_text("[[exclude]\n")
    os.kill(pids[1], signal.SIGKILL)
    result = launch.result()
    assert (result.exit_code, result.attempts) == (0, 2), result
    [told] = [event["text"] for event in launch.events() if event["event"] == "exclude-file"]
    assert told.startswith(f"{file} cannot be read: ")


def test_note_that_cannot_be_removed_does_not_keep_a_run_from_its_next_attempt(bench) -> None:
    plan = bench.plan(ONCE)
    launch = bench.launch(plan, bench.rules(plan))
    pids = launch.pids(2)
    note = plan.run_dir / positions.FILE
    note.unlink(missing_ok=True)
    note.mkdir()
    os.kill(pids[1], signal.SIGKILL)
    result = launch.result()
    assert (result.exit_code, result.attempts) == (0, 2), result
    texts = [event["text"] for event in launch.events() if event["event"] == "error"]
    assert any(str(note) in text for text in texts), texts


@pytest.mark.long
@pytest.mark.lab
def test_run_waits_for_a_node_that_comes_back(
    bench_on, lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_attempt, "LONG_S", 0.0)
    monkeypatch.setattr(next_attempt, "ASK_SELDOM_S", 0.3)
    nodes = lab(2)
    bench = bench_on(nodes)
    plan = bench.plan(ONCE, timing=SOON)
    launch = bench.launch(plan, bench.rules(plan, patience_s=60.0))
    launch.pids(2)
    nodes.nodes[1].drop_network()
    (told,) = wait_until(
        lambda: [one["text"] for one in launch.events() if one["event"] == "waiting"], 30
    )
    assert told.startswith("1 node can be used of the 2 that are needed (node-2: ")
    nodes.nodes[1].restore()
    result = launch.result(60)
    assert (result.exit_code, result.attempts) == (0, 2), result
    assert tagged(plan.run_id) == []


@pytest.mark.slow
@pytest.mark.lab
def test_run_ends_when_no_node_has_come_back_in_time(bench_on, lab) -> None:
    nodes = lab(2)
    bench = bench_on(nodes)
    plan = bench.plan(ONCE, timing=SOON)
    launch = bench.launch(plan, bench.rules(plan, patience_s=0.0))
    launch.pids(2)
    nodes.nodes[1].die()
    result = launch.result(60)
    assert (result.exit_code, result.attempts) == (3, 1), result
    assert "1 node can be used of the 2 that are needed (node-2: " in result.reason


@pytest.mark.long
@pytest.mark.lab
def test_node_that_was_cut_off_is_cleaned_when_it_comes_back(
    bench_on, lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its rank, and the run goes on with a spare; nothing is left when that ends."""
    monkeypatch.setattr(cleaner, "EVERY_S", 0.5)
    nodes = lab(3)
    bench = bench_on(nodes)
    *first, spare = bench.nodes
    end = bench.directory / "end"
    program = (
        "import os, sys, time\nfrom pathlib import Path\nprint('up', flush=True)\n"
        "while os.environ['CLUSTERCTL_ATTEMPT'] == '1' or not Path(sys.argv[1]).exists(): time.sleep(0.05)\n"
    )
    plan = bench.plan(program, str(end), nodes=first, timing=SOON)
    launch = bench.launch(plan, bench.rules(plan, [spare]))
    launch.pids(2)
    nodes.nodes[1].drop_network()
    wait_until(lambda: "--- attempt 2 ---" in launch.log(0), 30)
    lost = [pid for pid in nodes.nodes[1].processes() if pid in tagged(plan.run_id)]
    assert lost
    nodes.nodes[1].restore()
    wait_until(lambda: not set(lost) & set(tagged(plan.run_id)), 20)
    end.touch()
    result = launch.result()
    assert (result.exit_code, result.unconfirmed, result.leftovers) == (0, (), ())


@pytest.mark.long
def test_full_disk_of_the_head_ends_no_run(bench) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    plan = bench.plan(ONCE)
    launch = bench.launch(plan, bench.rules(plan), on_change=fails)
    os.kill(launch.pids(2)[0], signal.SIGKILL)
    result = launch.result()
    assert (result.exit_code, result.attempts) == (0, 2)
    errors = [event["text"] for event in launch.events() if event["event"] == "error"]
    assert errors[0].startswith("another supervisor would not know of this: [Errno 28]")


def test_supervisor_that_leaves_waits_for_room_for_its_last_events(bench, monkeypatch) -> None:
    """The disk of the head is full when a rank dies; the supervisor then gets SIGTERM."""
    full, leave = threading.Event(), threading.Event()
    real, settle = run_files.open_to_append, Journal.settle

    def opened(path: Path) -> int:
        if full.is_set() and path.name == EVENTS_FILE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    def room_comes(journal: Journal, within_s: float) -> str:
        full.clear()
        return settle(journal, within_s)

    monkeypatch.setattr(run_files, "open_to_append", opened)
    monkeypatch.setattr(Journal, "settle", room_comes)
    plan = bench.plan(ONCE)
    launch = bench.launch(plan, bench.rules(plan), leave=leave.is_set)
    pids = launch.pids(2)
    full.set()
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: launch.state.failure)
    leave.set()
    with pytest.raises(Left):
        launch.result()
    assert "failure" in [event["event"] for event in launch.events()]
    cluster = Cluster(launch.plan.nodes, ParamikoTransport())
    assert leftovers.prove_gone(launch.plan, cluster, is_over=True, is_asked=True) == ((), ())
