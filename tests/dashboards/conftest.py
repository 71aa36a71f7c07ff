"""A terminal that is always the same, clocks that stand still."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import pytest

from dashboards.model.samples import Tick
from dashboards.model.state import State, initial_state
from dashboards.operations.demo_actions import DemoActions
from dashboards.reduce import fold
from dashboards.simulation.cluster import DemoFeed
from dashboards.tui.app import TopApp
from tests.dashboards.runs import FixedFeed

NOW = 1795270007.0  # 14:06:47 UTC; the demo's fleet is busy then


@pytest.fixture(autouse=True)
def _same_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@functools.cache
def demo_state() -> State:
    """The demo cluster as it is at NOW: inventing its past takes a second, so all tests share it."""
    feed = DemoFeed(clock=lambda: NOW)
    feed.start()
    begin = initial_state(feed.nodes, now_s=NOW, source=feed.source)
    return fold(begin, [*feed.drain(), Tick(NOW)])


@pytest.fixture
def demo() -> Callable[[], TopApp]:
    """The app over the demo cluster at a time that stands still."""

    def make() -> TopApp:
        nodes = demo_state().nodes
        feed = FixedFeed(nodes, [], NOW)
        app = TopApp(feed, actions=DemoActions(list(nodes), clock=lambda: NOW))
        app.state = demo_state()
        return app

    return make
