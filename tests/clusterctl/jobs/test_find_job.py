"""A job is found whole, by tag, by pattern, by GPU; and nothing beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.jobs.trees import PYTHON, tree, wait_until
from tests.clusterctl.payload.local import LocalConnection

HERE = Node("here", host="127.0.0.1")


def look(pick: Pick, connection: LocalConnection | None = None) -> dict:
    args = {"op": "look", "pick": pick.to_args(HERE)}
    return ship.probe(connection or LocalConnection(), "kill", args, 30)


def pids(answer: dict, key: str = "rows") -> set[int]:
    return {row["pid"] for row in answer[key]}


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"find-{os.getpid()}-{tmp_path.name}"


@pytest.mark.long
def test_tag_finds_every_kind_of_child_and_nothing_else(tmp_path: Path, run_id: str) -> None:
    with (
        tree(tmp_path, 1, 12, CLUSTERCTL_RUN=run_id, RANK="3") as ours,
        tree(tmp_path, 2, 4, CLUSTERCTL_RUN=run_id + "x"),
        tree(tmp_path, 3, 2),
    ):
        assert pids(look(Pick((run_id,)))) == {pid for pid, _ in ours.keys}


ODD_ENVIRONMENTS = [
    {"CLUSTERCTL_RUN": "x" * 5000},
    {"CLUSTERCTL_NODE": "\x1b]0;x\x07" * 900},
    {"RANK": "²"},
    {"RANK": "9" * 5000, "WORLD_SIZE": "-1"},
    {"CLUSTERCTL_ROLE": "loader 99999999999999999999"},
    {"CLUSTERCTL_RUN_DIR": "/" * 9000, "MASTER_PORT": "\udcff"},
]


@pytest.mark.long
@pytest.mark.parametrize("odd", ODD_ENVIRONMENTS, ids=lambda odd: " ".join(odd))
def test_odd_environment_of_any_process_does_not_hide_the_node(
    tmp_path: Path, run_id: str, odd: dict[str, str]
) -> None:
    """Any user may start a process with any environment: it must not make the answer unreadable."""
    tagged = {"CLUSTERCTL_RUN": run_id, "RANK": "3"}
    with tree(tmp_path, 1, 2, **tagged) as ours, tree(tmp_path, 2, 2, **{**tagged, **odd}):
        for pick in (Pick((run_id,)), Pick(()), Pick(match=f"python.*{tmp_path}")):
            assert {pid for pid, _ in ours.keys} <= pids(look(pick))


@pytest.mark.long
def test_pattern_takes_whole_trees_also_spawned_workers_and_orphans(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "h", "MASTER_PORT": str(os.getpid()), "RANK": "0"}
    pattern = f"python.*{tmp_path}/train\\.py"
    with tree(tmp_path, 5, 14, **meeting) as ours, tree(tmp_path, 6, 3, name="other.py"):
        answer = look(Pick(match=pattern))
        assert pids(answer) == {pid for pid, _ in ours.keys}
        assert {row["program"] for row in answer["rows"]} >= {f"{Path(PYTHON).name} train.py"}


@pytest.mark.long
def test_who_only_speaks_of_the_program_is_no_part_of_it(tmp_path: Path) -> None:
    pattern = f"python.*{tmp_path.name}-train\\.py"
    named = f"python {tmp_path.name}-train.py"
    shell = subprocess.Popen(["tail", "-f", "/dev/null", "--pid", str(os.getpid()), named], stderr=subprocess.DEVNULL)  # fmt: skip
    head = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "kill", "--match", named])  # fmt: skip
    watcher = [sys.executable, "-m", "clusterctl", "nodes", named]
    try:
        assert pids(look(Pick(match=pattern))) == {head.pid}
        done = subprocess.run([*watcher, "--help"], capture_output=True, check=False)
        assert done.returncode == 0
    finally:
        for child in (shell, head):
            child.kill()
            child.wait()


@pytest.mark.long
@pytest.mark.parametrize("above", [["timeout", "50"], ["sh", "-c", '"$@"; true', "a-job"]])
def test_what_started_a_clusterctl_on_this_machine_is_no_target(
    tmp_path: Path, above: list[str]
) -> None:
    """Its payload runs below sshd, so that it is not above the payload itself."""
    command = tmp_path / "clusterctl"
    command.write_text("import sys\nprint(flush=True)\nsys.stdin.read()\n")
    words = [*above, sys.executable, str(command), "kill", "--match", f"a-job-{tmp_path.name}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*words, "--dry-run"], **pipes) as started:
        assert started.stdout is not None
        started.stdout.read(1)
        assert pids(look(Pick(match=f"a-job-{tmp_path.name}"))) == set()
        started.communicate()


@pytest.mark.long
def test_other_users_processes_are_told_but_not_taken(tmp_path: Path, run_id: str) -> None:
    pattern = f"python.*{tmp_path}/train\\.py"
    with tree(tmp_path, 1, 3):
        answer = look(Pick(match=pattern, user="somebody-else"))
        assert answer["rows"] == []
        assert len(answer["others"]) == 3


@pytest.mark.long
def test_on_a_shared_machine_the_tag_names_the_node(tmp_path: Path, run_id: str) -> None:
    with (
        tree(tmp_path, 1, 2, CLUSTERCTL_RUN=run_id, CLUSTERCTL_NODE="here") as ours,
        tree(tmp_path, 1, 2, CLUSTERCTL_RUN=run_id, CLUSTERCTL_NODE="there"),
    ):
        assert pids(look(Pick((run_id,)))) == {pid for pid, _ in ours.keys}


def test_gpu_holders_are_found_with_their_trees_and_memory(tmp_path: Path) -> None:
    with tree(tmp_path, 1, 4, RANK="0", MASTER_PORT=str(os.getpid())) as ours:
        root = ours.process.pid
        env = fake.install(tmp_path / "bin", fake.h100(1), fake.holders({root: 71204}))
        answer = look(Pick(gpus=True), LocalConnection(env))
        assert pids(answer) == {pid for pid, _ in ours.keys}
        assert {row["gpu_bytes"] for row in answer["rows"] if row["pid"] == root} == {71204 << 20}


def test_what_holds_a_gpu_for_the_machine_is_no_job(tmp_path: Path) -> None:
    server = tmp_path / "Xorg"
    shutil.copy("/bin/sleep", server)
    child = subprocess.Popen([server, "300"])
    try:
        env = fake.install(tmp_path / "bin", fake.h100(1), fake.holders({child.pid: 12}))
        wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "Xorg\n")
        assert pids(look(Pick(gpus=True), LocalConnection(env))) == set()
    finally:
        child.kill()
        child.wait()


@pytest.mark.long
def test_roles_and_ranks_are_told(tmp_path: Path, run_id: str) -> None:
    script = tmp_path / "roles.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "if 'RANK' in os.environ:\n"
        "    if os.fork() == 0:\n        time.sleep(300)\n"
        "    if os.fork() == 0:\n        time.sleep(300)\n"
        "    code = 'import time; time.sleep(300)'\n"
        "    subprocess.Popen([sys.executable, '-c', code], env=dict(os.environ, CLUSTERCTL_ROLE='loader 1.5'))\n"
        "else:\n"
        "    for rank in '01':\n"
        "        subprocess.Popen([sys.executable, __file__], env=dict(os.environ, RANK=rank, WORLD_SIZE='2'))\n"
        "time.sleep(300)\n"
    )
    launcher = subprocess.Popen(
        [PYTHON, "-I", "-S", str(script), "torch.distributed.run"],
        env={"CLUSTERCTL_RUN": run_id}, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: len(pids(look(Pick((run_id,))))) == 9)
        rows = look(Pick((run_id,)))["rows"]
        labels = sorted((row["role"], row["rank"], row["index"]) for row in rows if row["role"] != "launcher")  # fmt: skip
        loaders = [("loader", rank, index) for rank in (0, 1) for index in (0, 1, 5)]
        assert labels == [*loaders, ("trainer", 0, None), ("trainer", 1, None)]
        assert [row["pid"] for row in rows if row["role"] == "launcher"] == [launcher.pid]
    finally:
        for pid in pids(look(Pick((run_id,)))):
            os.kill(pid, 9)
        launcher.wait()
