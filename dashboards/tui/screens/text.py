"""Text over another screen: stacks in full, a preflight's report; what logs are read in, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from dashboards.model.state import State
from dashboards.tui.screens.base import ListScreen
from dashboards.tui.widgets.listing import Text


class PageScreen(ListScreen):
    """A screen with one long text to scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("b", "page(-1)"),
        ("f", "page(1)"),
        ("g,home", "to_end(False)"),
        ("G,end", "to_end(True)"),
        ("e", "copy"),
    ]

    def body(self) -> Iterable[Widget]:
        yield Text(id="text")

    @property
    def page(self) -> Text:
        return self.query_one(Text)

    movable = page

    def to_copy(self) -> str:
        return self.page.text()

    def on_panel_moved(self) -> None:
        self.again()

    def action_to_end(self, end: bool) -> None:
        self.page.to_end(end)


class TextScreen(PageScreen):
    """Lines with the name of a style in Palette each; escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back", key_display="esc"),
        ("e", "copy", "copy"),
    ]

    def __init__(self, heading: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._heading, self._lines = heading, rows

    def on_mount(self) -> None:
        super().on_mount()
        self.page.fill(self._lines)

    def prepare(self, state: State) -> None:
        self.page.title(self._heading, self.page.position())
