"""A page of text over another screen: stacks in full, a preflight's report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from dashboards.screens.base import TopScreen
from dashboards.state import State
from dashboards.widgets.listing import Text

SCROLLING: list[BindingType] = [
    Binding("up,k", "scroll_text(-1)", "up", show=False),
    Binding("down,j", "scroll_text(1)", "down", show=False),
    Binding("pageup,b", "page(-1)", "page up", show=False),
    Binding("pagedown,f", "page(1)", "page down", show=False),
    Binding("g,home", "to_end(False)", "to the beginning", show=False),
    Binding("G,end", "to_end(True)", "to the end", show=False),
]


class TextScreen(TopScreen):
    """Lines with the name of a style in Palette each; escape goes back."""

    KEYS = (("esc", "back", "app.pop_screen"), ("e", "copy", "screen.copy"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("e", "copy", "copy"),
        *SCROLLING,
    ]

    def __init__(self, heading: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._heading, self._lines = heading, rows

    def body(self) -> Iterable[Widget]:
        yield Text(id="text")

    @property
    def page(self) -> Text:
        return self.query_one(Text)

    def on_mount(self) -> None:
        super().on_mount()
        self.page.fill(self._lines)

    def prepare(self, state: State) -> None:
        self.page.title(self._heading, self.page.position())

    def to_copy(self) -> str:
        return self.page.text()

    def action_scroll_text(self, lines: int) -> None:
        self.page.scroll_lines(lines)
        self.again()

    def action_page(self, pages: int) -> None:
        self.page.pages(pages)
        self.again()

    def action_to_end(self, end: bool) -> None:
        self.page.to_end(end)
        self.again()
