"""What other users of a machine can do to our folders, files and locks: nothing."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.payload.files import ownership as trust
from clusterctl.payload.files import private
from clusterctl.payload.files.locks import drop_lock, take_lock
from clusterctl.payload.files.ownership import NotPrivate, made_by_others, open_own, why_untrusted
from clusterctl.payload.files.private import (
    new_folder,
    own_files,
    own_folder,
    own_path,
    replace_file,
)

REPO = Path(__file__).resolve().parents[3]
NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's files")


@pytest.fixture
def open_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like /dev/shm, which is all there is beside one like /tmp; no /run, no logind."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o1777)
    places = tuple(str(tmp_path / name) for name in ("first", "second"))
    monkeypatch.setattr(private, "LOCAL", places)
    monkeypatch.setattr(private, "RUNTIME", (str(tmp_path / "no-run"), str(tmp_path / "no-run-%d")))
    monkeypatch.setattr(private, "LOGIND", str(tmp_path / "no-logind"))
    monkeypatch.setattr(private, "LINGER", str(tmp_path / "linger"))
    return tmp_path / "first"


def test_new_folder_is_ours_alone_and_has_no_name_that_can_be_guessed(open_to_all: Path) -> None:
    one, other = (Path(new_folder("hearts", (str(open_to_all),))) for _ in range(2))
    assert one != other
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    assert one.parent == open_to_all


def test_new_folder_takes_the_next_place_and_says_why_there_is_none(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)  # without the sticky bit anybody may rename what we make
    missing = tmp_path / "missing"
    good = tmp_path / "good"
    good.mkdir()
    assert new_folder("x", (str(missing), str(loose), str(good))).startswith(str(good))
    with pytest.raises(NotPrivate, match=r"missing/.*: No such file.*loose can be changed"):
        new_folder("x", (str(missing), str(loose)))


def test_own_folder_is_the_same_for_all_programs_of_a_user(open_to_all: Path) -> None:
    found = Path(own_folder())
    assert found == open_to_all / f"clusterctl-{os.getuid()}"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert own_folder() == str(found)


def test_file_is_found_where_it_was_made_before_the_machine_made_another_place(
    open_to_all: Path,
) -> None:
    """cron starts programs before anybody has logged in; then there is /run/user."""
    assert own_path("head.sock") == str(Path(own_folder()) / "head.sock")
    made = Path(own_path("head.sock"))
    made.touch()
    runtime = Path(private.places_of(os.getuid())[0][0])
    runtime.mkdir(mode=0o700)
    assert own_folder() == str(runtime / "clusterctl") != str(made.parent)
    Path(own_path("other.sock")).touch()
    assert own_path("head.sock") == str(made)
    assert own_files("*.sock") == [f"{own_folder()}/other.sock", str(made)]
    made.parent.chmod(0o755)  # others may have changed it
    assert own_files("*.sock") == [f"{own_folder()}/other.sock"]
    assert own_path("head.sock") == f"{own_folder()}/head.sock"


def test_folder_of_a_user_outlives_the_last_session(
    open_to_all: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """logind removes /run/user and what is in /dev/shm, but not of root, nor of who lingers."""
    runtime, memory, temporary = (parent for parent, _ in private.places_of(NOBODY))
    assert (memory, temporary) == private.LOCAL
    (tmp_path / "no-logind").mkdir()
    assert [p for p, _ in private.places_of(NOBODY)] == [temporary, memory, runtime]
    assert [p for p, _ in private.places_of(0)][1:] == [memory, temporary]
    assert next(p for p, _ in private.places_of(4_000_000)) == temporary  # a user without a name
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / pwd.getpwuid(NOBODY).pw_name).touch()
    assert [p for p, _ in private.places_of(NOBODY)] == [runtime, memory, temporary]


CLEAN = shutil.which("systemd-tmpfiles")
HOLDS = """
import sys
from clusterctl.payload.files import private
private.LOCAL, private.RUNTIME = sys.argv[1:], ("/nonexistent", "/nonexistent%d")
print(private.own_path("agent.pid"), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(CLEAN is None, reason="needs systemd-tmpfiles, as most machines have it")
def test_old_files_stay_as_long_as_a_process_needs_them(open_to_all: Path, tmp_path: Path) -> None:
    """A supervisor of weeks, and a machine that removes from /tmp what nothing has used for days."""
    rules = tmp_path / "tmp.conf"
    rules.write_text(f"d {open_to_all} 1777 - - mM:10d\n")

    def clean() -> None:
        subprocess.run([str(CLEAN), "--clean", str(rules)], check=True, timeout=60)

    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(open_to_all)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPO,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        path.touch()
        unheld = open_to_all / "unheld"
        unheld.touch()
        for file in (path, path.parent, unheld):
            os.utime(file, (0, 0))
        clean()
        assert path.exists()
        assert not unheld.exists()
        process.communicate(timeout=30)
    clean()
    assert not path.exists()


@pytest.mark.parametrize("squat", ["file", "pipe", "link", "dangling", "loose"])
def test_taken_name_of_the_own_folder_is_left_alone(
    open_to_all: Path, tmp_path: Path, squat: str
) -> None:
    name = open_to_all / f"clusterctl-{os.getuid()}"
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    if squat == "file":
        name.write_text("x")
    elif squat == "pipe":
        os.mkfifo(name)
    elif squat == "link":
        name.symlink_to(victim)
    elif squat == "dangling":
        name.symlink_to(tmp_path / "made-by-us")
    else:
        name.mkdir()
        name.chmod(0o777)
    assert own_folder() == str(tmp_path / "second" / name.name)
    assert not list(victim.iterdir())
    assert not (tmp_path / "made-by-us").exists()


@needs_root
def test_own_folder_of_another_user_is_not_used_and_named_when_nothing_is_left(
    open_to_all: Path, tmp_path: Path
) -> None:
    for place in (open_to_all, tmp_path / "second"):
        folder = place / "clusterctl-0"
        folder.mkdir(mode=0o700)
        os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(NotPrivate, match=f"{open_to_all}/clusterctl-0: belongs to user 65534"):
        own_folder()


def test_links_and_pipes_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        open_own(str(tmp_path / "link"), os.O_RDWR | os.O_CREAT)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotPrivate, match="is not a file"):
        open_own(str(tmp_path / "pipe"), os.O_RDONLY)
    with pytest.raises(OSError, match="symbolic links"):
        take_lock(str(tmp_path / "link"), "me")
    assert victim.read_text() == "precious"


@needs_root
def test_file_of_another_user_is_not_ours_to_open(tmp_path: Path) -> None:
    path = tmp_path / "theirs.lock"
    path.write_text("run \x1b]0;title\x07 1")
    path.chmod(0o666)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(NotPrivate, match="belongs to user 65534"):
        take_lock(str(path), "me")
    os.close(open_own(str(path), os.O_RDONLY, uid=NOBODY))


def test_lock_tells_its_holder_and_is_free_again(tmp_path: Path) -> None:
    path = str(tmp_path / "one.lock")
    lock, _ = take_lock(path, "first 1")
    assert lock is not None
    assert take_lock(path, "second 2") == (None, "first 1")
    drop_lock(lock, path)
    assert not Path(path).exists()
    again, _ = take_lock(path, "third 3")
    assert again is not None
    os.close(again)


def test_file_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.symlink_to(tmp_path / "victim")
    replace_file(str(path), b"new", 0o644)
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(str(path), b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.prom"]


def test_device_or_pipe_is_not_replaced_by_a_file_nor_by_way_of_a_link(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="is no plain file"):
            replace_file(str(path), b"new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "pipe"]


def test_foreign_hand_sees_modes_and_links_on_the_way(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir(mode=0o755)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "link").symlink_to("bin/../bin")
    through = str(tmp_path / "link" / "py-spy")
    assert why_untrusted(through) == ""
    program.chmod(0o757)
    assert why_untrusted(through) == f"{program} can be changed by other users (mode 0757)"
    program.chmod(0o755)
    program.parent.chmod(0o777)
    assert str(program.parent) in why_untrusted(through)
    program.parent.chmod(0o1777)  # others add names there, and cannot take ours away
    assert why_untrusted(through) == ""
    with pytest.raises(FileNotFoundError):
        why_untrusted(str(tmp_path / "missing"))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="too many links"):
        why_untrusted(str(tmp_path / "loop" / "x"))


@needs_root
def test_what_another_user_owns_is_theirs_and_planted_only_where_anybody_can_write(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    (project / "trainer").mkdir(parents=True)
    os.chown(project, NOBODY, NOBODY)
    assert f"{project} belongs to user 65534" in why_untrusted(str(project / "trainer"))
    assert (
        made_by_others(str(project / "trainer")) == ""
    )  # a folder of another owner, on a disk of theirs
    tmp_path.chmod(0o1777)
    assert "open to all" in made_by_others(str(project / "trainer"))
    (tmp_path / "mine").symlink_to(project)
    assert "open to all" in made_by_others(str(tmp_path / "mine"))
    os.lchown(tmp_path / "mine", NOBODY, NOBODY)
    (tmp_path / "real").mkdir()
    assert made_by_others(str(tmp_path / "real")) == ""
    assert made_by_others(str(tmp_path / "real" / "not-there")) == ""
    assert "open to all" in made_by_others(str(project / "not" / "there"))


def test_network_drives_are_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    asked: list[str] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: (asked.append(str(path)), lstat(path))[1])
    monkeypatch.setattr(trust, "_far_mounts", lambda: {str(drive)})
    (tmp_path / "link").symlink_to(drive / "venv")
    assert made_by_others(str(tmp_path / "link" / "bin")) == ""
    assert str(tmp_path / "link") in asked
    assert [path for path in asked if path.startswith(str(drive))] == []


def test_names_about_runs_stay_short_and_as_they_are() -> None:
    """Other versions find the sockets and marks of a run by these names."""
    run = "20260131-235959-a1b2c3"
    assert private.name_of_run("agent", "sock", run, "n1") == f"agent-{run}-78431fa6.sock"
    assert private.name_of_run("stopped", "json", run) == f"stopped-{run}-785e2658.json"
    assert len(private.name_of_run("starter", "sock", "x" * 300, "y" * 253)) < 50
