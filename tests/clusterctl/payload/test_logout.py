"""Whether an agent outlives the login session that started it; busctl is replaced by a recording."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.payload.launch import logout

BUSCTL = """#!/bin/sh
echo "$@" >>{log}
case "$*" in
*KillUserProcesses) echo "b {kills}" ;;
*StartTransientUnit*) {moved} ;;
esac
"""


@pytest.fixture
def busctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`busctl(kills, moved)`: systemd as it answers; returns what was asked."""
    log = tmp_path / "asked"

    def make(kills: str, moved: str = "echo 'o \"/org/freedesktop/systemd1/job/7\"'") -> Path:
        tool = tmp_path / "busctl"
        tool.write_text(BUSCTL.format(log=log, kills=kills, moved=moved))
        tool.chmod(0o755)
        return log

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    return make


def test_nothing_is_asked_for_where_logind_leaves_processes_alone(busctl) -> None:
    asked = busctl("false")
    assert logout.leave_session() is None
    assert "StartTransientUnit" not in asked.read_text()


def test_process_moves_to_a_scope_and_says_what_is_missing(busctl) -> None:
    asked = busctl("true")
    why = logout.leave_session()
    assert f"clusterctl-{os.getpid()}.scope fail 1 PIDs au 1 {os.getpid()} 0" in asked.read_text()
    assert why == "systemd ends processes at logout: run `loginctl enable-linger nobody` once"


def test_refused_scope_is_told(busctl) -> None:
    busctl("true", "exit 1")
    assert "gives no scope of its own" in logout.leave_session()


def test_machine_without_systemd_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert logout.leave_session() is None
