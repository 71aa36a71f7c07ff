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


def test_lock_is_not_led_to_another_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".lock").symlink_to(victim)
    with pytest.raises(UsageError, match="no run directory can be made"):
        claim_run_dir(tmp_path, "A")
    assert victim.read_text() == "precious"


def test_lock_that_somebody_holds_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "LOCK_S", 0.2)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is locked by another program"):
            claim_run_dir(tmp_path, "A")


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
