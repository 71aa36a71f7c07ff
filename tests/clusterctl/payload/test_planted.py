"""What the head names and another user has put there on a node is not run: `ordinary user becomes root`."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.remote import payload as ship
from tests.clusterctl.payload.local import LocalConnection

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's files")
NOBODY = 65534


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder of another user's in a place like /tmp, where the head has its own of that name."""
    folder = tmp_path / "tmp" / "project"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o1777)
    return folder


def own(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.lchown(path, NOBODY, NOBODY)


def script(path: Path, marker: Path) -> Path:
    path.write_text(f"#!/bin/sh\ntouch {marker}\n")
    path.chmod(0o755)
    return path


@pytest.mark.long
def test_interpreter_is_not_asked(planted: Path, tmp_path: Path) -> None:
    python = script(planted / "python", tmp_path / "it-ran")
    args = {"python": str(python)}
    assert (
        ship.probe(LocalConnection(), "census", args, 20)["sections"]["python"]["state"] == "ended"
    )
    (tmp_path / "it-ran").unlink()
    own(planted)
    section = ship.probe(LocalConnection(), "census", args, 20)["sections"]["python"]
    assert section["state"] == "error"
    assert f"{planted} belongs to user {NOBODY}" in section["err"]
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.long
@pytest.mark.parametrize("is_planted", [True, False])
def test_repository_runs_nothing(planted: Path, tmp_path: Path, is_planted: bool) -> None:
    hook = script(planted / "hook", tmp_path / "it-ran")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", str(planted)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "hook"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    subprocess.run([*git, "config", "core.fsmonitor", str(hook)], check=True)
    if is_planted:
        own(planted)
    args = {"launch": True, "workdir": str(planted)}
    section = ship.probe(LocalConnection(), "census", args, 20)["sections"]["git_head"]
    assert section["state"] == ("error" if is_planted else "ended")
    assert not (tmp_path / "it-ran").exists()


def test_trainer_of_another_user_does_not_look_into_videos(planted: Path, tmp_path: Path) -> None:
    python = script(planted / "python", tmp_path / "it-ran")
    own(planted)
    args = {"python": str(python), "home": "/", "workers": 1, "clip_timeout_s": 5}
    with closing(ship.stream(LocalConnection(), "examine", args)) as held:  # type: ignore[arg-type]
        answer = held.receive(20)
    assert answer is not None
    assert "is in a folder that is open to all" in answer["failed"]
    assert not (tmp_path / "it-ran").exists()
