"""The live view: drains a feed once an interval, folds what came into the state, shows it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme

from dashboards.feeds import Feed
from dashboards.samples import Tick
from dashboards.screens.base import TopScreen
from dashboards.screens.cluster import ClusterScreen
from dashboards.screens.help import HelpScreen
from dashboards.screens.run import RunScreen
from dashboards.state import fold, initial_state

NIGHT = Theme(
    name="clusterctl",
    primary="#3f8fb8",
    secondary="#8f7fd8",
    accent="#58c4dc",
    success="#6fcf7f",
    warning="#e8b454",
    error="#f0657a",
    foreground="#d6dde8",
    background="#0f131a",
    surface="#141a23",
    panel="#1c2531",
    dark=True,
)


class TopApp(App[None]):
    """`clusterctl top` on a terminal."""

    CSS_PATH = "theme.tcss"
    TITLE = "clusterctl top"
    MODES: ClassVar = {"cluster": ClusterScreen, "run": RunScreen}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "switch_mode('cluster')", "cluster"),
        Binding("2", "switch_mode('run')", "run"),
        Binding("question_mark", "help", "help"),
        Binding("w", "picture", "screenshot"),
        Binding("q", "quit", "quit"),
        # A monitor: nothing is lost by leaving it, so the key that ends every program ends this too.
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, *, interval_s: float = 1.0, first: str = "cluster") -> None:
        # Under NO_COLOR the terminal's own two colours; Textual's greys would be colour codes too.
        plain = bool(os.environ.get("NO_COLOR"))
        super().__init__(ansi_color=True if plain else None)
        self.feed = feed
        self._interval_s = interval_s
        self._first = first
        self.animation_level = "none"
        self.register_theme(NIGHT)
        self.state = initial_state(
            feed.nodes, now_s=feed.now(), interval_s=interval_s, source=feed.source
        )
        # 16 colours: Textual's own theme of the terminal's colours, not the nearest of ours.
        few = plain or self.console.color_system in ("standard", None)
        self.theme = "ansi-dark" if few else NIGHT.name

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Else the terminal is left in Textual's mode. Not every loop has them (tests, threads).
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.feed.start()
        self.switch_mode(self._first)
        self.tick()
        self.set_interval(self._interval_s, self.tick)

    def on_unmount(self) -> None:
        self.feed.close()
        if self._driver is not None:
            # After a resize tmux (3.3a) leaves the last picture of the alternate screen above the
            # prompt (shown with a replay of the bytes): let it be an empty one.
            self._driver.write("\x1b[2J\x1b[H")

    def tick(self) -> None:
        """One round: what came since the last one, then the time, then the screen."""
        samples = self.feed.drain()
        self.state = fold(self.state, [*samples, Tick(self.feed.now())])
        if isinstance(self.screen, TopScreen):
            self.screen.show(self.state)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_picture(self) -> None:
        """The screen as SVG into the current folder."""
        name = time.strftime("clusterctl-%Y%m%d-%H%M%S.svg")
        try:
            path = self.save_screenshot(name, path=".")
        except OSError as error:
            self.notify(f"no screenshot: {error}", severity="error")
        else:
            self.notify(f"written: {path}", timeout=4)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield SystemCommand("Cluster", "all nodes and GPUs", lambda: self.switch_mode("cluster"))
        yield SystemCommand("Run", "the training", lambda: self.switch_mode("run"))
        if isinstance(screen, ClusterScreen):
            yield SystemCommand("Metric", "the next metric (p)", screen.action_metric)
            yield SystemCommand("Sort", "the next order (s)", screen.action_sort)
            yield SystemCommand("Filter", "by name or mark (/)", screen.action_filter)
        yield SystemCommand("Screenshot", "as SVG into this folder (w)", self.action_picture)
        yield SystemCommand("Theme", "colours", self.search_themes)
        yield SystemCommand("Help", "keys and marks (?)", self.action_help)
        yield SystemCommand("Quit", "leave (q)", self.exit)


def main(feed: Feed, *, interval_s: float, first: str) -> None:
    """Run the app until the user leaves it."""
    TopApp(feed, interval_s=interval_s, first=first).run()
