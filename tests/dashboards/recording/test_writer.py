"""Recordings of a small invented cluster: what is written, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from dashboards.feeds.replay import ReplayFeed, open_replay
from dashboards.model.samples import Feed, Sample, Tick
from dashboards.recording.file_format import Appender
from dashboards.recording.writer import Recording
from dashboards.simulation.healthy import names
from tests.dashboards.feeds.test_feeds import until
from tests.dashboards.recording.player import INCIDENTS, Player, folded, rounds, same, write
from tests.dashboards.simulated_hour import BEGIN_S, hour


@pytest.mark.long
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


class Fixed(Feed):
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
