"""`clusterctl clock` on nodes whose clocks are really shifted, by faketime and by their Python."""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.clocks import exchange as clock_talk
from clusterctl.clocks.monitor import Lost, Sample, Track, Watch
from clusterctl.hostfile import read_hostfile
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.payload import MARKER
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection, LocalTransport
from tests.lab.equipment import CAPTURES

needs_faketime = pytest.mark.skipif(not shutil.which("faketime"), reason="no faketime here")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    return patch(monkeypatch, LocalCluster(tmp_path, ["n1", "n2", "n3"]))


def tool(directory: Path, name: str, script: str) -> dict[str, str]:
    """An environment with a program first on its PATH."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def faketime(directory: Path, shift: str) -> dict[str, str]:
    real = Path(sys.executable).resolve()
    return tool(
        directory,
        "python3",
        f'exec faketime --exclude-monotonic -f "{shift}" {shlex.quote(str(real))} "$@"',
    )


def steered(directory: Path) -> tuple[dict[str, str], Path]:
    """A node whose wall clock is off by the seconds in a file, also while it runs."""
    shift = directory.with_suffix(".shift")
    shift.write_text("0")
    code = f"import time;_t=time.time;time.time=lambda:_t()+float(open('{shift}').read() or 0)"
    script = f'shift 3; exec {shlex.quote(sys.executable)} -I -S -c "{code}\n$1"'
    return tool(directory, "python3", script), shift


def move(shift: Path, seconds: float) -> None:
    aside = shift.with_suffix(".aside")  # a reader must not see it half written
    aside.write_text(str(seconds))
    aside.replace(shift)


def ask(cluster: LocalCluster, *args: str) -> int:
    return cli.run(["clock", *args, str(cluster.hostfile)])


# A loaded machine answers late: tests that are not about distance judge it generously.
FAR = ("--limit", "5000")


@pytest.mark.long
@needs_faketime
def test_shift_of_50_ms_is_measured_and_3_ms_is_no_alarm(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    nodes.nodes["n2"] = LocalConnection(faketime(tmp_path / "a", "+0.05s"))
    nodes.nodes["n3"] = LocalConnection(faketime(tmp_path / "b", "+0.003s"))
    for _ in range(5):
        ask(nodes, "--json")
        document = json.loads(capsys.readouterr().out)
        # On a machine that is very busy an answer may take more than the two seconds it has.
        if None not in [one["offset_s"] for one in document["nodes"]]:
            break
    assert (document["schema"], document["command"]) == (1, "clock")
    first, shifted, near = document["nodes"]
    for one, truth_s in ((first, 0.0), (shifted, 0.05), (near, 0.003)):
        assert abs(one["offset_s"] - truth_s) <= max(0.005, one["error_s"])
        assert one["clock"]["exchange"]["samples"] >= 12 or one["error_s"] > 0.001
    if max(one["error_s"] for one in document["nodes"]) > 0.005:
        pytest.skip("this machine is too busy to tell milliseconds apart; the bounds held")
    assert [one["verdict"] for one in document["nodes"]] == ["good", "bad", "good"]
    assert "ahead of the others" in shifted["flags"][0]
    assert (document["widest"]["ahead"], document["exit_code"]) == ("n2", 1)


@pytest.mark.long
def test_good_clocks_fold_and_are_exit_0(nodes: LocalCluster, capsys) -> None:
    assert ask(nodes, "--pairs", *FAR) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split()[:2] == ["NODE", "OFFSET"]
    assert out.splitlines()[1].startswith("n[1-3]")
    assert out.count(" n3 ") == 2  # the pairs with it as the second
    assert err.startswith("3 clocks; widest apart")


@pytest.mark.long
def test_unreachable_node_is_unknown_and_exit_3(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n2")
    assert ask(nodes) == 3
    out, err = capsys.readouterr()
    assert "no answer: banner: the server sent nothing" in out
    assert "error: 1 of 3 nodes did not answer" in err


@pytest.mark.long
def test_step_back_between_two_runs_is_caught_by_the_record(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    env, shift = steered(tmp_path / "a")
    nodes.nodes["n3"] = LocalConnection(env)
    assert ask(nodes, *FAR) == 0
    move(shift, -0.5)
    assert ask(nodes, *FAR) == 1
    out = capsys.readouterr().out
    assert re.search(r"moved back 0\.(49\d?|50?\d?) s since the previous run", out)
    assert ask(nodes, *FAR) == 0  # said once: the record is of the new clock


@pytest.mark.long
def test_nothing_is_remembered_when_not_wanted(nodes: LocalCluster) -> None:
    assert ask(nodes, "--no-history", *FAR) == 0
    assert not list(Path(os.environ["XDG_STATE_HOME"]).glob("**/*.json"))


@pytest.mark.long
def test_chrony_of_each_node_is_shown_with_its_sources(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    for name, state in (("n1", "good"), ("n2", "good"), ("n3", "falseticker")):
        top = CAPTURES / "chrony"
        script = (
            f'case "$*" in *tracking*) cat {shlex.quote(str(top))}/{state}.tracking.csv;; '
            f"*sources*) cat {shlex.quote(str(top))}/{state}.sources.csv;; esac"
        )
        nodes.nodes[name] = LocalConnection(tool(tmp_path / name, "chronyc", script))
    assert ask(nodes, "-v", *FAR) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("n[1-2]")
    assert "1 falseticker" in out.splitlines()[2]
    assert "falseticker, stratum" in err


@pytest.mark.long
def test_hanging_chronyc_is_bounded_and_the_clock_is_measured_all_the_same(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    nodes.nodes["n2"] = LocalConnection(tool(tmp_path / "a", "chronyc", "sleep 1000"))
    ask(nodes, "--json", "--command-timeout", "9")
    hung = json.loads(capsys.readouterr().out)["nodes"][1]
    assert hung["offset_s"] is not None
    assert "no end in 3 s" in hung["clock"]["unknown"]["tracking"]


@pytest.mark.long
def test_node_that_stops_answering_is_unknown_and_delays_nobody(
    nodes: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(clock_talk, "ANSWER_S", 0.5)
    mute = f"head -c 1 >/dev/null; echo {MARKER}; cat >/dev/null"
    nodes.nodes["n1"] = LocalConnection(tool(tmp_path / "a", "python3", mute))
    assert ask(nodes, "--json", *FAR) == 3
    rows = json.loads(capsys.readouterr().out)["nodes"]
    assert [row["verdict"] for row in rows] == ["unknown", "good", "good"]
    assert "no answer to a question for the time in 0.5 s" in rows[0]["flags"][0]


@pytest.mark.long
def test_quiet_is_one_line(nodes: LocalCluster, capsys) -> None:
    assert ask(nodes, "-q", *FAR) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == ""


def test_options_that_do_not_go_together_are_refused(nodes: LocalCluster) -> None:
    assert ask(nodes, "--for", "3") == 2
    assert ask(nodes, "--watch", "--pairs") == 2


@pytest.mark.long
def test_watch_shows_each_node_and_ends_in_time(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n3")
    assert ask(nodes, "--watch", "--for", "2", "--interval", "0.2") == 3
    out, err = capsys.readouterr()
    assert "LAST LOOKS" in out
    assert "x no answer: banner" in out
    assert "no answer: n3" in err


def test_watch_catches_a_clock_that_is_set_back(tmp_path: Path) -> None:
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("n1\n")
    env, shift = steered(tmp_path / "a")
    transport = LocalTransport({"n1": LocalConnection(env)})
    track, alarm = Track("n1"), None
    deadline = time.monotonic() + 60
    with Watch(Cluster(read_hostfile(hostfile), transport), 0.05) as watch:
        while alarm is None and time.monotonic() < deadline:
            try:
                event = watch.events.get(timeout=1.0)
            except queue.Empty:
                continue
            if not isinstance(event, Sample):
                continue  # a loaded machine: the node is asked again
            alarm = track.add(event, 0.1)
            if len(track.offsets_s) == 3:
                move(shift, -2.5)
    assert alarm is not None
    assert alarm.moved_s == pytest.approx(-2.5, abs=0.2)


def test_watch_reports_a_payload_that_ends_and_asks_again(tmp_path: Path) -> None:
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("n1\n")
    broken = LocalTransport({"n1": LocalConnection(tool(tmp_path / "a", "python3", "exit 7"))})
    with Watch(Cluster(read_hostfile(hostfile), broken), 0.1) as watch:
        for _ in range(2):
            assert isinstance(watch.events.get(timeout=60), Lost)
