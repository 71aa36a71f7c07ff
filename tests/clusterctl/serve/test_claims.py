"""Claims of servers that live, that were killed, and that are on another machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clusterctl.serve import claims as module
from clusterctl.serve.claims import CLAIMS, FOLDER, Claims, servers
from tests.clusterctl.serve.serving import wait_for

OF_A_KILLED = """
import sys, time
from pathlib import Path
from clusterctl.serve.claims import Claims
claims = Claims(Path(sys.argv[1])).__enter__()
print(claims.take(Path(sys.argv[2]), "0000-0008"), flush=True)
time.sleep(600)
"""


def test_only_one_of_many_gets_a_batch(tmp_path: Path) -> None:
    folder = tmp_path / "run/epoch0-global_step1"
    with Claims(tmp_path) as one, Claims(tmp_path) as other:
        got: list[bool] = []
        barrier = threading.Barrier(8)

        def take(claims: Claims) -> None:
            barrier.wait()
            got.append(claims.take(folder, "0000-0008"))

        threads = [threading.Thread(target=take, args=(c,)) for c in (one, other) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, second = (one, other) if one.take(folder, "0000-0008") else (other, one)
        assert not second.take(folder, "0000-0008")
        first.give_back(folder, "0000-0008")
        assert second.take(folder, "0000-0008")


def test_the_claim_of_a_killed_server_is_free_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run/epoch0-global_step1"
    words = [sys.executable, "-c", OF_A_KILLED, str(tmp_path), str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        with Claims(tmp_path) as own:
            assert not own.take(folder, "0000-0008")
            assert len(servers(tmp_path)) == 2
            child.kill()
            child.wait()
            assert own.take(folder, "0000-0008")
            own.sweep()
            assert [one.name for one in (tmp_path / FOLDER).iterdir()] == [own.id]
            assert {one.name for one in (folder / CLAIMS).iterdir()} >= {"0000-0008.2"}


def test_a_server_of_another_machine_lives_as_long_as_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock says nothing: the file is from years ahead."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    folder = tmp_path / "run/epoch0-global_step1"
    with Claims(tmp_path) as own:
        far = tmp_path / FOLDER / "feedfacecafe"
        about = {"host": "far", "pid": 1, "since_s": 9e9, "presets": "run", "log": ""}

        def beat(number: int) -> None:
            text = json.dumps({**about, "boot": "another", "beat": number})
            far.write_text(f"feedfacecafe\n{text}\n")

        beat(1)
        (folder / CLAIMS / "0000-0008.1").mkdir(parents=True)
        (folder / CLAIMS / "0000-0008.1/feedfacecafe").touch()
        for number in range(2, 5):
            assert not own.take(folder, "0000-0008")
            now[0] += module.SILENT_S - 1
            beat(number)
        assert not own.take(folder, "0000-0008")
        now[0] += module.SILENT_S - 1
        assert not own.take(folder, "0000-0008")
        now[0] += 2
        assert own.take(folder, "0000-0008")


def test_a_request_to_stop_reaches_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    with Claims(tmp_path, "low4s") as own:
        (found,) = servers(tmp_path)
        assert (found.id, found.presets) == (own.id, "low4s")
        module.ask_to_stop(tmp_path, found)
        wait_for(own.is_asked_to_stop.is_set, 20.0)
    assert not list((tmp_path / FOLDER).iterdir())


def test_sweep_removes_nothing_where_a_link_leads(tmp_path: Path) -> None:
    run, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    (home / "feedfacecafe").write_text("mine")
    with Claims(run / "samples") as own:
        (run / "samples" / FOLDER / "feedfacecafe").symlink_to(home / "feedfacecafe")
        own.sweep()
        assert [one.name for one in (run / "samples" / FOLDER).iterdir()] == [own.id]
        (run / "samples" / FOLDER).rename(run / "samples" / "before")
        (run / "samples" / FOLDER).symlink_to(home)
        own.sweep()
        assert servers(run / "samples") == []
        (run / "samples" / FOLDER).unlink()
        (run / "samples" / "before").rename(run / "samples" / FOLDER)
    assert (home / "feedfacecafe").read_text() == "mine"


@pytest.mark.parametrize("part", ["run", "run/epoch0-global_step1"])
def test_nothing_is_made_where_a_link_leads(tmp_path: Path, part: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    folder = tmp_path / "samples/run/epoch0-global_step1"
    with Claims(tmp_path / "samples") as own:
        (tmp_path / "samples" / part).parent.mkdir(exist_ok=True)
        (tmp_path / "samples" / part).symlink_to(home)
        with pytest.raises(OSError, match="links are not followed"):
            own.take(folder, "0000-0008")
    assert list(home.iterdir()) == []


def test_each_beat_is_on_the_server_of_files_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine would see it up to 30 s later."""
    synced: list[bytes] = []
    with Claims(tmp_path) as own:
        path, real = own.token_file, os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            synced.append(path.read_bytes())

        monkeypatch.setattr(module.os, "fsync", fsync)
        own._beat()
        assert synced == [path.read_bytes()]
