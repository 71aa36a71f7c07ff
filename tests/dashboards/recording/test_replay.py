"""A recording that is played again: at any time, at any speed, over sessions."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from dashboards import select_feed as sources
from dashboards.model.samples import Restored
from dashboards.recording.file_format import Appender
from dashboards.simulation.healthy import names
from tests.dashboards.recording.player import Player, folded, same, sessions, ticks, write
from tests.dashboards.simulated_hour import BEGIN_S, hour


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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
from tests.dashboards.recording.player import Appender, Writer, names, rounds
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_sessions_follow_each_other_when_played(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "two"
    path.write_bytes(recording.read_bytes())
    write(path, hour((), nodes=4, gpus=2, seconds=40, begin_s=BEGIN_S + 160))
    player = Player(path)
    for _ in range(201):
        player.tick()
    assert player.state.nodes[names(4)[2]].down is None
    assert len(player.state.nodes[names(4)[0]].history) == 40


@pytest.mark.long
@pytest.mark.parametrize("moved_s", [-3600.0, -20.0, 600.0])
def test_every_session_is_told_once_whatever_its_clock_said(tmp_path: Path, moved_s: float) -> None:
    """After the clock was set back a later session begins before an earlier one."""
    begins = (BEGIN_S, BEGIN_S + moved_s, BEGIN_S + 60)
    times = ticks(sessions(tmp_path / "night", *begins))
    for begin_s in begins:
        own = [at_s for at_s in times if begin_s <= at_s < begin_s + 40]
        assert set(own) == {begin_s + second for second in range(40)}
    assert len(times) < 3 * 42 + 3


@pytest.mark.long
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
