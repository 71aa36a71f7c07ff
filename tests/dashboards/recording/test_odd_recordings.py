"""A recording may come from anywhere: what it holds is shown, left out and said, or one sentence."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from clusterctl.errors import UsageError
from clusterctl.output import Output
from dashboards import once
from dashboards import select_feed as sources
from dashboards.export.serve import StateCollector, registry_of
from dashboards.feeds.replay import Replay
from dashboards.model.samples import Tick
from dashboards.model.state import State, initial_state
from dashboards.reduce import fold
from dashboards.tui.app import TopApp
from dashboards.tui.screens.base import TopScreen
from tests.dashboards.recording import odd_recordings
from tests.dashboards.runs import FixedFeed

LONGEST_S = 20.0  # of one case; a good recording of that size takes 0.1 s


def watched(path: Path) -> int:
    """As `watch --replay` reads it; how many rounds."""
    replayed = sources.replayed(path)
    state, rounds = initial_state(replayed.nodes, now_s=0.0, source="replay"), 0
    for batch in replayed.batches:
        state = fold(state, batch)
        rounds += 1
    return rounds


def shown(path: Path) -> list[State]:
    """As `top --replay` has it at some times."""
    feed = Replay(path, clock=lambda: 0.0)
    states = []
    try:
        for part in (0.03, 0.5, 1.0):
            feed.seek_to(feed.first_s + part * (feed.last_s - feed.first_s))
            state = initial_state(feed.nodes, now_s=feed.now())
            for _ in range(2):
                state = fold(state, [*feed.drain(), Tick(feed.now())])
            states.append(state)
    finally:
        feed.close()
    return states


def told(state: State) -> None:
    """As text, as JSON and as metrics."""
    once.write(state, Output())
    json.dumps(once.as_json(state), allow_nan=False)
    generate_latest(registry_of(StateCollector(state)))


async def drawn(states: list[State]) -> None:
    """On every screen."""
    app = TopApp(FixedFeed((), [], 1.79e9))
    async with app.run_test(size=(160, 50)) as pilot:
        for mode in ("node", "run", "alerts", "stacks", "cluster"):
            app.switch_mode(mode)
            await pilot.pause()
            for state in states:
                app.state = state
                assert isinstance(app.screen, TopScreen)
                app.screen.show(state)
            await pilot.pause()


def campaign(directory: Path, count: int, seed: int) -> dict[str, int]:
    """Reads so many odd recordings; how they ended."""
    original = odd_recordings.good(directory / "good.rec")
    path = directory / "odd.rec"
    ends = {"read": 0, "refused": 0, "states": 0}
    states: list[State] = []
    for what, data in odd_recordings.odd(original, count, seed):
        path.write_bytes(data)
        begun = time.monotonic()
        try:
            watched(path)
            found = shown(path)
            for state in found:
                told(state)
            ends["read"] += 1
            states += found
        except UsageError as error:
            assert str(path) in str(error)  # noqa: PT017 - one of many cases
            ends["refused"] += 1
        except Exception as error:
            raise AssertionError(f"recording {what} of seed {seed}") from error
        assert time.monotonic() - begun < LONGEST_S, what
    ends["states"] = len(states)
    asyncio.run(drawn(states[:: max(1, len(states) // 100)]))
    return ends


@pytest.mark.slow
def test_no_odd_recording_ends_in_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = campaign(tmp_path, 60, seed=7)
    capsys.readouterr()
    assert ends["read"] > 30
    assert ends["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_campaign_of_odd_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    ends = campaign(tmp_path, 200, seed)
    with capsys.disabled():
        print(f"\nodd recordings, seed {seed}: {ends}")


@pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
def test_a_pipe_beside_a_recording_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    """SQLite opens these files itself, and no signal of Python's gets through."""
    path = tmp_path / "a.rec"
    odd_recordings.good(path)
    assert watched(path) > 0
    for beside in tmp_path.glob("a.rec-*"):
        beside.unlink()
    os.mkfifo(f"{path}{ending}")
    with pytest.raises(UsageError, match=f"a.rec{ending} is no plain file"):
        watched(path)
