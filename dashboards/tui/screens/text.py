"""Text over another screen: stacks in full, a preflight's report; what logs are read in, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from dashboards.model.state import State
from dashboards.tui.screens.base import MOVING, TopScreen
from dashboards.tui.widgets.listing import Text


class PageScreen(TopScreen):
    """A screen with one long text to scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVING,
        Binding("b", "page(-1)", "page up", show=False),
        Binding("f", "page(1)", "page down", show=False),
        Binding("g,home", "to_end(False)", "to the beginning", show=False),
        Binding("G,end", "to_end(True)", "to the end", show=False),
        Binding("e", "copy", "copy"),
    ]

    def body(self) -> Iterable[Widget]:
        yield Text(id="text")

    @property
    def page(self) -> Text:
        return self.query_one(Text)

    def to_copy(self) -> str:
        return self.page.text()

    def action_move(self, lines: int) -> None:
        self.page.scroll_lines(lines)
        self.again()

    def action_page(self, pages: int) -> None:
        self.page.pages(pages)
        self.again()

    def action_to_end(self, end: bool) -> None:
        self.page.to_end(end)
        self.again()


class TextScreen(PageScreen):
    """Lines with the name of a style in Palette each; escape goes back."""

    KEYS = (("esc", "back", "app.pop_screen"), ("e", "copy", "screen.copy"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "back")]

    def __init__(self, heading: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._heading, self._lines = heading, rows

    def on_mount(self) -> None:
        super().on_mount()
        self.page.fill(self._lines)

    def prepare(self, state: State) -> None:
        self.page.title(self._heading, self.page.position())
