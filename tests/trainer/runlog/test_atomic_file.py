"""Files that appear whole: two writers of one name, killed writers, writers that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.runlog.atomic_file import part_of, sweep

WRITER = """
import sys
from pathlib import Path
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
