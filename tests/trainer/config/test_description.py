"""config.json, which infer, evaluate and serve need, is whole at every moment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from trainer.config import description, sources
from trainer.config.load import RUN_CONFIG, load


@pytest.mark.parametrize("name", [RUN_CONFIG, sources.FILE])
def test_full_disk_at_a_later_start_keeps_the_file_of_an_earlier_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("demo")
    description.describe(config, tmp_path, ["train"])
    before = (tmp_path / name).read_bytes()
    assert json.loads((tmp_path / RUN_CONFIG).read_bytes())["argv"] == ["train"]

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10] if name in path.name else data)
        if name in path.name:
            raise OSError(28, "No space left on device", str(path))
        return len(data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        description.describe(config, tmp_path, ["train", "again"])
    assert (tmp_path / name).read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_the_commit_is_asked_for_without_a_write_into_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of root with a strict umask shut another user out of .git/index."""

    def git(*words: str) -> str:
        own = ["git", "-c", "user.name=x", "-c", "user.email=x", *words]
        done = subprocess.run(own, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    source = tmp_path / "trainer" / "config" / "description.py"
    source.parent.mkdir(parents=True)
    source.write_text("1\n")
    git("init", "--quiet")
    monkeypatch.setattr(description, "__file__", str(source))

    def commit() -> str | None:
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        description.describe(load("demo"), run_dir, ["train"])
        return description.said_of(run_dir)["git_commit"]

    assert commit() is None
    git("add", "trainer")
    git("commit", "--quiet", "-m", "x")
    head = git("rev-parse", "HEAD")
    os.utime(source, (0, 0))  # git would note in the index that only the time has changed
    index = tmp_path / ".git" / "index"
    before = index.stat()
    assert commit() == head
    after = index.stat()  # its time of access may have changed
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    source.write_text("2\n")
    assert commit() == f"{head}+"
    monkeypatch.setattr(description, "__file__", str(tmp_path.parent / "a" / "b" / "c.py"))
    assert commit() is None
