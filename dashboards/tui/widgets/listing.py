"""Rows with a cursor, and long text to scroll: what lists and texts of all screens are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.events import Click, MouseScrollDown, MouseScrollUp

from dashboards.model.state import State
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, fitted, words
from trainer.runlog.output import printable

T = TypeVar("T")
LIFT = Style(bold=True)


class Scrolled(Panel, can_focus=True):
    """Lines that keys, the wheel and clicks move in."""

    WHEEL = 1  # lines
    _above = 0  # lines of the heading, which do not scroll

    def move(self, rows: int, columns: int = 0) -> None:
        raise NotImplementedError

    def page(self, pages: int) -> None:
        self.move(pages * max(1, self.content_size.height - self._above - 1))

    def point(self, x: int, y: int) -> bool:
        """Put the cursor on what is there, below the heading; False where there is nothing."""
        return False

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and self.point(offset.x, offset.y - self._above) and event.chain == 2:
            self.post_message(self.Opened())

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.move(self.WHEEL)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.move(-self.WHEEL)


class Listing(Scrolled, Generic[T]):
    """Rows of which one is under the cursor; subclasses set `listed` and give `rows`."""

    at = 0  # of the row under the cursor
    listed: Sequence[T] = ()
    _top = 0

    def heading(self, state: State, width: int, colors: Palette) -> list[Line]:
        """Lines above the rows that do not scroll."""
        return []

    def rows(self, state: State, width: int, colors: Palette) -> list[Line]:
        """A line for each of `listed`; it gets two cells for the cursor before it."""
        raise NotImplementedError

    def empty(self, colors: Palette) -> list[Line]:
        return []

    def chosen(self) -> T | None:
        return self.listed[self.at] if self.at < len(self.listed) else None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        lines = list(self.heading(state, width, colors))
        rows = self.rows(state, width - 2, colors)
        self._above = len(lines)
        if not rows:
            return lines + self.empty(colors)
        self.at = max(0, min(self.at, len(rows) - 1))
        room = max(1, height - len(lines))
        self._top = min(max(self._top, self.at - room + 1), self.at)
        self._top = max(0, min(self._top, len(rows) - room))
        for index, row in enumerate(rows[self._top : self._top + room], self._top):
            here = index == self.at
            if here:
                row = [Segment(text, (style or LIFT) + LIFT) for text, style, _ in row]
            lines.append([Segment("▸ " if here else "  ", colors.cursor), *row])
        if len(rows) > room:
            left = len(rows) - self._top - room
            note = f" {left} more below " if left > 0 else f" {self._top} more above "
            lines[-1] = fitted(lines[-1], width - len(note), colors.text)
            lines[-1] = lines[-1] + words((note, colors.dim))
        return lines

    def move(self, rows: int, columns: int = 0) -> None:
        self.put(self.at + rows)

    def put(self, at: int) -> None:
        at = max(0, min(len(self.listed) - 1, at))
        if at != self.at:
            self.at = at
            self.again()
            self.post_message(self.Moved())

    def point(self, x: int, y: int) -> bool:
        is_row = 0 <= y < len(self.listed) - self._top
        if is_row:
            self.put(self._top + y)
        return is_row


class Text(Scrolled):
    """Long text. At its end it stays there when more is added."""

    WHEEL = 3
    _rows: Sequence[tuple[str, str]] = ()  # (text, name of a style in Palette)
    _folded: Sequence[tuple[str, str]] = ()  # the rows, long ones in pieces
    _made_of: tuple[object, int] = ((), 0)  # rows and width of `_folded`
    _first = 0
    _room = 1  # lines that are seen
    follows = False

    def fill(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show these lines; at the same place, or still at the end."""
        self._rows = rows
        self.again()

    def text(self) -> str:
        return "\n".join(text for text, _ in self._rows)

    def looks_at(self, state: State) -> object:
        return self._rows

    @property
    def _last(self) -> int:
        """The first line, when the last one is at the bottom."""
        return max(0, len(self._folded) - self._room)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        if self._made_of[0] is not self._rows or self._made_of[1] != width:
            self._made_of = self._rows, width
            self._folded = [
                (piece, name) for text, name in self._rows for piece in pieces(text, width - 1)
            ]
        self._room = height
        self._first = self._last if self.follows else min(self._first, self._last)
        return [
            words((" " + text, getattr(colors, name or "text")))
            for text, name in self._folded[self._first : self._first + height]
        ]

    def position(self) -> str:
        """`41-80 of 512`; "" when all is seen."""
        if not self._last:
            return ""
        last = min(len(self._folded), self._first + self._room)
        return f"{self._first + 1}-{last} of {len(self._folded)}"

    def move(self, rows: int, columns: int = 0) -> None:
        self._first = max(0, min(self._last, self._first + rows))
        at_end = rows > 0 and self._first == self._last
        self.follows = at_end or (self.follows and rows >= 0)
        self._show_place()

    def to_end(self, end: bool) -> None:
        self.follows = end
        if not end:
            self._first = 0
        self._show_place()

    def _show_place(self) -> None:
        self.again()
        self.post_message(self.Moved())


def pieces(text: str, width: int) -> list[str]:
    """A row of a text in lines of at most `width` cells; those behind the first are indented."""
    text = printable(text.expandtabs(4))
    if cell_len(text) <= width:
        return [text]
    first = chop_cells(text, width)[0]
    return [first, *(" " * 4 + piece for piece in chop_cells(text[len(first) :], width - 4))]
