"""Who supervises a run where flock does not hold: it is local to a machine, or there is none."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.cli import run as command
from clusterctl.launch.head import supervisor
from clusterctl.launch.state import Left
from clusterctl.runs import owner
from clusterctl.serve import claims
from tests.clusterctl.launch.harness import wait_until
from tests.clusterctl.launch.test_saved_run import saved

HOLDS = """
import sys, time
from pathlib import Path
from clusterctl.runs import owner
owner.BEAT_S = 0.2
run_dir = Path(sys.argv[1])
lock = owner.take(run_dir)
owner.keep(run_dir, lock, lambda text: print(text, flush=True))
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def elsewhere(tmp_path: Path):
    """A supervisor that lives on another machine, and whose lock is not seen here."""
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "second-head")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


@pytest.mark.usefixtures("another_machine")
def test_second_head_is_refused_where_locks_are_local(
    elsewhere: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "HANDOVER_S", 0.0)
    found = owner.find(tmp_path)
    assert found is not None
    assert (found.pid, found.is_here) == (elsewhere.pid, False)
    with pytest.raises(owner.Owned, match=f"by process {elsewhere.pid} on "):
        owner.take(tmp_path)
    # One that was killed counts until it has been silent for long enough.
    elsewhere.kill()
    elsewhere.wait()
    assert owner.find(tmp_path) is not None
    monkeypatch.setattr(owner, "SILENT_S", 0.5)
    wait_until(lambda: owner.find(tmp_path) is None)
    os.close(owner.take(tmp_path))


@pytest.mark.usefixtures("another_machine")
def test_supervisor_that_another_has_replaced_hears_of_it(
    elsewhere: subprocess.Popen[str], tmp_path: Path
) -> None:
    other = {"host": "second-head", "pid": 7, "since_s": time.time(), "boot": "b"}
    (tmp_path / owner.FILE).write_text(json.dumps(other))
    assert elsewhere.stdout is not None
    assert "process 7 on second-head" in elsewhere.stdout.readline()


def test_supervisor_that_leaves_ranks_to_others_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(*_: object, **__: object) -> None:
        raise Left("n1 is supervised by ann@two")

    monkeypatch.setattr(supervisor, "supervise_here", leave)
    for module, name in ((supervisor, "keep_code"), (supervisor, "leave_session")):
        monkeypatch.setattr(module, name, lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    (tmp_path / "001-x").mkdir()
    saved(tmp_path / "001-x").write()
    assert supervisor.main(tmp_path / "001-x", "resume") == 3
    assert "leaves (n1 is supervised by ann@two); the run goes on: " in capsys.readouterr().out


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(owner, "HANDOVER_S", 0.0)
    assert owner.find(tmp_path) is None
    lock = owner.take(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as child:  # it lives on this machine, so it is the owner
        owner.write(lock, owner.Owner(socket.gethostname(), child.pid, 0.0, owner.boot_id()), 0)
        found = owner.find(tmp_path)
        assert found is not None
        assert found.pid == child.pid
        with pytest.raises(owner.Owned):
            owner.take(tmp_path)
        child.kill()
        wait_until(lambda: owner.find(tmp_path) is None)  # also while nobody has waited for it
    os.close(owner.take(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        '{"host": "h", "pid": 1e400, "since_s": 1}',
        '{"host": "h", "pid": 1, "since_s": 1e300}',
        '{"host": "h", "pid": 1, "since_s": NaN}',
        '{"host": "h", "pid": -1, "since_s": 1}',
        '{"host": "h", "pid": "99999999999999", "since_s": 1}',
        '{"host": "' + "h" * 3000 + '", "pid": 1, "since_s": 1}',
        '{"host": "h", "pid": 1, "since_s": 1' + "0" * 3000 + "}",
        "[" * 4000,
        "[]",
    ],
)
def test_file_of_a_given_run_that_names_no_process_is_no_owner(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an unpacked archive: the file belongs to this user."""
    (tmp_path / owner.FILE).write_text(text)
    assert owner.find(tmp_path) is None
    event = {"event": "attempt", "text": "", "time_s": 1e9, "data": {"attempt": 1, "nodes": ["n1"]}}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    (tmp_path / ".supervisor.json").write_text("{}")
    for words, code in ((["status"], 2), (["why"], 3)):
        assert command([*words, str(tmp_path)]) == code
    said = capsys.readouterr()
    assert "is supervised by" not in said.out + said.err
    folder = tmp_path / "samples" / claims.FOLDER
    folder.mkdir(parents=True)
    (folder / "feedfacecafe").write_text(f"feedfacecafe\n{text}\n")
    assert claims.servers(tmp_path / "samples") == []
