"""Run directories: taken once, closed to others, not led elsewhere."""

from __future__ import annotations

import errno
import fcntl
import grp
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch import run_dir
from clusterctl.launch.run_dir import claim_run_dir, write_layout


def test_launches_at_the_same_time_get_different_numbers(tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda name=name: made.append(claim_run_dir(tmp_path / "o", name)))
        for name in "ABCDEFGH"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name[:3] for path in made) == [f"{number:03d}" for number in range(1, 9)]


def test_run_directory_and_its_new_parent_are_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = claim_run_dir(tmp_path / "outputs", "A")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o700, 0o700]


def test_run_directory_can_be_opened_to_a_group(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid())
    path = claim_run_dir(tmp_path / "outputs", "A", group.gr_name)
    for one in (path, path.parent):
        assert stat.S_IMODE(one.stat().st_mode) == 0o2750
        assert one.stat().st_gid == group.gr_gid
    tmp_path.chmod(0o755)
    claim_run_dir(tmp_path, "B", group.gr_name)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755  # a folder of the user's stays as it is
    with pytest.raises(UsageError, match="there is no group of that name"):
        claim_run_dir(tmp_path, "C", "no-such-group")


def test_lock_that_somebody_holds_does_not_keep_others_from_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "LOCK_S", 0.2)
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert claim_run_dir(tmp_path, "A").name == "001-A"
    finally:
        os.close(lock)


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be two users")
def test_users_of_one_group_launch_into_one_folder() -> None:
    """Below the system's own folder: pytest's is closed to others."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom clusterctl.launch.run_dir import claim_run_dir\n"
        "os.setgroups([]); os.setgid(4711); os.setuid(int(sys.argv[2]))\n"
        "print(claim_run_dir(Path(sys.argv[1]), 'A').name)\n"
    )
    with tempfile.TemporaryDirectory() as place:
        outputs = Path(place) / "outputs"
        outputs.mkdir()
        Path(place).chmod(0o755)
        os.chown(outputs, 0, 4711)
        outputs.chmod(0o2775)
        for uid, name in ((4001, "001-A"), (4002, "002-A"), (4001, "003-A")):
            command = [sys.executable, "-c", program, str(outputs), str(uid)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.stdout.strip() == name, done.stderr


def test_outputs_that_another_user_has_put_into_tmp_are_refused(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make another user's folder")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs").chmod(0o777)
    os.chown(tmp_path / "outputs", 65534, 65534)
    claim_run_dir(tmp_path / "outputs", "A")  # a folder of another owner, on a disk of theirs
    tmp_path.chmod(0o1777)
    with pytest.raises(UsageError, match="open to all"):
        claim_run_dir(tmp_path / "outputs", "A")


def test_plan_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    write_layout(tmp_path, "run-1", {"attempt": 1})
    program = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from clusterctl.launch.run_dir import write_layout\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "try:\n    write_layout(Path(sys.argv[1]), 'run-1', {'attempt': 2, 'argv': ['x'] * 100})\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{errno.EFBIG}\n"
    assert json.loads((tmp_path / "plan.json").read_text()) == {"attempt": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".run-id", "plan.json", "ranks", "samples", "stacks"
    ]  # fmt: skip
