"""The base class of all widgets here: lines painted from the state, only changed ones redrawn.

`render_line` and not Textual's tables: 24x8 coloured cells cost 6 ms a tick so, 82 ms as a
DataTable. Every Segment gets a Style: one without crashes the app under NO_COLOR (Textual 8.2.8).
All text of nodes and runs passes here on its way to the terminal, so here it is made printable.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.events import Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from dashboards.model.state import State
from dashboards.tui.braille import bar
from dashboards.tui.widgets.palette import Palette, palette
from trainer.runlog.output import printable

Line = list[Segment]


class Panel(Widget):
    """Shows what `paint` makes of the state; subclasses only write `paint`."""

    class Moved(Message):
        """The cursor is somewhere else, or the text was scrolled."""

    class Opened(Message):
        """The user wants to see what is under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: list[Strip] = []
        self._width = 0
        self._seen: tuple[object, ...] = (0, 0, None, None)  # size, palette, part of the state
        self._titles = ("", "")
        self._colors: Palette | None = None
        self._sides: tuple[Size, Strip, Strip] | None = None  # of a line: border and padding
        self._whole: dict[int, Strip] = {}  # lines with their sides, by place in the widget
        self.state: State | None = None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterable[Line]:
        """The first `height` lines are shown; shorter and fewer ones are filled up."""
        raise NotImplementedError

    def looks_at(self, state: State) -> object:
        """The part of the state that `paint` depends on; by default it is painted at every tick."""
        return object()

    def show(self, state: State, *, force: bool = False) -> None:
        """Paint the state; lines that came out the same are not sent again."""
        self.state = state
        width, height = self.content_size
        if not width or not height:
            return
        if self._colors is None:
            # What render_line gives is taken as it is: the ground has to be in every style.
            self._colors = palette(self.app, self.rich_style.bgcolor or Color.default())
        colors = self._colors
        before, self._seen = self._seen, (width, height, colors, self.looks_at(state))
        # States are never changed, so the same object is the same picture.
        if not force and before[:3] == self._seen[:3] and before[3] is self._seen[3]:
            return
        painted = itertools.islice(self.paint(state, width, height, colors), height)
        lines = [fitted(safe(line), width, colors.text) for line in painted]
        lines += [[Segment(" " * width, colors.text)]] * (height - len(lines))
        if width != self._width or len(lines) != len(self._lines):
            self._strips = [Strip(line, width) for line in lines]
            self._lines, self._width, self._whole = lines, width, {}
            self.refresh()
            return
        changed = [y for y, line in enumerate(lines) if line != self._lines[y]]
        for y in changed:
            self._strips[y] = Strip(lines[y], width)
            self._whole.pop(y + self.gutter.top, None)
        self._lines = lines
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def again(self) -> None:
        """Paint the same state, for a new size, cursor or setting."""
        if self.state is not None:
            self.show(self.state, force=True)

    def on_resize(self, event: Resize) -> None:
        self.again()

    def on_show(self) -> None:
        self.again()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._width, self._colors, self._sides = 0, None, None  # another theme: every line is new
        if self.is_attached:
            self.call_later(self.again)

    def title(self, text: str, note: str = "") -> None:
        """Words in the border; set only when they change, which lays the screen out again."""
        if self._titles != (text, note):
            self._titles = text, note
            # As Content: a string would be read as markup.
            self.border_title, self.border_subtitle = plain(text), plain(note)
            inner = range(self.gutter.top, self.gutter.top + len(self._strips))
            self._whole = {y: line for y, line in self._whole.items() if y in inner}

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y]
        return Strip([Segment(" " * self._width, Style())], self._width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """As Widget's, but border and padding are drawn once and not for every line.

        Textual reads the style sheet for each line: a third of its part of a tick.
        """
        size, top = self.outer_size, self.gutter.top
        if self._sides is None or self._sides[0] != size:
            if not self._strips or self._width != self.content_size.width:
                return super().render_lines(crop)
            left = self.gutter.left
            whole = super().render_lines(Region(0, top, size.width, 1))[0]
            self._sides = size, whole.crop(0, left), whole.crop(left + self._width)
            self._whole = {}
        _, before, behind = self._sides
        filters = None
        lines = []
        for y in crop.line_range:
            line = self._whole.get(y)
            if line is None:
                if 0 <= y - top < len(self._strips):
                    strip = self._strips[y - top]
                    filters = self.get_line_filters() if filters is None else filters
                    for filter in filters:
                        strip = strip.apply_filter(filter, self.background_colors[1])
                    line = Strip([*before, *strip, *behind], size.width)
                else:
                    (line,) = super().render_lines(Region(0, y, size.width, 1))
                self._whole[y] = line
            lines.append(line)
        if crop.column_span != (0, size.width):
            lines = [line.crop(*crop.column_span) for line in lines]
        return lines


def words(*parts: tuple[str, Style]) -> Line:
    return [Segment(text, style) for text, style in parts if text]


def gauge(part: float | None, width: int, style: Style, colors: Palette) -> Line:
    filled, empty = bar(part, width)
    return words((filled, style), (empty, colors.dim))


def clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def plain(text: str) -> Content:
    """Text that Textual does not read as markup."""
    return Content(printable(text))


def safe(line: Line) -> Line:
    """The line with control characters made visible."""
    # Together: nearly all lines are good, and each piece of them would cost a call.
    if "".join([text for text, _, _ in line]).isprintable():
        return line
    return [Segment(printable(text), style) for text, style, _ in line]


def width_of(line: Sequence[Segment]) -> int:
    # Together: asking Rich for each piece costs a tenth of a tick.
    text = "".join([text for text, _, _ in line])
    return len(text) if text.isascii() else cell_len(text)


def fitted(line: Line, width: int, style: Style) -> Line:
    """Cut or filled to exactly `width` cells."""
    have = width_of(line)
    if have == width:
        return line
    if have < width:
        return [*line, Segment(" " * (width - have), style)]
    if width < 2:
        return crop(line, width)
    return [*Strip(line, have).crop(0, width - 1), Segment("…", style)]


def crop(line: Line, width: int) -> Line:
    """At most `width` cells, cut without a sign."""
    have = width_of(line)
    return line if have <= width else list(Strip(line, have).crop(0, width))


def spread(left: Line, right: Line, width: int, style: Style) -> Line:
    """One line with something at each end; the left is cut when both do not fit."""
    gap = width - width_of(left) - width_of(right)
    if gap < 1:
        left = [*fitted(left, max(0, width - width_of(right) - 2), style), Segment("… ", style)]
        gap = width - width_of(left) - width_of(right)
    return [*left, Segment(" " * max(0, gap), style), *right]


def with_parts(line: Line, parts: Iterable[Line], width: int) -> Line:
    """The line and behind it those parts that fit whole."""
    for part in parts:
        if width_of(line) + width_of(part) <= width:
            line = line + part
    return line


def beside(columns: Sequence[tuple[list[Line], int]], height: int, style: Style) -> list[Line]:
    """Blocks of lines side by side, each with its width."""
    lines: list[Line] = []
    for y in range(height):
        line: Line = []
        for block, width in columns:
            line += fitted(block[y] if y < len(block) else [], width, style)
        lines.append(line)
    return lines
