"""stop asks ranks to save and end, and kills nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.errors import TransportError
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.jobs.trees import PYTHON

RANK = """
import json, os, signal, sys, time
def save(*_):
    folder = os.environ["CLUSTERCTL_RUN_DIR"] + "/epoch0-global_step7"
    os.makedirs(folder, exist_ok=True)
    open(folder + "/manifest.json", "w").close()
    if MODE != "slow":
        sys.exit(130)
MODE = sys.argv[1]
if MODE != "deaf":
    signal.signal(signal.SIGTERM, save)
beat = {"pid": os.getpid(), "step": 7, "phase": "checkpoint", "mono_s": time.monotonic()}
with open(os.environ["CLUSTERCTL_HEARTBEATS"] + "/%s.json" % os.environ["RANK"], "w") as file:
    json.dump(beat, file)
print("up", flush=True)
while True:
    time.sleep(1)
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"stop-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def start(tmp_path: Path, run_id: str) -> Iterator[Start]:
    children = []

    def start(rank: int, mode: str = "good") -> subprocess.Popen[bytes]:
        env = {
            "CLUSTERCTL_RUN": run_id, "CLUSTERCTL_NODE": "here", "RANK": str(rank),
            "CLUSTERCTL_RUN_DIR": str(tmp_path), "CLUSTERCTL_HEARTBEATS": str(tmp_path),
        }  # fmt: skip
        argv = [PYTHON, "-I", "-S", "-c", RANK, mode]
        child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(tmp_path, ["here"])
    cluster.hostfile.write_text("here host=127.0.0.1\n")
    return patch(monkeypatch, cluster)


@pytest.mark.long
def test_ranks_save_and_end(
    here: LocalCluster,
    start: Start,
    run_id: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks = [start(0), start(1)]
    words = ["stop", str(here.hostfile), "--run", run_id]
    assert run(words) == 4
    assert run([*words, "--dry-run"]) == 0
    assert [rank.poll() for rank in ranks] == [None, None]
    assert run([*words, "--yes", "--wait", "30"]) == 0
    assert [rank.wait(5) for rank in ranks] == [130, 130]
    assert f"saved {tmp_path}/epoch0-global_step7" in capsys.readouterr().out


@pytest.mark.long
def test_nobody_is_asked_when_one_would_die_of_it(
    here: LocalCluster, start: Start, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [start(0), start(1, "deaf")]
    assert run(["stop", str(here.hostfile), "--run", run_id, "--yes"]) == 1
    assert "rank 1 on here has no handler for SIGTERM" in capsys.readouterr().err
    assert [rank.poll() for rank in ranks] == [None, None]


@pytest.mark.long
def test_what_does_not_end_is_told_and_lives(
    here: LocalCluster, start: Start, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = start(0, "slow")
    assert run(["stop", str(here.hostfile), "--run", run_id, "--yes", "--wait", "0.3"]) == 1
    assert "rank 0 pid" in (said := capsys.readouterr().err)
    assert "step 7, checkpoint for" in said
    assert rank.poll() is None


@pytest.mark.long
def test_silent_node_is_not_confirmed(
    here: LocalCluster, start: Start, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here.hostfile.write_text("here host=127.0.0.1\nlost\n")
    here.nodes["lost"] = TransportError("tcp", "refused")
    start(0)
    assert run(["stop", str(here.hostfile), "--run", run_id, "--yes", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"][0]["answer"]["left"] == []
    assert document["nodes"][1]["unreachable"]["phase"] == "tcp"


def test_launchers_that_wait_for_each_other_are_told_and_nothing_is_sent(
    here: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun before its rendezvous has no rank yet."""
    (tmp_path / "torchrun").write_text("import time\nprint(1, flush=True)\ntime.sleep(60)\n")
    argv = [PYTHON, "-I", "-S", str(tmp_path / "torchrun"), "--rdzv-endpoint", "n1:29500", "x.py"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            match = f"{tmp_path}/torchrun --rdzv-endpoint"
            words = ["stop", str(here.hostfile), "--match", match, "--yes", "--wait", "1"]
            assert run(words) == 1
            said = capsys.readouterr().err
            assert "1 process found, and no rank that could save: nothing was sent" in said
            assert "hint: clusterctl kill" in said
            assert "nothing found" not in said
            assert child.poll() is None
        finally:
            child.kill()
