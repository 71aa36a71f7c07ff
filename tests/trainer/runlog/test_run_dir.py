"""One run in a run directory, also where the first one was killed."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest

from trainer.runlog import run_dir
from trainer.runlog.checkpoint_name import LATEST, MANIFEST, checkpoint_name, complete_names
from trainer.runlog.run_dir import RunDirectoryInUse, lock


def test_a_directory_is_free_again_after_the_run_however_it_ended(tmp_path: Path) -> None:
    reads, tells = os.pipe()
    child = os.fork()
    if child == 0:
        lock(tmp_path)
        os.write(tells, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(reads, 1) == b"x"
        with pytest.raises(RunDirectoryInUse, match=f"{tmp_path}: process {child} on .+ since 20"):
            lock(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    release, note = lock(tmp_path)
    assert note == ""
    with pytest.raises(RunDirectoryInUse, match=f"process {os.getpid()} on "):
        lock(tmp_path)
    release()
    lock(tmp_path)[0]()


def test_a_filesystem_without_locks_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    release, note = lock(tmp_path)
    assert note == f"{tmp_path}/.lock: Operation not supported"
    release()


def attempt(monkeypatch: pytest.MonkeyPatch, number: int, run: str = "run-1") -> None:
    """This process belongs to that attempt."""
    monkeypatch.setenv("CLUSTERCTL_ATTEMPT", str(number))
    monkeypatch.setenv("CLUSTERCTL_RUN", run)


def test_attempt_ends_where_a_later_one_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(monkeypatch, 2)
    for newest in ("", "1\n", "2\n"):
        (tmp_path / run_dir.ATTEMPT).write_text(newest)
        run_dir.require_newest(tmp_path)
    (tmp_path / run_dir.ATTEMPT).write_text("3\n")
    with pytest.raises(run_dir.Superseded, match="attempt 3 of this run has begun"):
        run_dir.require_newest(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_ATTEMPT")  # started by hand
    run_dir.require_newest(tmp_path)


def test_lock_of_an_earlier_attempt_of_the_same_run_holds_up_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(monkeypatch, 1)
    release, note = run_dir.lock(tmp_path)
    assert note == ""
    attempt(monkeypatch, 2)
    assert "run run-1 attempt 1" in run_dir.lock(tmp_path)[1]
    attempt(monkeypatch, 2, run="run-2")
    with pytest.raises(run_dir.RunDirectoryInUse):
        run_dir.lock(tmp_path)
    attempt(monkeypatch, 1)
    with pytest.raises(run_dir.RunDirectoryInUse):
        run_dir.lock(tmp_path)
    release()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_lock_of_a_given_run_that_is_another_file_empties_nothing(
    tmp_path: Path, kind: str
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    if kind == "link":
        (tmp_path / ".lock").symlink_to(mine)
    else:
        os.mkfifo(tmp_path / ".lock")
    release, note = lock(tmp_path)
    assert note.startswith(f"{tmp_path}/.lock: ")
    release()
    assert mine.read_text() == "precious"


def test_files_that_tell_of_a_run_are_not_waited_for(tmp_path: Path) -> None:
    made = tmp_path / checkpoint_name(0, 10)
    made.mkdir()
    os.mkfifo(tmp_path / LATEST)
    os.mkfifo(tmp_path / run_dir.ATTEMPT)
    assert run_dir.begun_attempt(tmp_path) == 0
    (made / MANIFEST).write_text('{"schema": 1, "serial": 3, "files": {}}')
    assert complete_names(tmp_path) == [made.name]
    (made / MANIFEST).unlink()
    os.mkfifo(made / MANIFEST)
    with pytest.raises(OSError, match="a pipe, no plain file"):
        complete_names(tmp_path)
