"""Whose py-spy is run: never one that another user had a hand in; and where a carried one can run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.payload.dump import py_spy as spy
from clusterctl.remote.cluster import Cluster
from clusterctl.stacks import diagnose
from clusterctl.stacks.diagnose import DumpOptions, _packed_py_spy, collect, collect_native
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.report import permission_lines
from clusterctl.stacks.snapshot import read_snapshot
from clusterctl.stacks.wait_sites import Sites
from tests.clusterctl.payload.local import LocalConnection, LocalTransport

HERE = Node("here", host="127.0.0.1")
NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's files")
WAITS = "import time; print('up', flush=True); time.sleep(600)"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"py-spy-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def start(run_id: str) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(argv0: str = "python3", user: int | None = None, **env: str) -> subprocess.Popen[bytes]:  # fmt: skip
            child = subprocess.Popen(
                [argv0, "-c", WAITS], executable="/usr/bin/python3" if user else sys.executable,
                stdout=subprocess.PIPE, user=user, cwd="/",
                env={"CLUSTERCTL_RUN": run_id, "RANK": "0", "PATH": "/usr/bin:/bin", **env},
            )  # fmt: skip
            stack.enter_context(child)
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            return child

        yield start


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that a planted py-spy makes when it is run."""
    return tmp_path / "was-run"


def plant(folder: Path, mark: Path, owner: int = -1) -> Path:
    """`folder`/bin/py-spy, all of it of one owner."""
    path = folder / "bin/py-spy"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\ntouch {mark}\n")
    path.chmod(0o755)
    for one in (path, path.parent, folder):
        os.chown(one, owner, owner)
    return path


def look(run_id: str, env: dict[str, str] | None = None, **looks: object) -> JobSnapshot:
    options = DumpOptions(**{"interval_s": 0.1, "limit_s": 20.0, **looks})  # type: ignore[arg-type]
    transport = LocalTransport({"here": LocalConnection(env)})
    results = list(collect(Cluster([HERE], transport), Pick((run_id,), user=None), options))
    assert results[0].unreachable is None, results[0].unreachable
    return read_snapshot(results, Sites(), interval_s=0.1, samples=2)


def only(snapshot: JobSnapshot) -> Proc:
    (proc,) = snapshot.procs
    return proc


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("by", ["VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "argv"])
def test_file_of_another_user_is_not_run(by: str, start: Start, run_id: str, mark: Path, tmp_path: Path) -> None:  # fmt: skip
    folder = tmp_path / "theirs"
    plant(folder, mark, NOBODY)
    if by == "argv":
        start(f"{folder}/bin/python3", user=NOBODY)
    else:
        start(user=NOBODY, **{by: f"{folder}/bin" if by == "PATH" else str(folder)})
    proc = only(look(run_id))
    assert not mark.exists()
    assert proc.how == "py-spy", proc.error  # the head's own was carried instead


@pytest.mark.long
@needs_root
def test_link_of_another_user_to_a_program_of_root_is_not_followed(
    start: Start, run_id: str, mark: Path, tmp_path: Path
) -> None:
    ours = plant(tmp_path / "ours", mark)
    theirs = tmp_path / "theirs/bin"
    theirs.mkdir(parents=True)
    (theirs / "py-spy").symlink_to(ours)
    os.chown(theirs / "py-spy", NOBODY, NOBODY, follow_symlinks=False)
    start(VIRTUAL_ENV=str(theirs.parent))
    assert only(look(run_id)).how == "py-spy"
    assert not mark.exists()


@pytest.mark.long
@pytest.mark.parametrize("loose", ["bin/py-spy", "bin", ""])
def test_file_that_others_may_replace_is_not_run(loose: str, start: Start, run_id: str, mark: Path, tmp_path: Path) -> None:  # fmt: skip
    folder = tmp_path / "loose"
    plant(folder, mark)
    (folder / loose).chmod(0o777)
    start(VIRTUAL_ENV=str(folder))
    assert only(look(run_id)).how == "py-spy"
    assert not mark.exists()


@pytest.mark.long
def test_own_file_of_the_job_is_run(start: Start, run_id: str, mark: Path, tmp_path: Path) -> None:
    start(VIRTUAL_ENV=str(plant(tmp_path / "env", mark).parents[1]))
    assert only(look(run_id)).error == "py-spy printed no JSON"
    assert mark.exists()


def test_report_says_which_py_spy_was_passed_over_and_why(
    start: Start, run_id: str, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "loose"
    path = plant(folder, mark)
    folder.chmod(0o777)
    start(VIRTUAL_ENV=str(folder))
    monkeypatch.setattr(diagnose, "_packed_py_spy", lambda: None)
    found = look(run_id, {"PATH": "/usr/bin:/bin"})
    assert f"{path} is not run: {folder} can be changed by other users" in only(found).error
    (line,) = permission_lines(found)
    assert f"{folder} can be changed by other users" in line
    assert "--py-spy PATH" in line


@pytest.mark.long
@needs_root
def test_name_of_a_carried_one_that_another_user_has_taken_meanwhile_is_not_run(
    start: Start, run_id: str, mark: Path, tmp_path: Path
) -> None:
    """Between the two looks of --native-suspects the folder of the first one is gone."""
    child = start()
    theirs = plant(tmp_path / "clusterctl-abc", mark, NOBODY)
    transport = LocalTransport({"here": LocalConnection()})
    cluster, found = Cluster([HERE], transport), {HERE: str(theirs)}
    (result,) = collect_native(cluster, {HERE: [child.pid]}, found, sudo=False)
    assert result.value is not None, result.unreachable
    threads, error, _ = result.value["native"][str(child.pid)]
    assert threads, error
    assert not mark.exists()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    with contextlib.ExitStack() as stack:

        def mount(options: str) -> Path:
            folder = tmp_path / options
            folder.mkdir()
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False)  # fmt: skip
            if done.returncode != 0:
                pytest.skip(f"no mount here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", folder], check=True)
            return folder

        yield mount


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("options", ["noexec", "ro"])
def test_carried_one_runs_where_the_temporary_folder_cannot_hold_programs(
    options: str, start: Start, run_id: str, mount: Callable[[str], Path]
) -> None:
    start()
    folder = mount(options)
    found = look(run_id, {"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"})
    assert only(found).how == "py-spy", only(found).error
    assert list(folder.iterdir()) == []


@needs_root
def test_carried_one_runs_from_memory_where_no_folder_can_hold_programs(mount: Callable[[str], Path]) -> None:  # fmt: skip
    folder = mount("noexec")
    path = spy.unpack_py_spy(_packed_py_spy(), (str(folder),))
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("py-spy")
        assert list(folder.iterdir()) == []
    finally:
        spy.remove_py_spy()
    assert not Path(path).exists()
