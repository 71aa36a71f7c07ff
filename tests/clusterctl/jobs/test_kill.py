"""kill ends what it showed and what that starts, proves it, and hits nothing else."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.errors import TransportError
from clusterctl.jobs.kill import Ended, exit_code, report_lines
from clusterctl.jobs.processes import NodeJob, Pick, read_jobs
from clusterctl.payload.jobs import gpu_holders
from clusterctl.payload.jobs.processes import STUCK_S, end_all, members
from clusterctl.remote import payload as ship
from clusterctl.remote.fanout import NodeResult
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.jobs.test_find_job import HERE, look
from tests.clusterctl.jobs.trees import PYTHON, start_of, state, tree, wait_until
from tests.clusterctl.payload.local import LocalConnection


def kill(
    pick: Pick,
    targets: list[tuple[int, int]],
    grace_s: float = 1.0,
    env: dict[str, str] | None = None,
    **more: object,
) -> dict:
    args = {"op": "kill", "pick": pick.to_args(HERE), "targets": targets, "signal": "SIGTERM", "grace_s": grace_s, **more}  # fmt: skip
    return ship.probe(LocalConnection(env), "kill", args, 60)


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"kill-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(tmp_path, ["here"])
    cluster.hostfile.write_text("here host=127.0.0.1\n")
    return patch(monkeypatch, cluster)


def one_round(directory: Path, seed: int) -> None:
    """A random tree dies by tag or by pattern, two others beside it live."""
    rng = random.Random(seed)
    run_id = f"round-{os.getpid()}-{seed}"
    by_tag = rng.random() < 0.5
    meeting = {"RANK": "0", "MASTER_PORT": str(seed + 1)}
    env = {"CLUSTERCTL_RUN": run_id} if by_tag else {}
    pick = Pick((run_id,)) if by_tag else Pick(match=f"{directory}/train\\.py")
    with (
        tree(directory, seed, rng.randint(2, 14), **env, **meeting) as ours,
        tree(directory, seed + 1, 4, name="bystander.py", CLUSTERCTL_RUN=run_id + "x") as other,
        tree(directory, seed + 2, 3, name="trainx.py", RANK="0", MASTER_PORT="99999") as third,
    ):
        rows = look(pick)["rows"]
        assert {row["pid"] for row in rows} == {pid for pid, _ in ours.keys}, seed
        answer = kill(pick, [(row["pid"], row["start"]) for row in rows], grace_s=0.3)
        assert answer["left"] == [], seed
        assert ours.alive() == [], seed
        assert other.alive() == other.keys, seed
        assert third.alive() == third.keys, seed


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_random_trees_die_whole_and_alone(tmp_path: Path, seed: int) -> None:
    one_round(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hundred_random_trees(tmp_path: Path) -> None:
    for seed in range(0, 1000, 10):
        one_round(tmp_path, seed)


@pytest.mark.long
def test_an_id_that_now_belongs_to_another_process_is_not_hit(tmp_path: Path) -> None:
    with tree(tmp_path, 1, 1) as other:
        pid, start = other.keys[0]
        answer = kill(Pick(match="no such thing at all"), [(pid, start - 1)], grace_s=0.1)
        assert (answer["asked"], answer["missed"]) == (0, 1)
        assert other.alive() == other.keys


@pytest.mark.long
def test_what_forks_while_it_is_ended_is_ended_too(tmp_path: Path) -> None:
    """Each SIGTERM begets a child in a session of its own; only SIGKILL and sweeps end that."""
    script = tmp_path / "hydra.py"
    script.write_text(
        "import os, signal, time\n"
        "def beget(*_):\n"
        "    if os.fork() == 0:\n        os.setsid()\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, beget)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(300)\n"
    )
    child = subprocess.Popen([PYTHON, "-I", "-S", script], stdout=subprocess.PIPE)
    child.stdout.readline()
    pick = Pick(match=f"{tmp_path}/hydra")
    answer = kill(pick, [(child.pid, start_of(child.pid))], grace_s=0.3)
    assert answer["left"] == []
    assert answer["swept"] >= 1
    assert look(pick)["rows"] == []
    child.communicate()


@pytest.mark.long
def test_command_asks_and_needs_yes_without_a_terminal(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tree(tmp_path, 1, 3, CLUSTERCTL_RUN=run_id) as ours:
        assert run(["kill", "--run", run_id, str(here.hostfile)]) == 4
        assert run(["kill", "--run", run_id, str(here.hostfile), "--dry-run"]) == 0
        assert ours.alive() == ours.keys
        assert "--yes" in capsys.readouterr().err


@pytest.mark.long
def test_command_ends_the_run_and_says_so(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tree(tmp_path, 1, 5, CLUSTERCTL_RUN=run_id, RANK="0") as ours:
        assert run(["kill", "--run", run_id, str(here.hostfile), "--yes", "--grace", "1"]) == 0
        assert ours.alive() == []
    out = capsys.readouterr().out
    assert "gone: 5 processes on 1 node" in out
    assert run(["kill", "--run", run_id, str(here.hostfile), "--yes"]) == 0


@pytest.mark.long
def test_unreachable_node_is_not_confirmed(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here.hostfile.write_text("here host=127.0.0.1\nlost\n")
    here.nodes["lost"] = TransportError("tcp", "refused")
    with tree(tmp_path, 1, 3, CLUSTERCTL_RUN=run_id):
        code = run(["kill", "--run", run_id, str(here.hostfile), "--yes", "--grace", "1", "--json"])
        assert code == 3
        document = json.loads(capsys.readouterr().out)
        assert [node["confirmed"] for node in document["nodes"]] == [True, False]
    assert run(["kill", "--run", run_id, str(here.hostfile), "--yes"]) == 3
    assert "NOT CONFIRMED: lost: tcp" in capsys.readouterr().err


@pytest.mark.long
def test_two_runs_are_not_guessed_between(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        tree(tmp_path, 1, 2, CLUSTERCTL_RUN=run_id) as one,
        tree(tmp_path, 2, 2, CLUSTERCTL_RUN=run_id + "b") as two,
    ):
        assert run(["kill", str(here.hostfile), "--yes"]) == 2
        assert run_id in capsys.readouterr().err
        assert run(["kill", str(here.hostfile), "--run", run_id, "--yes", "--grace", "1"]) == 0
        assert (one.alive(), two.alive()) == ([], two.keys)


@pytest.mark.long
def test_gpu_memory_that_stays_is_told(tmp_path: Path, run_id: str) -> None:
    with tree(tmp_path, 1, 1, CLUSTERCTL_RUN=run_id) as ours:
        env = fake.install(tmp_path / "bin", fake.h100(1), fake.holders({ours.process.pid: 2048}))
        answer = kill(Pick((run_id,)), ours.keys, env=env, gpu=True, gpu_s=0.3)
        assert (answer["left"], ours.alive()) == ([], [])
    good, bad = report_lines([Ended(NodeJob(HERE), answer)])
    assert good.startswith("gone: 1 process on 1 node")
    assert "2 GiB of GPU memory" in bad[0]
    assert exit_code([Ended(NodeJob(HERE), answer)]) == 1


def with_nvidia_smi(directory: Path, body: str) -> dict[str, str]:
    directory.mkdir()
    fake.write_tool(directory / "nvidia-smi", f"#!/bin/sh\n{body}")
    return {"PATH": f"{directory}:{Path(sys.executable).parent}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sleep 600", "no end in"),
        ("echo Unable to determine the device handle >&2; exit 255", "exit 255"),
        ("kill -9 $$", "exit -9"),
        (":", "cannot read"),
        ("echo Segmentation fault", "cannot read"),
        ("echo 'pid, used_gpu_memory [MiB]'; echo '[N/A], 12'", "cannot read"),
    ],
)
def test_gpu_memory_that_nvidia_smi_does_not_tell_is_not_confirmed(
    tmp_path: Path, run_id: str, body: str, why: str
) -> None:
    env = with_nvidia_smi(tmp_path / "bin", body)
    with tree(tmp_path, 1, 1, CLUSTERCTL_RUN=run_id) as ours:
        answer = kill(Pick((run_id,)), ours.keys, env=env, gpu=True, gpu_s=0.3)
        assert (answer["left"], answer["gpu_left"], ours.alive()) == ([], [], [])
    ended = [Ended(NodeJob(HERE), answer)]
    assert why in answer["gpu_unknown"]
    assert report_lines(ended)[1][0].startswith("NOT CONFIRMED: here: that its GPU memory is free")
    assert exit_code(ended) == 3


@pytest.mark.long
def test_gpu_memory_is_proved_free_by_a_list_that_names_others_or_by_no_gpu(
    tmp_path: Path, run_id: str
) -> None:
    others = f"printf '{fake.holders({os.getpid(): 71204})}'"
    for index, body in enumerate((others, "echo 'No devices were found'; exit 6", None)):
        env = with_nvidia_smi(tmp_path / f"bin{index}", body or "")
        if body is None:
            (tmp_path / f"bin{index}/nvidia-smi").unlink()
        with tree(tmp_path, index, 1, CLUSTERCTL_RUN=run_id) as ours:
            answer = kill(Pick((run_id,)), ours.keys, env=env, gpu=True, gpu_s=0.3)
        assert (answer["gpu_left"], answer["gpu_unknown"]) == ([], "")
        assert exit_code([Ended(NodeJob(HERE), answer)]) == 0


@pytest.mark.long
def test_memory_of_unknown_size_counts_as_held(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tree(tmp_path, 1, 1, CLUSTERCTL_RUN=run_id) as ours:
        pid = ours.process.pid
        here.nodes["here"] = LocalConnection(
            fake.install(tmp_path / "bin", fake.h100(1), fake.holders({pid: "[N/A]"}))
        )
        rows = look(Pick((run_id,)), here.nodes["here"])["rows"]
        assert [row["gpu_bytes"] for row in rows] == [None]
        assert run(["kill", "--run", run_id, str(here.hostfile), "--yes", "--grace", "1"]) == 1
    assert f"some GPU memory of pid {pid}, which has ended" in capsys.readouterr().err


IN_CONTAINER = (
    "mount -t proc proc /proc && mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && "
    'touch /dev/nvidia0 && { sleep 600 & sleep 600 </dev/nvidia0 & "$@"; exit $?; }'
)
"""A shell in namespaces of its own with two processes: the second has a GPU's device open."""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
def test_in_a_container_ids_that_nvidia_smi_names_are_not_taken_for_ours(tmp_path: Path) -> None:
    env = with_nvidia_smi(
        tmp_path / "bin", f"printf '{fake.holders(dict.fromkeys(range(2, 60), 71204))}'"
    )
    python = tmp_path / "bin/python3"
    fake.write_tool(python, f"#!/bin/sh\nexec unshare -m -p -f sh -c '{IN_CONTAINER}' sh {PYTHON} \"$@\"")  # fmt: skip
    if subprocess.run([python, "-c", ""], env=env, check=False).returncode:
        pytest.skip("no namespaces here")
    answer = look(Pick(gpus=True, user=None), LocalConnection(env))
    assert [(row["command"], row["gpu_bytes"]) for row in answer["rows"]] == [("sleep", None)]
    (note,) = answer["notes"]
    assert "only processes with a GPU's device open are taken" in note


def test_in_a_container_free_memory_is_proved_by_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_holders, "has_host_pids", lambda: False)
    for index, (used, proved) in enumerate((("3, 12", True), ("71204", False), ("[N/A]", False))):
        lines = used.replace(", ", "\\n")
        env = with_nvidia_smi(tmp_path / f"bin{index}", f"printf 'memory.used [MiB]\\n{lines}\\n'")
        monkeypatch.setenv("PATH", env["PATH"])
        rows, why = gpu_holders.prove_freed({4711}, 0.1)
        assert (rows, why == "") == ([], proved), why


@pytest.fixture
def cage() -> Iterator[Path]:
    """A cgroup whose processes can be frozen; thawed and empty at the end."""
    root = Path("/sys/fs/cgroup/freezer")
    if os.geteuid() != 0 or not (root / "cgroup.procs").exists():
        pytest.skip("needs root and a cgroup v1 freezer")
    cage = root / f"clusterctl-test-{os.getpid()}"
    cage.mkdir()
    try:
        yield cage
    finally:
        (cage / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (cage / "cgroup.procs").read_text())
        cage.rmdir()


def freeze(cage: Path, pid: int) -> None:
    (cage / "cgroup.procs").write_text(str(pid))
    (cage / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (cage / "freezer.state").read_text() == "FROZEN\n")


@pytest.mark.long
def test_frozen_process_is_reported_and_ends_after_the_thaw(
    tmp_path: Path, run_id: str, cage: Path
) -> None:
    with tree(tmp_path, 1, 2, CLUSTERCTL_RUN=run_id, RANK="7") as ours:
        freeze(cage, ours.process.pid)
        job = read_jobs([NodeResult(HERE, look(Pick((run_id,))), None, 0.0)])[0]
        answer = kill(Pick((run_id,)), ours.keys, grace_s=0.2, kill_s=0.3)
        _, bad = report_lines([Ended(job, answer)])
        assert exit_code([Ended(job, answer)]) == 1
        assert f"pid {ours.process.pid}" in bad[0]
        assert "rank 7 trainer" in bad[0]
        assert "frozen by its cgroup" in bad[0]
        (cage / "freezer.state").write_text("THAWED")
        wait_until(lambda: ours.alive() == [])


def test_process_that_does_not_end_by_sigkill_is_waited_for_once(
    tmp_path: Path, run_id: str, cage: Path
) -> None:
    """An agent ends its ranks in several turns; each would wait a second for the same process."""
    with tree(tmp_path, 1, 1, CLUSTERCTL_RUN=run_id) as ours:
        pid = ours.process.pid
        freeze(cage, pid)
        killed_s: dict[tuple[int, int], float] = {}

        def seconds() -> float:
            begun = time.monotonic()
            left = end_all(lambda: members(run_id), 0.1, killed_s=killed_s)
            assert [one["pid"] for one in left] == [pid]
            return time.monotonic() - begun

        first, second = seconds(), seconds()
        (cage / "freezer.state").write_text("THAWED")
        assert first > STUCK_S
        assert second < STUCK_S / 2


@pytest.mark.long
def test_stopped_trainer_gets_its_sigterm(tmp_path: Path, run_id: str) -> None:
    with tree(tmp_path, 1, 1, CLUSTERCTL_RUN=run_id) as ours:
        os.kill(ours.process.pid, signal.SIGSTOP)
        wait_until(lambda: state(*ours.keys[0]) == "T")
        answer = kill(Pick((run_id,)), ours.keys, grace_s=20)
        assert (answer["left"], answer["forced"]) == ([], 0)
        assert ours.process.wait(5) == -signal.SIGTERM


def test_bad_patterns_and_signals_are_refused(here: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    hostfile = str(here.hostfile)
    for words in (["--match", "("], ["--match", ".*"], ["--signal", "STOP"], ["--run", "a", "--gpus"]):  # fmt: skip
        assert run(["kill", hostfile, *words, "--yes"]) == 2


@pytest.mark.long
def test_all_runs_are_taken_only_on_request(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        tree(tmp_path, 1, 2, CLUSTERCTL_RUN=run_id, CLUSTERCTL_NODE="here") as one,
        tree(tmp_path, 2, 2, CLUSTERCTL_RUN=run_id + "b", CLUSTERCTL_NODE="here") as two,
    ):
        assert run(["kill", str(here.hostfile), "--all-runs", "--dry-run", "-v"]) == 0
        shown = capsys.readouterr().out
        assert all(f"pid {pid} " in shown for pid, _ in [*one.keys, *two.keys])
        assert one.alive() + two.alive() == one.keys + two.keys
