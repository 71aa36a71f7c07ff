"""The live view: drains a feed once an interval, folds what came into the state, shows it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.markup import escape
from textual.screen import Screen

from dashboards.feeds.replay import Player
from dashboards.model.samples import Feed, Sample, Tick
from dashboards.model.state import state_of
from dashboards.operations.actions import Actions
from dashboards.reduce import fold, tick_parts
from dashboards.tui.screens.alerts import AlertsScreen
from dashboards.tui.screens.base import MAIN_SCREENS, TABS, Top, TopScreen
from dashboards.tui.screens.cluster import ClusterScreen
from dashboards.tui.screens.dialogs import HelpScreen
from dashboards.tui.screens.node import NodeScreen
from dashboards.tui.screens.run import RunScreen
from dashboards.tui.screens.stacks import StacksScreen
from dashboards.tui.widgets import palette
from trainer.runlog.output import printable

SCRUB = 0.02  # of the whole recording
MANY_NODES = 200  # above, or with more samples, a round is done in parts
ROUND = "round"
LET_IN_S = 0.002  # between two parts: enough for a key to reach its screen
LEAVE_S = 15.0  # after a signal; a recording takes up to 10 s to be closed


class TopApp(Top):
    CSS_PATH = "theme.tcss"
    TITLE = "clusterctl top"
    MODES: ClassVar = {
        "cluster": ClusterScreen,
        "node": NodeScreen,
        "run": RunScreen,
        "alerts": AlertsScreen,
        "stacks": StacksScreen,
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *((key, action) for key, _, action in TABS),
        ("question_mark", "help"),
        ("w", "picture"),
        ("q", "quit"),
        # A monitor: nothing is lost by leaving it, so Ctrl-C ends it as it ends every program.
        Binding("ctrl+c", "quit", priority=True),
        # Only in a replay:
        ("space", "pause"),
        ("plus,equals_sign", "faster(2.0)"),
        ("minus", "faster(0.5)"),
        ("left_square_bracket", f"scrub(-{SCRUB})"),
        ("right_square_bracket", f"scrub({SCRUB})"),
        ("comma", "scrub(0, -1)"),
        ("full_stop", "scrub(0, 1)"),
        ("end", "scrub(1.0)"),
        ("home", "scrub(-1.0)"),
    ]

    def __init__(
        self,
        feed: Feed,
        *,
        interval_s: float = 1.0,
        first: str = "cluster",
        actions: Actions | None = None,
        readonly: bool = False,
        theme: str | None = None,
    ) -> None:
        """`actions` reach the nodes, None where there are none; `readonly` takes away those that
        end processes. `theme` None: ours, or the terminal's own colours where it has only 16.
        """
        # Under NO_COLOR the terminal's own two colours; Textual's greys would be colour codes too.
        plain = bool(os.environ.get("NO_COLOR"))
        super().__init__(ansi_color=True if plain else None)
        self.feed = feed
        self.actions = actions or Actions()
        self.readonly = readonly
        self.replay = feed if isinstance(feed, Player) else None
        self._noted = ""
        self._interval_s = interval_s
        self._first = first
        self.animation_level = "none"
        for one in palette.OURS:
            self.register_theme(one)
        self.state = state_of(feed, interval_s)
        few = plain or self.console.color_system in ("standard", None)
        self.theme = palette.FEW_COLORS if few else theme or palette.NIGHT.name

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Else the terminal is left in Textual's mode. Not every loop has them (tests, threads).
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self._leave, number)
        self.feed.start()
        self.switch_mode(self._first)
        self.tick()
        self.set_interval(self._interval_s, self._begin_round)

    def _leave(self, number: int) -> None:
        """End by a signal. Textual may wait endlessly to write to a terminal that is gone."""
        deadline = threading.Timer(LEAVE_S, os._exit, (128 + number,))
        deadline.daemon = True
        deadline.start()
        self.exit()

    def on_unmount(self) -> None:
        self.feed.close()
        if self._driver is not None and not self.is_web:
            # After a resize tmux (3.3a) leaves the last picture of the alternate screen above the
            # prompt (shown with a replay of the bytes): let it be an empty one.
            self._driver.write("\x1b[2J\x1b[H")

    def tick(self) -> None:
        """One round: what came since the last one, then the time, then the screen."""
        self._fold_all(self._drained())

    def _fold_all(self, samples: list[Sample]) -> None:
        self.state = fold(self.state, [*samples, Tick(self.feed.now())])
        self.show()

    def _begin_round(self) -> None:
        if any(worker.group == ROUND and not worker.is_finished for worker in self.workers):
            return
        samples = self._drained()
        if max(len(self.state.nodes), len(samples)) <= MANY_NODES:
            self._fold_all(samples)
        else:
            self.run_worker(self._tick_in_parts(samples), group=ROUND)

    async def _tick_in_parts(self, samples: list[Sample]) -> None:
        """`tick`, but keys come in between: of 1,000 nodes the whole of it takes 70 to 90 ms, of a
        run of weeks, when it is opened, seconds."""
        for start in range(0, len(samples), MANY_NODES):
            self.state = fold(self.state, samples[start : start + MANY_NODES])
            await asyncio.sleep(LET_IN_S)
        for part in tick_parts(Tick(self.feed.now())):
            self.state = part(self.state)
            await asyncio.sleep(LET_IN_S)
        self.show()

    def _drained(self) -> list[Sample]:
        samples = self.feed.drain()
        note = getattr(self.feed, "note", "")  # of a recording
        if note != self._noted:
            self._noted = note
            self.notify(note, severity="error", timeout=20)
        return samples

    def notify(self, message: str, *, title: str = "", markup: bool = False, **how: Any) -> None:
        """As Textual's, but the text is never markup: it may come from a node."""
        super().notify(printable(message), title=printable(title), markup=False, **how)

    def copy_to_clipboard(self, text: str) -> None:
        """As Textual's, without control characters."""
        super().copy_to_clipboard(printable(text, lines=True))

    async def action_switch_mode(self, mode: str) -> None:
        """Only then the next key: it may be for the screen that this one opens."""
        await self.switch_mode(mode)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_picture(self) -> None:
        """The screen as SVG into the current folder; in a browser, as a download."""
        name = time.strftime("clusterctl-%Y%m%d-%H%M%S.svg")
        if self.is_web:
            picture = io.StringIO(self.export_screenshot(title=self.TITLE))
            self.deliver_text(picture, save_filename=name, open_method="download")
            return
        try:
            path = self.save_screenshot(name, path=".")
        except OSError as error:
            self.notify(f"no picture: {error}", severity="error")
        else:
            self.notify(f"written: {path}", timeout=4)

    # A replay: the same keys on every screen.

    def action_pause(self) -> None:
        self._play(Player.pause)

    def action_faster(self, factor: float) -> None:
        self._play(lambda player: player.faster(factor))

    def action_scrub(self, part: float, intervals: float = 0.0) -> None:
        """Back or forth by a part of the whole, or by intervals."""
        replay = self.replay
        if replay is not None:
            by_s = part * (replay.last_s - replay.first_s) + intervals * self._interval_s
            self._play(lambda player: player.seek_to(replay.now() + by_s))

    def action_seek(self, part: float) -> None:
        """To a part of the whole."""
        self._play(lambda it: it.seek_to(it.first_s + part * (it.last_s - it.first_s)))

    def _play(self, change: Callable[[Player], None]) -> None:
        if self.replay is not None:
            change(self.replay)
            self.tick()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for key, title, help in MAIN_SCREENS:
            open_it = partial(self.switch_mode, title.lower())
            yield SystemCommand(title, f"{help} ({key})", open_it)
        if isinstance(screen, TopScreen):
            for title, help, action in filter(lambda one: screen.offers(one[2]), screen.commands()):
                # The palette reads it as markup, and there are names of nodes in it.
                yield SystemCommand(
                    title, escape(printable(help)), getattr(screen, f"action_{action}")
                )
        if self.replay is not None:
            yield SystemCommand("Pause", "or go on with the replay (space)", self.action_pause)
        yield SystemCommand("Picture", "the screen as SVG (w)", self.action_picture)
        yield SystemCommand("Theme", "colours", self.search_themes)
        yield SystemCommand("Help", "keys and marks (?)", self.action_help)
        yield SystemCommand("Quit", "leave (q)", self.exit)


def run(app: TopApp) -> None:
    if os.environ.get("TEXTUAL_DRIVER"):
        threading.Thread(target=_end_with_server, args=(app, os.getppid()), daemon=True).start()
    app.run()


def _end_with_server(app: TopApp, server: int) -> None:
    """Exit when the web server was killed, which Textual does not notice."""
    while os.getppid() == server:
        time.sleep(1.0)
    app.feed.close()
    os._exit(1)
