"""What another user puts where root looks for runs and agents: it holds up nothing and spoils no answer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload.files import private
from clusterctl.payload.jobs.processes import start_of
from clusterctl.payload.launch import stopped, waiting
from clusterctl.payload.launch.session import living, pid_file
from clusterctl.remote.messages import verbs

THEIRS = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's files")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The own folder of a user, the only place where such folders can be."""
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setattr(private, "LOCAL", (str(tmp_path / "tmp"),))
    monkeypatch.setattr(private, "RUNTIME", (str(tmp_path / "none"), str(tmp_path / "none%d")))
    made = tmp_path / f"tmp/clusterctl-{THEIRS}"
    made.mkdir(mode=0o700)
    os.chown(made, THEIRS, THEIRS)
    return made


def give(path: Path, data: str) -> None:
    path.write_text(data)
    os.chown(path, THEIRS, THEIRS)


@needs_root
@pytest.mark.parametrize(
    "kind", ["pipe", "link to a pipe", "link to zeros", "device", "folder", "root's", "long"]
)
def test_no_pid_file_of_another_kind_is_waited_for(folder: Path, tmp_path: Path, kind: str) -> None:
    path = folder / "agent-run-00000000.sock"
    place = Path(pid_file(str(path)))
    me = f"{os.getpid()} {start_of(os.getpid())}"
    give(place, me)
    assert living(str(path), THEIRS) == os.getpid()
    place.unlink()
    os.mkfifo(tmp_path / "pipe")
    {
        "pipe": lambda: os.mkfifo(place),
        "link to a pipe": lambda: place.symlink_to(tmp_path / "pipe"),
        "link to zeros": lambda: place.symlink_to("/dev/zero"),
        "device": lambda: os.mknod(place, 0o020666, os.makedev(1, 5)),
        "folder": place.mkdir,
        "root's": lambda: place.write_text(me),
        "long": lambda: give(place, "1" * (1 << 20)),
    }[kind]()
    if kind != "root's":
        os.chown(place, THEIRS, THEIRS, follow_symlinks=False)
    began_s = time.monotonic()
    assert living(str(path), THEIRS) is None
    stopped.tell_agents("run", THEIRS)
    assert time.monotonic() - began_s < 1


@needs_root
def test_a_link_in_place_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    assert stopped.folders_of(THEIRS) == [str(folder)]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    os.chown(folder, THEIRS, THEIRS, follow_symlinks=False)
    assert stopped.folders_of(THEIRS) == []


@pytest.mark.slow
@needs_root
def test_marks_of_one_user_take_no_time_from_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 runs, whose directories do not answer, and one that does."""
    good = tmp_path / "good"
    good.mkdir()
    write = stopped._writer

    def hung(uid: int, mark: dict[str, Any], run_dir: str | None) -> Any:
        return (lambda: time.sleep(60)) if run_dir == "/hung" else write(uid, mark, run_dir)

    monkeypatch.setattr(stopped, "_writer", hung)
    monkeypatch.setattr(stopped, "WRITE_S", 2.0)
    runs: list[tuple[str, str | None]] = [(f"their{n}", "/hung") for n in range(200)]
    runs.append(("ours", str(good)))
    users = {run: {THEIRS} for run, _ in runs[:-1]} | {"ours": {0}}
    began_s = time.monotonic()
    why = stopped.end_runs(runs, "kill", "root@head", users)
    assert time.monotonic() - began_s < 60  # one after another they take 400 s
    assert why.startswith(("no mark in /hung", "user 65534 has more than"))
    assert json.loads((good / stopped.IN_RUN_DIR).read_text())["run"] == "ours"


@pytest.mark.long
@needs_root
def test_waiting_runs_of_another_user_fit_into_the_answer(folder: Path) -> None:
    good = {
        "run": "r", "node": "n1", "job": "j", "run_dir": "/r", "head": "h", "text": "t", "attempt": 1, "since_s": 1.0,
    }  # fmt: skip
    values: list[Any] = [
        "x" * 9000,
        "1e999",
        1e300,
        -1,
        float("nan"),
        1 << 80,
        [],
        {},
        None,
        "\x1b]0;x\x07",
        "\ud800",
    ]
    lies = [{**good, key: value} for key in good for value in values]
    for number, lie in enumerate(lies):
        give(folder / f"waiting-{number:04d}.json", json.dumps(lie))
    os.mkfifo(folder / "waiting-pipe.json")
    give(folder / "waiting-0.json", "[" * 16_000)  # sorted before the others
    assert stopped._read(str(folder / "waiting-0.json")) is None
    for start in range(0, len(lies), 40):  # fewer at a time than are looked at
        for number in range(start):
            (folder / f"waiting-{number:04d}.json").unlink(missing_ok=True)
        check(waiting.waiting_runs([THEIRS]))
    for number in range(3000):
        give(folder / f"waiting-many{number}.json", json.dumps(good))
    began_s = time.monotonic()
    assert len(waiting.waiting_runs([THEIRS])) <= waiting.MOST_WAITING
    assert time.monotonic() - began_s < 5


def check(found: list[dict[str, Any]]) -> None:
    facts = {"hostname": "h", "boot_id": None, "python": "3", "time_s": 1.0, "boottime_s": 1.0, "user": "u"}  # fmt: skip
    head = {"schema": 1, "verb": "kill", "node": facts, "sections": {}}
    answer = {
        **head,
        "rows": [],
        "others": [],
        "machine": "m",
        "waiting": found,
        "login": "u",
        "notes": [],
    }
    verbs.read_line("kill look", json.dumps(answer).encode())
