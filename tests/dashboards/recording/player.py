"""What tests of recordings share: a small invented cluster, written and played again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards import select_feed as sources
from dashboards.feeds.replay import Replay
from dashboards.model.samples import Sample, Tick
from dashboards.model.state import State, initial_state
from dashboards.recording.file_format import Appender
from dashboards.recording.writer import Writer
from dashboards.reduce import fold
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from tests.dashboards.recording.rows import read_rows, write_rows
from tests.dashboards.simulated_hour import BEGIN_S, hour

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


def sessions(path: Path, *begins: float) -> Path:
    """A recording of several sessions of 40 s."""
    for begin_s in begins:
        write(path, hour((), nodes=4, gpus=2, seconds=40, begin_s=begin_s))
    return path


def ticks(path: Path) -> list[float]:
    """The times of all rounds as `watch --replay` has them."""
    batches = sources.replayed(path).batches
    return [sample.now_s for batch in batches for sample in batch if isinstance(sample, Tick)]


def rewritten(path: Path, kind: str, old: str, new: str) -> Path:
    """The recording with another text in the first row of that kind; its checksum is right."""
    rows = read_rows(path)
    place = next(place for place, row in enumerate(rows) if row[1] == kind)
    at_s, _, text = rows[place]
    assert old in text.decode()
    rows[place] = (at_s, kind, text.decode().replace(old, new, 1).encode())
    return write_rows(path.with_suffix(".odd"), rows)
