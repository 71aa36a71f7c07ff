"""Files that appear whole: two writers of one name, killed writers, writers that fail."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.runlog import locks
from trainer.runlog.atomic_file import part_of, put_in_place, sweep, write_whole

WRITER = """
import sys
from pathlib import Path
from trainer.runlog import locks
from trainer.runlog.atomic_file import part_of
with part_of(Path(sys.argv[1])) as part:
    part.write_text(sys.argv[2])
    print("writing", flush=True)
    sys.stdin.readline()
"""


def writer(path: Path, text: str) -> subprocess.Popen[str]:
    """A process that has written its text and waits for a line before it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_a_second_writer_leaves_the_first_ones_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a[0].mp4"
    first, second = writer(path, "first"), writer(path, "second")
    assert len(list(tmp_path.glob(".*.part"))) == 2
    for process, text in ((first, "first"), (second, "second")):
        process.communicate("go\n", timeout=30)
        assert process.returncode == 0
        assert path.read_text() == text
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    process = writer(path, "half")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    (tmp_path / ".a.mp4.77.part").write_bytes(b"of an older version")
    (tmp_path / ".b.mp4.77.part").write_bytes(b"of another file")
    assert len(list(tmp_path.glob(".a.mp4.*.part"))) == 2
    sweep(path)
    assert [left.name for left in tmp_path.iterdir()] == [".b.mp4.77.part"]


def write_half(path: Path) -> None:
    with part_of(path) as part:
        part.write_text("half")
        raise OSError(28, "No space left on device")


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("before")
    with pytest.raises(OSError, match="No space"):
        write_half(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_file_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.symlink_to(tmp_path / "victim")
    write_whole(path, "new", 0o640)
    assert (path.read_text(), path.is_symlink()) == ("new", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.prom"]


def test_device_or_pipe_is_not_replaced_by_a_file_nor_by_way_of_a_link(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="is no plain file"):
            write_whole(path, b"new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "pipe"]


def test_folder_takes_the_place_of_another_or_leaves_it(tmp_path: Path) -> None:
    fresh, out = tmp_path / "fresh", tmp_path / "out"
    for folder in (fresh, out):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "missing", out)
    assert (out / "name").read_text() == "out"
    put_in_place(fresh, out)
    assert (out / "name").read_text() == "fresh"
    assert list(tmp_path.iterdir()) == [out]


def test_lock_is_taken_by_its_name_and_says_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = locks.take(path)
    locks.write_holder(fd, locks.holder_text(7, "n1", 0.0))
    with pytest.raises(locks.Held) as held:
        locks.take(path, wait_s=0.05)
    assert held.value.strerror.startswith("process 7 on n1 since 19")
    path.unlink()  # as its holder does: the next one takes the new file
    assert not locks.is_named(fd, path)
    fresh = locks.take(path)
    assert locks.is_named(fresh, path)
    os.close(fd)
    os.close(fresh)
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        locks.take(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no plain file"):
        locks.take(path)
