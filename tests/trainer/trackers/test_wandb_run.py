"""W&B listens; whatever it does, a run neither waits nor fails."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from trainer.runlog.figures import tracked
from trainer.runlog.telemetry import StepRecord
from trainer.trackers.tracker import About
from trainer.trackers.wandb_run import Wandb

KEY = "0123456789abcdef" * 2 + "01234567"


def record(step: int) -> StepRecord:
    return StepRecord(step, 20, 0, 4, 128, 1.0 / step, 0.5, 1e-3, 0.1, {"forward": 0.05})


def sink_in(run_dir: Path, told: list[str], mode: str) -> Wandb:
    about = About(run_dir, "a run", 0, {"lr": 1}, {"world": 2})
    return Wandb(told.append, about, mode=mode, project="clusterctl")


def log(sink: Wandb, step: int) -> None:
    sink.figures(step, tracked(record(step)))


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # set by the sink; put back after
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in taken:
            connection.close()


@pytest.mark.long
def test_offline_figures_lie_in_the_run_directory(tmp_path: Path) -> None:
    told: list[str] = []
    sink = sink_in(tmp_path, told, "offline")
    for step in range(1, 21):
        log(sink, step)
    assert sink.close(limit_s=150)
    assert told == []
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    data = file.read_bytes()
    for name in (b"global_grad_norm", b"debug/forward_time", b"iter", b"world"):
        assert name in data


def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, error: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """What wandb.init is called with, and what is told. A stand-in: there is no server here."""
    given: dict[str, Any] = {}

    class Stub:
        Settings = dict

        @staticmethod
        def init(**options: Any) -> MagicMock:
            given.update(options)
            if error:
                raise RuntimeError(error)
            return MagicMock()

        @staticmethod
        def teardown() -> None:
            pass

    monkeypatch.setitem(sys.modules, "wandb", Stub)
    told: list[str] = []
    sink_in(tmp_path, told, mode).close(limit_s=10)
    return given, told


def test_a_later_start_continues_the_run_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = started(tmp_path, monkeypatch, "online")
    second, told = started(tmp_path, monkeypatch, "online")
    assert (first["resume"], second["resume"]) == ("allow", "must")
    assert first["id"] == second["id"]
    assert told == []
    _, told = started(tmp_path, monkeypatch, "online", "run does not exist")
    assert len(told) == 1
    assert f"run {first['id']} cannot be continued, delete wandb.json" in told[0]
    (tmp_path / "wandb.json").write_text('{"id": "../x", "online": true}')
    other, _ = started(tmp_path, monkeypatch, "online")
    assert other["id"] not in (first["id"], "../x")
    assert other["resume"] == "allow"


def test_a_run_that_began_offline_is_not_asked_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = started(tmp_path, monkeypatch, "offline")
    second, _ = started(tmp_path, monkeypatch, "online")
    assert "resume" not in first
    assert (second["id"], second["resume"]) == (first["id"], "allow")


@pytest.mark.long
def test_offline_starts_of_a_directory_are_one_run(tmp_path: Path) -> None:
    for _ in range(2):
        sink = sink_in(tmp_path, [], "offline")
        log(sink, 1)
        assert sink.close(limit_s=150)
    ids = {path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert len(ids) == 1


def test_a_server_that_never_answers_costs_no_step(
    tmp_path: Path, silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb  # noqa: F401 - a thread that is left importing it would drop the next test's stub

    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent_server}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    told: list[str] = []
    start = time.monotonic()
    sink = sink_in(tmp_path, told, "online")
    for step in range(1, 21):
        log(sink, step)
    assert time.monotonic() - start < 2  # an answer would be waited for minutes
    start = time.monotonic()
    sink.close(limit_s=3)
    assert time.monotonic() - start < 20
    assert len(told) == 1
    assert "W&B" in told[0]
    assert KEY not in told[0]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's file")
@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
def test_settings_of_another_user_in_the_current_folder_get_no_key(
    tmp_path: Path, silent_server: int, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """wandb would take its server from there."""
    work = tmp_path / "work"
    settings = work / folder / "settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[default]\nbase_url = http://127.0.0.1:{silent_server}\n")
    os.chown(settings, 65534, 65534)
    monkeypatch.chdir(work)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    options, told = started(tmp_path, monkeypatch, "online")
    assert options == {}
    assert len(told) == 1
    assert (
        f"{settings} belongs to user 65534: wandb would send the API key to the server" in told[0]
    )
    monkeypatch.setenv("WANDB_BASE_URL", "https://api.wandb.ai")
    options, told = started(tmp_path, monkeypatch, "online")
    assert told == []
    assert options["mode"] == "online"


def test_without_wandb_installed_one_sentence_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    told: list[str] = []
    sink = sink_in(tmp_path, told, "offline")
    assert sink.close(limit_s=30)
    log(sink, 1)
    assert len(told) == 1
    assert "not installed" in told[0]
