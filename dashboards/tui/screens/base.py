"""What all screens share: the bar above, the keys below, and one line where there is no room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, cast

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from dashboards.model.state import State
from dashboards.tui.screens.app_interface import Top
from dashboards.tui.widgets.bars import KeyBar, TopBar
from dashboards.tui.widgets.panel import Panel
from dashboards.tui.widgets.replay_bar import ReplayBar

SMALLEST = (60, 16)  # columns, rows
Keys = Sequence[tuple[str, str, str]]  # (key, word, action), for the bar below
TABS: Keys = (
    ("1", "Cluster", "app.switch_mode('cluster')"),
    ("2", "Node", "app.switch_mode('node')"),
    ("3", "Run", "app.switch_mode('run')"),
    ("4", "Alerts", "app.switch_mode('alerts')"),
    ("5", "Stacks", "app.switch_mode('stacks')"),
)
# For screens with `action_move(rows)` and `action_page(pages)`.
MOVING: tuple[BindingType, ...] = (
    Binding("up,k", "move(-1)", "up", show=False),
    Binding("down,j", "move(1)", "down", show=False),
    Binding("pageup", "page(-1)", "page up", show=False),
    Binding("pagedown", "page(1)", "page down", show=False),
)
KILL = "screen.kill"
HELP: Keys = (("?", "help", "app.help"),)
ALWAYS: Keys = (("q", "quit", "app.quit"), ("w", "picture", "app.picture"))


class TopScreen(Screen[None]):
    """A screen made of panels that show one state."""

    RUN_ABOVE: ClassVar[bool] = False  # the top bar tells of the run: nothing else here does
    TAB: ClassVar[str] = ""  # its key in TABS; "" for a screen above another
    KEYS: ClassVar[Keys] = ()
    _composed = False
    _panels: Sequence[Panel] = ()  # none is added after compose

    def body(self) -> Iterable[Widget]:
        """The widgets between the bars."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield TopBar(with_run=self.RUN_ABOVE, id="top")
        yield from self.body()
        yield ReplayBar(self.top.replay, id="replay")
        keys = [key for key in self.KEYS if self.offers(key[2])]
        yield KeyBar(TABS if self.TAB else (), self.TAB, (*HELP, *keys, *ALWAYS), id="keys")
        yield Static("", id="too-small", markup=False)

    @property
    def top(self) -> Top:
        return cast("Top", self.app)

    def offers(self, action: str) -> bool:
        """Whether its key stands in the bar below."""
        return action != KILL or (self.top.actions is not None and not self.top.readonly)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key may come before the widgets that it means are there."""
        return self._composed

    def show(self, state: State) -> None:
        """Bring every panel that can be seen up to this state."""
        if not self._composed or self.has_class("-too-small"):
            return
        self.prepare(state)
        for panel in self._panels:
            if panel.display:
                panel.show(state)

    def prepare(self, state: State) -> None:
        """Choose sizes and visibility for this state, before the panels are painted."""

    def again(self) -> None:
        """Show the same state after a change of cursor, metric or size."""
        self.show(self.top.state)

    def commands(self) -> Iterable[SystemCommand]:
        """What the palette offers here beside what it always does."""
        return ()

    def to_copy(self) -> str:
        """What `e` puts on the clipboard; "" when there is nothing."""
        return ""

    def action_copy(self) -> None:
        text = self.to_copy()
        if text:
            self.app.copy_to_clipboard(text)
            first = text.splitlines()[0]
            self.notify(f"copied: {first[:60]}", timeout=3)

    def on_mount(self) -> None:
        self._panels = list(self.query(Panel))
        self._composed = True
        self.query_one(ReplayBar).set_class(self.top.replay is None, "-off")

    def on_screen_resume(self) -> None:
        self.again()

    def on_resize(self, event: Resize) -> None:
        columns, rows = event.size
        small = columns < SMALLEST[0] or rows < SMALLEST[1]
        self.set_class(small, "-too-small")
        if small:
            text = f"{columns}x{rows} is too small, {SMALLEST[0]}x{SMALLEST[1]} is needed"
            self.query_one("#too-small", Static).update(text[:columns])
            return
        self.set_class(rows >= 32, "-tall")
        self.set_class(columns >= 110, "-wide")
        self.call_after_refresh(self.again)
