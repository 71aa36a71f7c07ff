"""A name is data: whatever stands where a node's name should be runs, writes and delays nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cli import COMMANDS, run
from clusterctl.errors import HostfileError, TransportError
from clusterctl.exclude.entries import why_bad_node
from clusterctl.hostfile import parse_hostfile
from clusterctl.launch.causes.kinds import Cause, Kind
from clusterctl.ledger.entries import entry_of
from clusterctl.node_name import is_node_name, node_names, why_bad_name
from clusterctl.node_sets import expand
from clusterctl.nodes import Node, fold, select
from clusterctl.remote.messages.verbs import read_line
from clusterctl.runs.journal import incident_event, launcher_event, planned_nodes
from dashboards.model.samples import NodeDown, NodeSample, RunOpened
from dashboards.recording.file_format import Appender
from dashboards.recording.validation import is_sound
from dashboards.recording.writer import Writer
from tests.clusterctl.attack.hostile_names import hostile_names

WORST_S = 2.0  # of one name; a fold of n[1-10000000] took 70 s
READERS = ["status", "why", "report", "logs", "compare", "top", "gallery", "watch"]
_STARTED: list[str] = []
_WATCHED: list[str] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _WATCHED and event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        _STARTED.append(f"{event} {args!r}")


sys.addaudithook(_audit)  # cannot be removed: it looks only while a test asks it to


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that a shell would make. No process may be started but for groups that have a name."""
    path = tmp_path / "PWNED"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    _STARTED.clear()
    _WATCHED.append("")
    yield path
    _WATCHED.clear()
    assert not path.exists()
    ours = ("clustershell", "trainer.config", "clusterctl.checkpoints")  # none of a name's choice
    assert [one for one in _STARTED if "PWNED" in one or not any(map(one.__contains__, ours))] == []


def quick(began_s: float) -> bool:
    return time.process_time() - began_s < WORST_S


def test_there_are_enough_of_them(canary: Path) -> None:
    names = hostile_names(canary)
    assert len(set(names)) == len(names) >= 200
    assert [name for name in names if is_node_name(name)] == []
    assert all(map(why_bad_name, names))


def names_or_sentence(read: Any, text: str) -> list[str]:
    """What is read, or a sentence that quotes no more of the text than fits on a screen."""
    try:
        return [getattr(one, "name", one) for one in read(text)]
    except HostfileError as error:
        return [] if len(str(error)) < 400 or len(text) > 1000 else pytest.fail(str(error))


@pytest.mark.long
def test_sets_and_hostfiles_run_nothing(canary: Path) -> None:
    for name in hostile_names(canary):
        began_s = time.process_time()
        assert fold([name, "n1", "n2"]).endswith("n[1-2]")
        assert fold([name, name]) == name
        for text in (name, f"{name},n1", f"n1,{name}", f"n[1-2],{name}", f"root@{name}"):
            for read in (expand, parse_hostfile, lambda text: select([Node("n1")], text, text)):
                found = names_or_sentence(read, text)
                assert read is expand or all(map(is_node_name, found))
        assert quick(began_s), name[:80]


def test_no_node_message_event_or_entry_has_such_a_name(canary: Path) -> None:
    agent = {
        "run": "r", "node": "n1", "job": "", "run_dir": "/r", "attempt": 1, "first_rank": 0, "slots": 1, "lease_s": 1.0,
        "since_s": 1.0, "state": "running", "head": "", "alone_since_s": None, "step": None, "phase": None,
    }  # fmt: skip
    facts = {"hostname": "h", "boot_id": None, "python": "3", "time_s": 1.0, "boottime_s": 1.0, "user": "u"}  # fmt: skip
    answer = {
        "schema": 1,
        "verb": "launch.agents",
        "node": facts,
        "sections": {},
        "agents": [agent],
        "waiting": [],
        "unread": [],
    }
    read_line("launch.agents", json.dumps(answer).encode())
    cause = Cause.from_json({**Cause(Kind.XID).to_json(), "node": "n1"}).to_json()
    for name in hostile_names(canary):
        with pytest.raises(ValueError, match=r"."):
            Node(name)
        assert why_bad_node(name)
        assert node_names(["n1", name], 9) == ()
        answer["agents"] = [{**agent, "node": name}]
        with pytest.raises(TransportError, match="should be the name of a node"):
            read_line("launch.agents", json.dumps(answer).encode())
        line = json.dumps({"event": "rank", "text": "", "time_s": 1.0, "node": name})
        event = launcher_event(line)
        assert event is not None
        assert "node" not in event.data
        line = json.dumps({"incident": "x", "text": "", "time_s": 1.0, "node": name})
        event = incident_event(line)
        assert event is not None
        assert "node" not in event.data
        assert (
            planned_nodes({"nodes": [{"name": "n1", "slots": 1}, {"name": name, "slots": 1}]}) == []
        )
        with pytest.raises(ValueError, match=r"."):
            Cause.from_json({**cause, "node": name})
        entry = {"version": 1, "node": name, "kind": "note", "text": "x", "time_s": 1.0, "by": ""}
        assert entry_of(json.dumps(entry).encode()) is None
        for sample in (NodeSample(name, 1.0), NodeDown(name, 1.0, "tcp", ""), RunOpened("d", "d", 1.0, (name,), (1,))):  # fmt: skip
            assert not is_sound(sample)
    good = {"version": 1, "node": "n1", "kind": "note", "text": "x", "time_s": 1.0, "by": ""}
    assert entry_of(json.dumps(good).encode()) is not None
    assert is_sound(NodeSample("n1", 1.0))


def given_run(folder: Path, names: list[str]) -> Path:
    """A run directory of somebody else, with a hostile name wherever a name may be."""
    folder.mkdir(parents=True)
    plan = {"nodes": [{"name": name, "slots": 1} for name in names], "config": "demo"}
    (folder / "plan.json").write_text(json.dumps(plan))
    lines, incidents = [], []
    for number, name in enumerate(names, 1):
        at = {"time_s": 1e9 + 10 * number, "mono_s": 10.0 * number, "node": name}
        data = {
            "attempt": number, "nodes": [name, "n1", "n2"], "spares": [name, "n3"], "world_size": 3,
            "excluded": [{"node": name, "why": name[:200]}], "node": name,
        }  # fmt: skip
        lines.append({"event": "attempt", "text": name[:200], "data": data, **at})
        for rank in (0, 1, 2):
            lines.append({"event": "rank", "text": f"rank {rank} is pid 7", **at})
        lines.append({"event": "lost", "text": name[:200], **at})
        lines.append(
            {"event": "rank-ended", "text": "rank 0: exit code 1", "data": {"code": 1}, **at}
        )
        lines.append({"event": "restart", "text": "", "data": {"attempt": number + 1, "cause": "x", "node": name}, **at})  # fmt: skip
        root = {
            "class": "node-unreachable", "detail": "", "file": "", "is_root": True, "is_of_node": True, "node": name,
            "rank": None, "evidence": None, "note": "",
        }  # fmt: skip
        incidents.append({"incident": "x", "text": "x", "attempt": number, "class": "node-unreachable", "root": root, **at})  # fmt: skip
    for file, told in (("events.jsonl", lines), ("incidents.jsonl", incidents)):
        (folder / file).write_text("".join(json.dumps(one) + "\n" for one in told))
    return folder


def given_recording(path: Path, names: list[str]) -> Path:
    """As a writer that checks nothing would write it."""
    writer = Writer(Appender(path, 1 << 26), names, "hour", 1.0)
    for second in range(3):
        at_s = 1e9 + second
        said: list[Any] = [NodeSample(name, at_s) for name in names[:20]]
        said += [NodeDown(name, at_s, "tcp", "") for name in names[20:40]]
        said.append(RunOpened("d", "d", at_s, tuple(names[:20]), (1,) * 20))
        writer.take(at_s, said)
    writer.close()
    return path


@pytest.mark.long
def test_a_given_run_and_recording_run_nothing_in_any_command(
    canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in hostile_names(canary) if name.isprintable() and len(name) < 1000]
    folder = given_run(canary.parent / "outputs/001-given", names)
    other = given_run(canary.parent / "outputs/002-given", names[:3])
    recording = given_recording(canary.parent / "given.rec", [name for name in names if name])
    began_s = time.process_time()
    calls = [
        ["status", f"{folder}"], ["status", f"{folder}", "--json"], ["why", f"{folder}"], ["why", f"{folder}", "--json"],
        ["why", f"{folder}", "--bundle", "given.tar.gz", "--dry-run"], ["report", f"{folder}", "report.html"],
        ["compare", f"{folder}", f"{other}"], ["logs", f"{folder}"], ["logs", f"{folder}", "--node", "zz"],
        ["gallery", f"{folder}"], ["attach", f"{folder}", "--yes"], ["stop", "--run", f"{folder}", "--dry-run"],
        ["top", "--run", f"{folder}", "--once"], ["top", "--replay", f"{recording}", "--once"],
        ["watch", "--run", f"{folder}", "--once"], ["watch", "--replay", f"{recording}"],
        ["serve", f"{folder}", "--once", "--dry-run"], ["export", "--replay", f"{recording}"],
    ]  # fmt: skip
    for call in calls:
        assert run(call) in (0, 1, 2, 3), call
        assert "\x1b" not in capsys.readouterr().out
    assert _STARTED == []
    assert time.process_time() - began_s < 60


@pytest.mark.long
def test_a_hostfile_and_options_run_nothing_in_any_command(
    canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each name with the next command, so that every command has several; slow ones have two."""
    takes = {
        "run": ["true"], "push": ["nodes.txt", "/x"], "exclude": ["list"], "data": ["check", "x.csv"],
        "launch": ["demo"], "plan-checkpoints": ["demo"], "kill": ["--yes"], "stop": ["--yes"],
    }  # fmt: skip
    none = {"demo", "attach", "status", "logs", "why", "report", "compare", "gallery", "env"}
    slow = ["launch", "plan-checkpoints"]  # these read the config first
    commands = [name for name in COMMANDS if name not in {*none, *slow}]
    good = canary.parent / "good.txt"
    good.write_text("n1 host=127.0.0.1 port=1\n")
    bad = canary.parent / "nodes.txt"
    lines = {name: "'" + name.replace("'", "'\"'\"'") + "'" for name in hostile_names(canary)}
    names = [
        name
        for name, line in lines.items()
        if not {"\0", "\ud800"} & set(name) and name and not names_or_sentence(parse_hostfile, line)
    ]
    assert len(names) > 150
    for number, name in enumerate(names):
        command = commands[number % len(commands)] if number > 3 else slow[number % 2]
        bad.write_text(f"{lines[name]}\nn1\n", encoding="utf-8")
        began_s = time.process_time()
        words = [command, *takes.get(command, ())]
        assert run([*words, "--hostfile", f"{bad}"]) == 2, (command, name)
        assert run([*words, "--hostfile", f"{good}", "-w", name]) == 2, (command, name)
        assert "Traceback" not in capsys.readouterr().err
        assert quick(began_s), (command, name[:80])
