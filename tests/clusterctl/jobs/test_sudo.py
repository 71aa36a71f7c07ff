"""--sudo runs the payload as root, never asks for a password, and still means the user who logged in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.cli import run
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.jobs.trees import tree
from tests.clusterctl.payload.local import LocalConnection


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"sudo-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(tmp_path, ["here"])
    cluster.hostfile.write_text("here host=127.0.0.1\n")
    return patch(monkeypatch, cluster)


def with_sudo(folder: Path, body: str) -> LocalConnection:
    folder.mkdir()
    (folder / "sudo").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sudo").chmod(0o755)
    return LocalConnection({"PATH": f"{folder}:{os.environ['PATH']}"})


@pytest.mark.long
def test_processes_of_who_logged_in_are_meant(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = '[ "$1" = -n ] || exit 9; shift; SUDO_USER=somebody exec "$@"'
    here.nodes["here"] = with_sudo(tmp_path / "bin", body)
    pattern = f"{tmp_path}/train\\.py"
    with tree(tmp_path, 1, 2) as theirs:
        assert run(["kill", str(here.hostfile), "--match", pattern, "--sudo", "--yes"]) == 0
        assert theirs.alive() == theirs.keys
        assert "left alone: 2 processes" in capsys.readouterr().err
        words = ["kill", str(here.hostfile), "--match", pattern, "--sudo", "--user", "all"]
        assert run([*words, "--yes", "--grace", "1"]) == 0
        assert theirs.alive() == []


def test_sudo_that_wants_a_password_is_not_confirmed_and_says_what_to_do(
    here: LocalCluster, tmp_path: Path, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here.nodes["here"] = with_sudo(
        tmp_path / "bin", "echo 'sudo: a password is required' >&2; exit 1"
    )
    assert run(["kill", str(here.hostfile), "--run", run_id, "--sudo", "--yes"]) == 3
    said = capsys.readouterr().err
    assert "NOT CONFIRMED: here: start" in said
    assert run(["kill", str(here.hostfile), "--run", run_id, "--sudo", "--dry-run"]) == 3
    assert "sudo -n true" in capsys.readouterr().err
