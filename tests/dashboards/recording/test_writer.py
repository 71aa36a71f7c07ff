"""Recordings of a small invented cluster: written, torn, damaged, read back at any time."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.errors import UsageError
from dashboards import select_feed as sources
from dashboards.feeds.replay import Replay, ReplayFeed, open_replay
from dashboards.model.samples import NodeSample, Restored, Sample, Tick
from dashboards.model.state import State, initial_state
from dashboards.recording import codec as plain
from dashboards.recording import convert, file_format
from dashboards.recording import writer as record
from dashboards.recording.file_format import DEEP, ROUND, Appender
from dashboards.recording.writer import Recording, Writer
from dashboards.reduce import fold
from dashboards.simulation.cluster import BEGIN_S
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from tests.dashboards.feeds.test_feeds import until
from tests.dashboards.recording.rows import change_row, damage_row, read_rows, write_rows
from tests.dashboards.simulated_hour import hour

INCIDENTS = (
    Incident("node_dead", 3, 0, 20, 70),
    Incident("clock_step", 2, 0, 30, 90, size=2.5),
    Incident("gpu_lost", 1, 1, 50, 80),
)


def rounds(seconds: int = 150) -> Iterator[list[Sample]]:
    return hour(INCIDENTS, nodes=4, gpus=2, seconds=seconds)


def folded(seconds: int) -> State:
    state = initial_state(names(4), now_s=BEGIN_S)
    for said in rounds(seconds):
        state = fold(state, said)
    return state


def write(path: Path, said: Iterator[list[Sample]], limit_bytes: int = 1 << 30) -> Path:
    writer = Writer(Appender(path, limit_bytes), names(4), "hour", 1.0)
    for samples in said:
        tick = samples[-1]
        assert isinstance(tick, Tick)
        writer.take(tick.now_s, samples[:-1])
    writer.close()
    return path


class Player:
    """A replay with a clock in the test's hand."""

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self.now = 0.0
        self.feed = Replay(path, clock=lambda: self.now, speed=speed)
        self.feed.start()
        self.state = initial_state(self.feed.nodes, now_s=self.feed.now())
        self.said: list[Sample] = []

    def tick(self, passed_s: float = 1.0) -> State:
        self.now += passed_s
        self.said = self.feed.drain()
        self.state = fold(self.state, [*self.said, Tick(self.feed.now())])
        return self.state


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("record") / "night", rounds())


def same(one: State, other: State) -> None:
    """Equal but for digits that no reading has."""
    assert list(one.nodes) == list(other.nodes)
    for a, b in zip(one.nodes.values(), other.nodes.values(), strict=True):
        assert (a.down, a.gpus_seen, a.history_s) == (b.down, b.gpus_seen, b.history_s)
        assert len(a.history) == len(b.history)
        assert a.history.column(0) == pytest.approx(b.history.column(0), nan_ok=True, rel=1e-3)
        assert (a.sample is None) == (b.sample is None)
        if a.sample and b.sample:
            assert a.sample.gpus is not None
            assert b.sample.gpus is not None
            assert [g.power_w for g in a.sample.gpus] == pytest.approx([g.power_w for g in b.sample.gpus], abs=0.01)  # fmt: skip
            assert a.sample.links is not None
            assert a.sample.processes == b.sample.processes
            assert a.sample.clock_step_s == b.sample.clock_step_s
        assert set(a.usage.totals) == set(b.usage.totals)
        for owner, totals in a.usage.totals.items():
            # Readings are written with two digits, and keys hold the sums so far.
            assert totals.energy_j == pytest.approx(b.usage.totals[owner].energy_j, rel=1e-3)
            assert totals.unknown_s == pytest.approx(b.usage.totals[owner].unknown_s)
    assert one.run == other.run
    assert one.odd == other.odd
    assert len(one.fleet) == len(other.fleet)
    assert [alert.key for alert in one.alerts.active] == [alert.key for alert in other.alerts.active]  # fmt: skip
    assert len(one.alerts.history) == len(other.alerts.history)


def test_played_at_its_own_speed_it_is_what_was_seen(recording: Path) -> None:
    player = Player(recording)
    player.tick(0.0)
    for _ in range(149):
        player.tick()
    same(player.state, folded(150))


@pytest.mark.parametrize("second", [0, 1, 29, 30, 45, 69, 90, 131, 149])
def test_any_time_can_be_gone_to(recording: Path, second: int) -> None:
    player = Player(recording)
    player.feed.pause()
    player.feed.seek_to(BEGIN_S + second)
    same(player.tick(), folded(second + 1))
    assert player.feed.now() == BEGIN_S + second


def test_back_and_forth_and_on_from_there(recording: Path) -> None:
    player = Player(recording)
    for second in (140, 35, 70, 5):
        player.feed.seek_to(BEGIN_S + second)
        player.tick(0.0)
    for _ in range(30):
        player.tick()
    same(player.state, folded(36))


def test_pause_and_speed(recording: Path) -> None:
    player = Player(recording, speed=10.0)
    feed = player.feed
    assert (feed.first_s, feed.last_s, feed.speed) == (BEGIN_S, BEGIN_S + 149, 10.0)
    player.tick(2.0)
    player.feed.pause()
    assert feed.speed == 0.0
    player.tick(100.0)
    assert player.feed.now() == BEGIN_S + 20
    player.feed.pause()
    player.feed.faster(0.5)
    player.tick(2.0)
    assert player.feed.now() == BEGIN_S + 30
    same(player.state, folded(31))


def test_what_runs_too_fast_to_fold_is_restored(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboards.feeds.replay.AT_ONCE", 100)
    player = Player(recording, speed=1e6)
    player.tick(0.0)
    player.tick(1.0)
    assert [type(sample) for sample in player.said] == [Restored]
    same(player.state, folded(150))


KILLED = """
import sys
from pathlib import Path
from tests.dashboards.recording.test_writer import Appender, Writer, names, rounds
writer = Writer(Appender(Path(sys.argv[1]), 1 << 30), names(4), "hour", 1.0)
for samples in rounds(75):
    writer.take(samples[-1].now_s, samples[:-1])
print("written", flush=True)
sys.stdin.read()
"""


def killed(path: Path) -> Path:
    """A recording of 75 s whose writer was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        with pytest.raises(UsageError, match="already being recorded"):
            Appender(path, 1 << 20)
        live = Player(path)  # while it is being written
        live.feed.seek_end()
        same(live.tick(0.0), folded(75))
        live.feed.close()
        writer.kill()
    return path


def test_killed_writer_loses_nothing_that_it_took(tmp_path: Path) -> None:
    path = killed(tmp_path / "night")
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in tmp_path.iterdir())
    player = Player(path)
    player.feed.seek_end()
    same(player.tick(0.0), folded(75))
    assert player.feed.note == ""


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_torn_copy_is_refused_in_one_sentence(recording: Path, tmp_path: Path, part: float) -> None:
    data = recording.read_bytes()
    torn = tmp_path / "torn"
    torn.write_bytes(data[: int(part * len(data))])
    with pytest.raises(UsageError, match="torn cannot be read: database disk image is malformed"):
        sources.replayed(torn)


def test_killed_writer_is_followed_by_another(tmp_path: Path) -> None:
    path = killed(tmp_path / "again")
    later = BEGIN_S + 1000
    write(path, hour((), nodes=4, gpus=2, seconds=40, begin_s=later))
    player = Player(path)
    player.feed.pause()
    player.feed.seek_to(later + 39)
    state = player.tick()
    assert len(state.nodes[names(4)[0]].history) == 40  # nothing of the first session
    player.feed.seek_to(BEGIN_S + 60)
    same(player.tick(), folded(61))


def test_sessions_follow_each_other_when_played(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "two"
    path.write_bytes(recording.read_bytes())
    write(path, hour((), nodes=4, gpus=2, seconds=40, begin_s=BEGIN_S + 160))
    player = Player(path)
    for _ in range(201):
        player.tick()
    assert player.state.nodes[names(4)[2]].down is None
    assert len(player.state.nodes[names(4)[0]].history) == 40


def sessions(path: Path, *begins: float) -> Path:
    """A recording of several sessions of 40 s."""
    for begin_s in begins:
        write(path, hour((), nodes=4, gpus=2, seconds=40, begin_s=begin_s))
    return path


def ticks(path: Path) -> list[float]:
    """The times of all rounds as `watch --replay` has them."""
    batches = sources.replayed(path).batches
    return [sample.now_s for batch in batches for sample in batch if isinstance(sample, Tick)]


@pytest.mark.parametrize("moved_s", [-3600.0, -20.0, 600.0])
def test_every_session_is_told_once_whatever_its_clock_said(tmp_path: Path, moved_s: float) -> None:
    """After the clock was set back a later session begins before an earlier one."""
    begins = (BEGIN_S, BEGIN_S + moved_s, BEGIN_S + 60)
    times = ticks(sessions(tmp_path / "night", *begins))
    for begin_s in begins:
        own = [at_s for at_s in times if begin_s <= at_s < begin_s + 40]
        assert set(own) == {begin_s + second for second in range(40)}
    assert len(times) < 3 * 42 + 3


def test_replay_finds_each_session_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    player = Player(sessions(tmp_path / "night", BEGIN_S, BEGIN_S - 20, BEGIN_S - 3600))
    assert (player.feed.first_s, player.feed.last_s) == (BEGIN_S - 3600, BEGIN_S + 39)
    player.feed.pause()
    for second in (-3590, -10, 10, 30):  # the second session lasts until +19
        player.feed.seek_to(BEGIN_S + second)
        state = player.tick(0.0)
        assert state.now_s == BEGIN_S + second
        begun_s = BEGIN_S + (-3600 if second < -100 else -20 if second < 20 else 0)
        assert len(state.nodes[names(2)[0]].history) == BEGIN_S + second - begun_s + 1


def rewritten(path: Path, kind: str, old: str, new: str) -> Path:
    """The recording with another text in the first row of that kind; its checksum is right."""
    rows = read_rows(path)
    place = next(place for place, row in enumerate(rows) if row[1] == kind)
    at_s, _, text = rows[place]
    assert old in text.decode()
    rows[place] = (at_s, kind, text.decode().replace(old, new, 1).encode())
    return write_rows(path.with_suffix(".odd"), rows)


def test_history_rows_that_lie_no_time_apart_are_not_believed(tmp_path: Path) -> None:
    path = sessions(tmp_path / "night", BEGIN_S)
    odd = rewritten(path, "begin", '"history_step_s":1.0', '"history_step_s":0')
    assert len(ticks(odd)) == len(ticks(path))
    player = Player(odd)
    player.feed.seek_end()
    assert player.tick(0.0).history_step_s == 1.0


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


def test_long_recording_keeps_its_newest_part_in_bounded_space(tmp_path: Path) -> None:
    path = tmp_path / "long"
    limit = 1 << 16
    write(path, hour(INCIDENTS, nodes=4, gpus=2, seconds=300), limit)
    assert path.stat().st_size < 1.6 * limit  # and one key
    player = Player(path)
    assert player.feed.last_s == BEGIN_S + 299
    assert player.feed.first_s > BEGIN_S
    player.feed.seek_end()
    assert len(player.tick(0.0).nodes[names(4)[0]].history) == 300  # the rows went along


def test_two_do_not_write_into_one_file(tmp_path: Path) -> None:
    first = Appender(tmp_path / "file", 1 << 20)
    with pytest.raises(UsageError, match="already being recorded"):
        Appender(tmp_path / "file", 1 << 20)
    first.close()
    Appender(tmp_path / "file", 1 << 20).close()


class Fixed:
    """A feed that says the same hour."""

    def __init__(self) -> None:
        self.nodes, self.source = names(4), "fixed"
        self.said = rounds(40)
        self.now_s = BEGIN_S

    def start(self) -> None: ...

    def drain(self) -> list[Sample]:
        samples = next(self.said)
        tick = samples[-1]
        assert isinstance(tick, Tick)
        self.now_s = tick.now_s
        return samples[:-1]

    def now(self) -> float:
        return self.now_s

    def settled(self) -> bool:
        return True

    def close(self) -> None: ...


def test_recording_passes_everything_on_and_writes_it(tmp_path: Path) -> None:
    feed = Recording(Fixed(), tmp_path / "file")
    feed.start()
    seen = [feed.drain() for _ in range(40)]
    feed.close()
    assert seen == [said[:-1] for said in rounds(40)]
    assert feed.note == ""
    player = Player(tmp_path / "file")
    player.feed.seek_end()
    same(player.tick(0.0), folded(40))


def test_failing_disk_stops_the_recording_and_not_the_view(tmp_path: Path) -> None:
    feed = Recording(Fixed(), tmp_path / "file")
    feed._writer._file.close()
    feed.start()
    for _ in range(40):
        assert feed.drain()
    until(lambda: feed.note != "", 30)
    assert "recording stopped" in feed.note
    feed.close()


def test_other_files_are_not_touched_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(UsageError, match="not a recording"):
        Recording(Fixed(), path)
    assert path.read_text() == "mine\n"
    with pytest.raises(UsageError, match="not a recording"):
        open_replay(path, clock=lambda: 0.0)
    with pytest.raises(UsageError, match="No such file"):
        Recording(Fixed(), tmp_path / "nowhere" / "file")


def test_recording_that_holds_nothing_yet_says_so(tmp_path: Path) -> None:
    Appender(tmp_path / "file", 1 << 20).close()
    with pytest.raises(UsageError, match="holds no samples"):
        open_replay(tmp_path / "file", clock=lambda: 0.0)


def test_directory_of_a_run_is_played_as_before(tmp_path: Path) -> None:
    feed = open_replay(tmp_path, clock=lambda: 0.0)
    assert isinstance(feed, ReplayFeed)
    assert feed.speed == 10.0


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


OLD = Path(__file__).with_name("old_format.rec")  # 40 s of INCIDENTS, written by clusterctl 0.1.0
# second -> watts of each GPU, (step, loss, seconds), as the state had them that was recorded.
OLD_READINGS = {
    0: ([678.07, 661.77, 678.77, 660.68, 690.32, 681.47, 666.68, 683.65], None),
    35: ([687.58, 666.84, 681.3, 661.91, 684.25, 688.67, 663.89, 681.49], (2504, 0.342677, 4.0308)),
    39: ([689.12, 672.07, 679.85, 660.83, 684.25, 688.67, 669.08, 675.99], (2505, 0.327473, 4.2212)),
}  # fmt: skip


def test_old_recording_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="older version") as refused:
        Player(OLD)
    assert "dashboards.recording.convert" in str(refused.value.hint)
    new = tmp_path / "new"
    assert convert.main([str(OLD), str(new)]) == 0
    player = Player(new)
    for second, (watts, step) in OLD_READINGS.items():
        player.feed.seek_to(BEGIN_S + second)
        state = player.tick(0.0)
        nodes = state.nodes.values()
        gpus = [gpu for node in nodes if node.sample for gpu in node.sample.gpus or ()]
        assert [gpu.power_w for gpu in gpus] == pytest.approx(watts, abs=0.01)
        assert [len(node.history) for node in nodes] == [second + 1] * 2 + [min(20, second + 1), second + 1]  # fmt: skip
        assert state.run is not None
        last = state.run.last
        assert (last and (last.step, round(last.loss, 6), round(last.step_s, 4))) == step
        keys = [alert.key for alert in state.alerts.active]
        assert keys == ([("clock.step", names(4)[1]), ("node.down", names(4)[2])] if second else [])
    assert len(ticks(new)) == 41
    assert convert.main([str(OLD), str(new)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert convert.main([str(new), str(tmp_path / "more")]) == 2


def test_damage_of_an_old_recording_stays_damage(tmp_path: Path) -> None:
    data = bytearray(OLD.read_bytes())
    data[data.rindex(convert.MARK) - 20] ^= 0xFF
    (tmp_path / "old").write_bytes(data)
    convert.convert(tmp_path / "old", tmp_path / "new")
    replayed = sources.replayed(tmp_path / "new")
    assert len(list(replayed.batches)) < 41
    assert "damaged" in replayed.damage()
    (tmp_path / "torn").write_bytes(OLD.read_bytes()[:-9])
    convert.convert(tmp_path / "torn", tmp_path / "whole")
    replayed = sources.replayed(tmp_path / "whole")
    assert 30 < len(list(replayed.batches)) < 41
    assert replayed.damage() == ""  # a writer was killed
