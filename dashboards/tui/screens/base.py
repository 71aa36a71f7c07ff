"""What all screens share: the bar above, the keys below, lists to move in, a line for a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from dashboards.feeds.replay import Player
from dashboards.model.alert_book import AlertBook
from dashboards.model.state import State
from dashboards.operations.actions import Actions
from dashboards.operations.background import Job, Watch
from dashboards.tui.widgets.bars import Key, KeyBar, ReplayBar, TopBar
from dashboards.tui.widgets.listing import Scrolled
from dashboards.tui.widgets.panel import Panel

T = TypeVar("T")
SMALLEST = (60, 16)  # columns, rows
# (key, title, what it shows) of the main screens; the mode is the title in lower case.
MAIN_SCREENS = (
    ("1", "Cluster", "all nodes and GPUs"),
    ("2", "Node", "one machine"),
    ("3", "Run", "the training"),
    ("4", "Alerts", "what is wrong, since when"),
    ("5", "Stacks", "which rank hangs, where"),
)
TABS: Sequence[Key] = tuple(
    (key, title, f"app.switch_mode('{title.lower()}')") for key, title, _ in MAIN_SCREENS
)
HELP: Key = ("?", "help", "app.help")
QUIT: Key = ("q", "quit", "app.quit")
PICTURE: Key = ("w", "picture", "app.picture")
BACK = ("escape", "app.switch_mode('cluster')")
Commands = Iterable[tuple[str, str, str]]  # (title, help, action)


class Top(App[None]):
    """What screens and dialogs use of the app."""

    state: State
    actions: Actions
    readonly: bool
    replay: Player | None
    selected: tuple[str, int] | None = None  # (node, GPU) that all screens mean
    to_collect: Sequence[str] | None = None  # nodes whose stacks the user asked for, () all

    def show(self) -> None:
        """The state on whatever screen is up; dialogs keep still."""
        # While the program ends screens lose their widgets, and then there are none.
        stack = self.screen_stack if self.is_running else []
        if stack and isinstance(stack[-1], TopScreen):
            stack[-1].show(self.state)

    def node(self) -> str | None:
        """The node under the cursor, else the first."""
        if self.selected is not None and self.selected[0] in self.state.nodes:
            return self.selected[0]
        return next(iter(self.state.nodes), None)

    def open_node(self, name: str, gpu: int = 0) -> None:
        self.selected = (name, gpu)
        self.switch_mode("node")

    def set_alerts(self, book: AlertBook) -> None:
        """The state with alerts that the user acknowledged or muted."""
        self.state = replace(self.state, alerts=book)
        self.show()


def start_job(
    screen: Screen[None], work: Callable[[Watch], T], done: Callable[[Job[T]], None]
) -> Job[T]:
    """Run `work` in a thread and call `done` in the app when it has ended, well or not."""
    return Job(work, lambda job: screen.call_later(done, job)).start()


def fit(widget: Widget, rows: int) -> None:
    """Give a widget its height; 0 hides it."""
    widget.set_class(not rows, "-off")
    height = widget.styles.height
    # Only when it differs: setting it lays the screen out again.
    if rows and (height is None or height.value != rows):
        widget.styles.height = rows


def following(items: Sequence[T], item: T) -> T:
    """The next one, the first after the last or for one that is not in the list."""
    return items[(items.index(item) + 1) % len(items)] if item in items else items[0]


class TopScreen(Screen[None]):
    """Panels that show one state. Bindings with a description are in the bar below."""

    RUN_ABOVE: ClassVar[bool] = False  # the top bar shows the run: nothing else here does
    TAB: ClassVar[str] = ""  # its key in TABS; "" for a screen above another
    _composed = False
    _panels: Sequence[Panel] = ()  # none is added after compose

    def body(self) -> Iterable[Widget]:
        """The widgets between the bars."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        bar = TopBar(id="top")
        bar.with_run = self.RUN_ABOVE
        yield bar
        yield from self.body()
        yield ReplayBar(self.top.replay, id="replay")
        keys = (HELP, QUIT, *self._keys(), PICTURE)
        yield KeyBar(TABS if self.TAB else (), self.TAB, keys, id="keys")
        yield Static("", id="too-small", markup=False)

    def _keys(self) -> Iterator[Key]:
        for entry in self.BINDINGS:
            binding = entry if isinstance(entry, Binding) else Binding(*entry)
            if binding.description and self.offers(binding.action):
                key = binding.key_display or binding.key.partition(",")[0]
                is_ours = not binding.action.startswith("app.")
                yield key, binding.description, "screen." * is_ours + binding.action

    @property
    def top(self) -> Top:
        return cast(Top, self.app)

    def offers(self, action: str) -> bool:
        """Whether its key is in the bar below, and the action in the palette."""
        return action != "kill" or not self.top.readonly

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """False until the widgets exist: a key may come earlier."""
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

    def commands(self) -> Commands:
        """What the palette offers here beside what it always does."""
        return ()

    def to_copy(self) -> str:
        """What `e` puts on the clipboard; "" when there is nothing."""
        return ""

    def action_copy(self) -> None:
        text = self.to_copy()
        if text:
            self.app.copy_to_clipboard(text)
            self.notify(f"copied: {text.splitlines()[0][:60]}", timeout=3)

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
        self.call_after_refresh(self.again)


class ListScreen(TopScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)"),
        ("down,j", "move(1)"),
        ("pageup", "page(-1)"),
        ("pagedown", "page(1)"),
    ]

    @property
    def movable(self) -> Scrolled:
        return self.query_one(Scrolled)

    def action_move(self, rows: int, columns: int = 0) -> None:
        self.movable.move(rows, columns)

    def action_page(self, pages: int) -> None:
        self.movable.page(pages)

    def action_enter(self) -> None:
        """Open what is under the cursor."""

    def on_panel_opened(self) -> None:
        self.action_enter()


class FilterScreen(TopScreen):
    wanted = ""

    def filter_line(self, placeholder: str) -> Input:
        return Input(placeholder=placeholder, id="filter", compact=True)

    def action_filter(self) -> None:
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self.wanted
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.wanted = event.value
        self.filter()

    def filter(self) -> None:
        self.again()

    def on_input_submitted(self) -> None:
        self.remove_class("-filtering")
        self.set_focus(None)

    def drop_filter(self) -> bool:
        """Whether there was one."""
        there_was = bool(self.wanted) or self.has_class("-filtering")
        self.wanted = ""
        self.on_input_submitted()
        return there_was
