"""Recordings that are damaged, cut, old or no recordings: said, and never shown as good."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.errors import UsageError
from dashboards import select_feed as sources
from dashboards.feeds.replay import Replay
from dashboards.model.samples import NodeSample
from dashboards.recording import codec as plain
from dashboards.recording import file_format
from dashboards.recording import writer as record
from dashboards.recording.file_format import DEEP, OLD_MAGIC, ROUND, Appender
from dashboards.simulation.healthy import names
from tests.dashboards.recording.player import (
    Player,
    folded,
    rewritten,
    rounds,
    sessions,
    ticks,
    write,
)
from tests.dashboards.recording.rows import change_row, damage_row
from tests.dashboards.simulated_hour import BEGIN_S


@pytest.mark.long
def test_history_rows_that_lie_no_time_apart_are_not_believed(tmp_path: Path) -> None:
    path = sessions(tmp_path / "night", BEGIN_S)
    odd = rewritten(path, "begin", '"history_step_s":1.0', '"history_step_s":0')
    assert len(ticks(odd)) == len(ticks(path))
    player = Player(odd)
    player.feed.seek_end()
    assert player.tick(0.0).history_step_s == 1.0


@pytest.mark.long
@pytest.mark.parametrize("deep", [5_000, 400_000])
def test_deeply_nested_text_is_a_damaged_row(
    tmp_path: Path, deep: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sessions(tmp_path / "night", BEGIN_S)
    odd = rewritten(path, ROUND, "[", "[" + deep * "[" + deep * "]" + ",")
    assert len(ticks(odd)) < len(ticks(path))
    assert run(["watch", "--replay", str(odd), "--skip", "run"]) == 3
    assert "parts of this recording are damaged" in capsys.readouterr().err
    assert run(["top", "--once", "--replay", str(path)]) == 0
    assert run(["top", "--once", "--replay", str(odd)]) in (0, 3)


@pytest.mark.long
@pytest.mark.parametrize("how", ["missing", "changed", "page"])
def test_what_is_missing_of_a_recording_is_said_and_never_good(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sessions(tmp_path / "night", BEGIN_S)
    assert run(["watch", "--replay", str(path), "--json", "--skip", "run"]) == 0
    assert json.loads(capsys.readouterr().out)["damage"] == ""
    if how == "page":
        data = bytearray(path.read_bytes())
        data[len(data) // 2 // 2048 * 2048 + 500] ^= 0xFF
        path.write_bytes(data)
    elif how == "missing":
        change_row(path, ROUND, 12, "DELETE FROM samples WHERE id = ?")
    else:
        damage_row(path, ROUND, 12)
    assert run(["watch", "--replay", str(path), "--json", "--skip", "run"]) == 3
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "damaged" in end["damage"]
    assert end["exit_code"] == 3


def test_recording_that_unpacks_to_all_of_the_memory_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sessions(tmp_path / "night", BEGIN_S)
    monkeypatch.setattr(file_format, "MAX_BYTES", dict.fromkeys(file_format.MAX_BYTES, 600))
    with pytest.raises(UsageError, match="no part of it can be read"):
        ticks(path)
    appender = Appender(tmp_path / "long", 1 << 20)
    with pytest.raises(ValueError, match="too long"):
        appender.append(1.0, ROUND, bytes(601))
    appender.close()


def test_pipe_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        sources.replayed(tmp_path / "pipe")


@pytest.mark.long
def test_damaged_row_is_left_out(recording: Path, tmp_path: Path) -> None:
    path = shutil.copy(recording, tmp_path / "damaged")
    damage_row(path, ROUND, 42)
    player = Player(path)
    player.tick(0.0)
    for _ in range(149):
        player.tick()
    end = folded(150)
    assert player.state.now_s == end.now_s
    assert player.state.nodes[names(4)[1]].sample is not None
    assert [alert.key for alert in player.state.alerts.active] == [a.key for a in end.alerts.active]


def test_values_come_back_as_they_were() -> None:
    for samples in itertools.islice(rounds(), 60):
        for sample in samples:
            text = json.dumps(plain.encode(sample))
            assert plain.decode(json.loads(text)) == sample


def test_difference_makes_the_new_of_the_old() -> None:
    before: NodeSample | None = None
    for samples in itertools.islice(rounds(), 80):
        for sample in samples:
            if isinstance(sample, NodeSample) and sample.node == names(4)[0]:
                if before is not None:
                    old, new = plain.encode(before), plain.encode(sample)
                    said = json.loads(json.dumps(plain.difference(old, new)))
                    assert plain.changed(old, said) == new
                    assert plain.decode_like(said, before, new) == sample
                before = sample


@pytest.mark.parametrize(
    "text",
    ['["Path", "/etc"]', '["os.system", "true"]', "[]", "[1]", '{"1": 2}', '["NodeSample", 1]', '["Tick"]'],
)  # fmt: skip
def test_file_from_elsewhere_makes_only_what_is_known(text: str) -> None:
    with pytest.raises(ValueError):
        plain.decode(json.loads(text))


def test_damaged_key_falls_back_to_the_one_before(recording: Path, tmp_path: Path) -> None:
    path = shutil.copy(recording, tmp_path / "damaged")
    damage_row(path, "key", 1)
    player = Player(path)
    player.feed.pause()
    player.feed.seek_to(BEGIN_S + 65)
    assert player.tick().now_s == BEGIN_S + 65
    assert len(player.state.nodes) == 4


@pytest.mark.long
def test_history_that_another_version_laid_out_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Player(write(tmp_path / "ours.rec", rounds(50))).tick(45)
    with monkeypatch.context() as then:
        then.setattr(record, "LAYOUT", [["power_kw"], ["cpu"], ["power"]])
        old = write(tmp_path / "old.rec", rounds(50))
    node, same = Player(old).tick(45).nodes["ml-64-node-004"], ours.nodes["ml-64-node-004"]
    assert node.sample == same.sample
    assert 0 < len(node.history) < len(same.history)  # since the last key
    assert node.history.rows() == same.history.rows(len(node.history))


def test_garbage_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "file"
    appender = Appender(path, 1 << 20)
    appender.append(1.0, DEEP, b"not json")
    appender.close()
    feed = Replay(path, clock=lambda: 0.0)
    feed.start()
    with pytest.raises(UsageError, match="can be read"):
        feed.drain()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE samples ADD COLUMN more",
        "CREATE VIEW more AS SELECT * FROM samples",
        "CREATE TRIGGER more AFTER INSERT ON samples BEGIN DELETE FROM samples; END",
        "DROP INDEX by_time",
    ],
)
def test_database_with_another_schema_is_refused(tmp_path: Path, statement: str) -> None:
    path = sessions(tmp_path / "night", BEGIN_S)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement)
    for use in (lambda: Player(path), lambda: Appender(path, 1 << 20)):
        with pytest.raises(UsageError, match="not a recording"):
            use()


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_side_file_that_leads_elsewhere_is_refused(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"night{ending}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Appender(tmp_path / "night", 1 << 20)
    assert not (tmp_path / "elsewhere").exists()


def test_recording_of_the_first_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(OLD_MAGIC + bytes(100))
    with pytest.raises(UsageError, match=r"clusterctl 0\.1") as refused:
        Player(tmp_path / "old")
    assert "clusterctl 0.2.0" in str(refused.value.hint)
