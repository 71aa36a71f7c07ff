"""Nodes as rows, GPUs as cells, coloured by one metric. One widget for thousands of cells."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from dashboards.model import table, units
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import SPARKS
from dashboards.tui.widgets.history import node_spark
from dashboards.tui.widgets.listing import Scrolled
from dashboards.tui.widgets.palette import SILENT, Palette
from dashboards.tui.widgets.panel import Line, fitted, width_of, words

TAIL = 8  # total, or why there is none
CELL_WIDTHS = (6, 5, 4, 3, 2)
TOO_LONG = "++"  # of a number, where there is room for two digits: 100 or more
REVERSED = Style(reverse=True, bold=True)


@dataclass(frozen=True, slots=True)
class Layout:
    columns: int
    rows: int  # in each column, without the heading
    block: int  # width of a column
    cell: int  # width of a GPU
    tall: int = 1  # lines of a node


def centred(text: str, width: int) -> str:
    """In the middle, and where that cannot be to the right: next to the mark that belongs to it."""
    return text.rjust((width + len(text) + 1) // 2).ljust(width)


@functools.lru_cache(8192)
def tile(text: str, width: int, ground: Style, mark: str, mark_style: Style) -> tuple[Segment, ...]:
    """Text on its ground and behind it the mark; the same few hundred come again at every tick."""
    return Segment(centred(text, width - 1), ground), Segment(mark, mark_style)


def lay_out(nodes: int, gpus: int, label: int, width: int, height: int) -> Layout:
    """The fewest columns that show all nodes; else those that show most, to be scrolled."""
    found = Layout(1, nodes, width, CELL_WIDTHS[-1])
    for columns in range(1, max(2, width // 20)):
        block = width // columns
        room = block - (label + 2) - TAIL
        cell = next((cell for cell in CELL_WIDTHS if cell * gpus <= room), None)
        if cell is None:
            break
        found = Layout(columns, math.ceil(nodes / columns), block, cell)
        if found.rows + 1 <= height:
            break
    return found


class GpuGrid(Scrolled):
    """The fleet. `cursor` is (node name, GPU)."""

    WHEEL = 0
    _above = 1
    metric: table.Metric = table.METRICS[0]
    order = "hostfile"
    wanted = ""  # the filter
    only_outliers = False  # those within the fleet's usual range step back
    cursor: tuple[str, int] | None = None
    marked: set[str]  # nodes; the screen's own set
    _usual: tuple[float, float] | None = None
    listed: Sequence[NodeState] = ()  # in this order
    _gpus = 0  # of the largest node
    _shape = Layout(1, 1, 1, 3)
    _top = 0  # first row that is shown
    _label = 0  # width of a name

    def rows_wanted(self, state: State, width: int, height: int) -> int:
        """Lines with heading that it would fill, given so much room."""
        return self._lay_out(state, len(state.nodes), width, height).rows + 1

    def _lay_out(self, state: State, nodes: int, width: int, height: int) -> Layout:
        _, short = table.short_names(state.nodes)
        self._gpus = max((node.gpus_seen for node in state.nodes.values()), default=0)
        self._label = max([3, *map(len, short.values())])
        return lay_out(max(1, nodes), self._gpus, self._label, width, height)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterable[Line]:
        prefix, short = table.short_names(state.nodes)
        self.listed = table.arranged(state, self.metric, self.order, self.wanted)
        self._shape = shape = self._lay_out(state, len(self.listed), width, height)
        self._keep_cursor(height)
        usual = self._usual = table.usual_range(state, self.metric) if self.only_outliers else None
        limits = " to ".join(map(self.metric.say, usual)) if usual else ""
        outliers = f"outliers: {f'not {limits}' if usual else 'too few readings'}"
        notes = self._notes(*[outliers] * self.only_outliers)
        hidden = shape.rows - (height - 1)
        notes += [f"{hidden * shape.columns} more, scroll"] if hidden > 0 else []
        title = self.metric.whole_title if shape.cell >= 5 else self.metric.title
        title += f", {TOO_LONG} is 100" * (shape.cell == 3 and self.metric.full_scale == 1.0)
        self.title(f"{prefix + '…  ' if prefix else ''}{title}", " · ".join(notes))
        if not self.listed:
            return [words((" no node has this name or mark", colors.dim))]
        return [
            self._heading(shape, colors) * shape.columns,
            *self._rows(height - 1, short, state, colors),
        ]

    def _rows(
        self, height: int, short: Mapping[str, str], state: State, colors: Palette
    ) -> Iterator[Line]:
        shape = self._shape
        for row in range(self._top, min(shape.rows, self._top + height)):
            line: Line = []
            for node in self.listed[row :: shape.rows]:
                block = self._block(node, short[node.name], state, colors)
                line += fitted(block, shape.block, colors.text)
            yield line

    def _notes(self, *more: str) -> list[str]:
        """For below: marked nodes, also those that the filter hides, the order, and the filter."""
        unseen = len(self.marked) - sum(node.name in self.marked for node in self.listed)
        notes = []
        if self.marked:
            notes = [f"{len(self.marked)} marked*" + (f", {unseen} filtered out" if unseen else "")]
        notes += [f"order: {self.order}"] if self.order != "hostfile" else []
        notes += more
        return notes + ([f"filter: {self.wanted} ({len(self.listed)})"] if self.wanted else [])

    def _front(self, node: NodeState, label: str, silent: bool, colors: Palette) -> Line:
        """The beginning of a node's row: cursor, name, mark."""
        here, marked = self._is_here(node), node.name in self.marked
        style = colors.cursor if here else colors.dim if silent else colors.text
        return words(
            ("▸" if here else " ", colors.cursor),
            (f"{label:<{self._label}}{'' if marked else ' '}", style),
            ("*" if marked else "", colors.cursor),
        )

    def _is_here(self, node: NodeState) -> bool:
        return self.cursor is not None and self.cursor[0] == node.name

    def _heading(self, shape: Layout, colors: Palette) -> Line:
        cell = shape.cell
        numbers = "".join(
            (centred(str(index), max(1, cell - 1)) + " ")[:cell] for index in range(self._gpus)
        )
        total = self.metric.of_many
        text = f" {'node' if self._label > 3 else '':<{self._label}} {numbers}{total:>{TAIL - 1}}"
        room = shape.block - len(text)
        if room >= 40:
            text += f"{'  state':<18}cpu   mem  load  last minutes"
        elif room >= 14:
            text += "  state"
        return fitted(words((text, colors.dim)), shape.block, colors.dim)

    def _block(self, node: NodeState, label: str, state: State, colors: Palette) -> Line:
        mark, why = table.node_mark(node, state)
        silent = mark in SILENT
        line = self._front(node, label, silent, colors)
        line += self._tiles(node, mark, state, colors)
        sample = None if node.down else node.sample
        value = None if sample is None else table.node_value(sample, self.metric)
        total = self.metric.say(value).removesuffix(" MHz")
        style = colors.dim if mark == table.STALE else colors.mark(mark, colors.text)
        room = self._shape.block - width_of(line)
        if room < TAIL + 14:
            if silent:
                text = why if mark == table.UNKNOWN else why + mark
                return line + words((f"{text[: TAIL - 1]:>{TAIL - 1}} ", style))
            short_total = total.replace(" kW", "k").replace(" W", "")
            return line + words((f"{short_total:>{TAIL - 3}}", colors.text), (f"{mark:>2} ", style))
        line += words((f"{total:>{TAIL - 1}}", colors.label if silent else colors.strong))
        line += words((f"  {f'{mark} {why}'.strip():<16}"[:18], style))
        if room - TAIL - 18 >= 22:
            line += self._more(node, state, room - TAIL - 18, silent, colors)
        return line

    def _tiles(self, node: NodeState, mark: str, state: State, colors: Palette) -> Line:
        width, metric = self._shape.cell, self.metric
        on = self.cursor[1] if self.cursor and self._is_here(node) else -1
        sample = node.sample
        gpus = sample.gpus or () if sample is not None else ()
        if sample is not None and not node.gpus_seen and mark not in SILENT:
            usage = f"cpu {units.percent(sample.cpu)}  mem {units.percent(sample.memory)}"
            text = words((f"no GPU  {usage}", colors.label))
            return fitted(text, width * self._gpus, colors.label)
        line: Line = []
        if not mark and on < 0 and len(gpus) == self._gpus and width > 2 and not self.only_outliers:
            # Nearly all nodes at every tick: each GPU is there and has nothing but its number.
            for index, gpu in enumerate(gpus):
                value = metric.read(gpu)
                if value is None or gpu.index != index:
                    break
                ground = colors.cell(table.level(value, metric, gpu), metric.key == "temperature")
                line += tile(self._number(value, width), width, ground, " ", colors.text)
            else:
                return line
            line.clear()
        shown = table.cells(node, metric, state)
        shown += [table.Cell(None, None, " ")] * (self._gpus - len(shown))
        for index, cell in enumerate(shown):
            line += self._cell(cell, width, index == on, colors)
        return line

    def _cell(self, cell: table.Cell, width: int, at: bool, colors: Palette) -> tuple[Segment, ...]:
        """A tile and behind it the mark or a gap."""
        ground = colors.cell(cell.level, self.metric.key == "temperature")
        mark_style, mark = colors.text, cell.mark or " "
        if cell.value is None:
            grounds = {table.MISSING: colors.bad, table.UNKNOWN: colors.dim}
            ground, text, mark = grounds.get(cell.mark, colors.text), cell.mark, " "
        else:
            step = min(7, int(8 * (cell.level or 0.0)))
            text = self._number(cell.value, width) if width > 2 else SPARKS[step]
            if cell.mark == table.ALARM:
                ground = mark_style = colors.alarm
            elif cell.mark == table.STALE:
                ground = mark_style = colors.dim
            elif self._usual is not None:
                low, high = self._usual
                if low <= cell.value <= high:
                    ground = mark_style = colors.dim
                else:
                    mark = "▾" if cell.value < low else "▴"
                    ground = mark_style = colors.warn
        if at:
            ground = ground + REVERSED
            mark_style = ground if cell.mark == table.ALARM else mark_style
        return tile(text, width, ground, mark, mark_style)

    def _number(self, value: float, width: int) -> str:
        if width >= 5 and self.metric.is_scaled:
            return f"{value:.0f}"
        text = self.metric.short(value)
        # In the gap it would run into the next one or take the place of the mark.
        return text if len(text) < width else TOO_LONG

    def _more(
        self, node: NodeState, state: State, room: int, silent: bool, colors: Palette
    ) -> Line:
        """CPU, memory, load and the last minutes of the metric, where there is room."""
        sample = None if node.down else node.sample
        cpu, memory, load = (sample.cpu, sample.memory, sample.load1) if sample else (None,) * 3
        style = colors.dim if silent else colors.label
        usage = f"{units.percent(cpu):>4} {units.percent(memory):>5} {units.number(load, 2):>5}  "
        line = words((usage, style))
        width = min(120, room - 19)
        if width >= 8:
            ink = style if silent else colors.spark
            line += words((node_spark(node, self.metric, width, state), ink))
        return line

    # Moving. Nodes are listed down the columns, as in a phone book.

    def _keep_cursor(self, height: int) -> None:
        names = [node.name for node in self.listed]
        if self.cursor is None or self.cursor[0] not in names:
            self.cursor = (names[0], 0) if names else None
        rows = max(1, height - 1)
        if self.cursor is not None:
            row = names.index(self.cursor[0]) % self._shape.rows
            self._top = min(max(self._top, row - rows + 1), row)
        self._top = max(0, min(self._top, self._shape.rows - rows))

    def move(self, nodes: int, gpus: int = 0) -> None:
        """Down and right are positive; the edge of a node leads into the next column."""
        if self.cursor is None or not self.listed:
            return
        at = [node.name for node in self.listed].index(self.cursor[0])
        gpu = self.cursor[1] + gpus
        if gpu < 0 or gpu >= max(1, self._gpus):
            neighbour = at + (self._shape.rows if gpu > 0 else -self._shape.rows)
            if 0 <= neighbour < len(self.listed):
                at, gpu = neighbour, 0 if gpu > 0 else self._gpus - 1
        self._place(max(0, min(len(self.listed) - 1, at + nodes)), gpu)

    def page(self, pages: int) -> None:
        self.move(pages * max(1, self.content_size.height - 1))

    def _place(self, at: int, gpu: int) -> None:
        place = (self.listed[at].name, max(0, min(self._gpus - 1, gpu)))
        if place != self.cursor:
            self.cursor = place
            self.again()
            self.post_message(self.Moved())

    def selected(self) -> NodeState | None:
        return next((n for n in self.listed if self.cursor and n.name == self.cursor[0]), None)

    def point(self, x: int, y: int) -> bool:
        shape = self._shape
        column = min(shape.columns - 1, x // shape.block)
        row = self._top + y // shape.tall
        at = column * shape.rows + row
        is_node = y >= 0 and row < shape.rows and at < len(self.listed)
        if is_node:
            self._place(at, (x - column * shape.block - self._label - 2) // shape.cell)
        return is_node
