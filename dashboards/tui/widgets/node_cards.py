"""Nodes without GPUs: a card each with the last minutes, or a line each when there are many."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.segment import Segment

from dashboards.model import table, units
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import Scale, finite, nice_scale, spark
from dashboards.tui.widgets.gpu_grid import GpuGrid, Layout
from dashboards.tui.widgets.history import chart, load_text, memory_text, node_line, reach, shown
from dashboards.tui.widgets.palette import SILENT, Palette
from dashboards.tui.widgets.panel import Line, beside, gauge, spread, width_of, words

CARD_HEIGHT, CARD_WIDTH = 5, 38
SIDE = 30  # bars beside the chart
ROW_WIDTH = 58


def lay_out_cards(nodes: int, width: int, height: int) -> tuple[int, int] | None:
    """(cards beside each other, lines of a card), or None when there is no room for cards."""
    choices = []
    for columns in range(1, max(2, width // CARD_WIDTH + 1)):
        tall = min(16, height // math.ceil(nodes / columns))
        if tall >= CARD_HEIGHT and width // columns >= CARD_WIDTH:
            # About eight times as wide as tall reads best: a cell is twice as tall as wide.
            choices.append((abs(math.log((width / columns) / tall / 8)), (columns, tall)))
    return min(choices)[1] if choices else None


class NodeCards(GpuGrid):
    """The fleet of machines without GPUs; moves like the grid."""

    metric = table.NODE_METRICS[0]
    _above = 0

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterable[Line]:
        self.listed = table.arranged(state, self.metric, self.order, self.wanted)
        self._gpus = 0
        prefix, short = table.short_names(state.nodes)
        many = len(self.listed) > 4
        prefix = f"{prefix}…  " if prefix and many else ""
        self.title(prefix + self.metric.title, " · ".join(self._notes()))
        if not self.listed:
            text = "no node has this name or mark" if state.nodes else "no nodes are watched"
            return [words((" " + text, colors.dim))]
        cards = lay_out_cards(len(self.listed), width, height)
        columns, tall = cards or (max(1, width // ROW_WIDTH), 1)
        rows = math.ceil(len(self.listed) / columns)
        self._shape = Layout(columns, rows, width // columns, 1, tall)
        if cards is not None:
            self._keep_cursor(height)
            lines: list[Line] = []
            wide, scale = self._shape.block, self._scale(state)
            for row in range(rows):
                nodes = self.listed[row::rows]
                blocks = [(self._card(n, state, wide, tall, scale, colors), wide) for n in nodes]
                lines += beside(blocks, tall, colors.text)
            return lines
        self._keep_cursor(height + 1)
        self._label = max(map(len, short.values()))
        return self._rows(height, short, state, colors)

    def _scale(self, state: State) -> Scale:
        """The same for all nodes, so that cards can be compared."""
        if self.metric.full_scale:
            return Scale(0.0, self.metric.full_scale)
        values = [1.0 if self.metric.key == "load" else 0.01]
        for node in state.nodes.values():
            values += finite(self._past(node, state, reach(node)))
        return nice_scale(values, from_zero=True)

    def _past(self, node: NodeState, state: State, rows: int) -> list[float]:
        values = table.past(node, table.node_column(node, self.metric), rows, state)
        if self.metric.key == "load" and node.sample is not None and node.sample.cpus:
            return [value / node.sample.cpus for value in values]
        return values

    def _card(
        self, node: NodeState, state: State, width: int, height: int, scale: Scale, colors: Palette
    ) -> list[Line]:
        here = self._is_here(node)
        mark, why = table.node_mark(node, state)
        head = words(
            ("▸ " if here else "  ", colors.cursor),
            (node.name, colors.cursor if here else colors.strong),
            ("*" if node.name in self.marked else "", colors.cursor),
            (f"  {mark} {why}" if mark else "", colors.warn),
        )
        if node.down is not None or not state.watches:
            reason = node.down.message if node.down else "of the run's plan; it is not watched"
            return [head, words((f"  {reason}", colors.label))]
        inner, tall = width - 2, height - 2
        side = inner >= 2 * SIDE + 10 and height >= 6
        if not side:
            line = node_line(node, inner - width_of(head) - 2, colors)
            head = spread(head, line, inner, colors.text)
        wide = inner - (SIDE + 3 if side else 0)
        values = self._past(node, state, reach(node))
        body = chart(state, values, (wide, tall), scale, self.metric.say, colors)
        if mark in SILENT:
            body = [[Segment(text, colors.dim) for text, _, _ in line] for line in body]
        if side:
            body = beside([(body, wide + 3), (self._bars(node, colors), SIDE)], tall, colors.text)
        return [head, *body]

    def _bars(self, node: NodeState, colors: Palette) -> list[Line]:
        """All four metrics, the one of the chart in bright."""
        sample = node.sample
        if sample is None:
            return []
        lines = []
        for metric in table.NODE_METRICS:
            own = colors.strong if metric.key == self.metric.key else colors.label
            line = words((f"{metric.title.split(' ')[0]:<8}", own))
            value = table.node_value(sample, metric)
            if metric.key == "network":
                lines.append(line + words((f"{metric.say(value):>21}", colors.text)))
                continue
            part = value if metric.key == "load" else table.level(value, metric)
            text = load_text(sample, 2) if metric.key == "load" else metric.say(value)
            line += gauge(part, 12, colors.ink(part, hot=metric.key == "memory"), colors)
            lines.append(line + words((f" {text:>8}", colors.text)))
        used = memory_text(sample).replace("/", " of ")
        return [*lines, words((f"{'':<8}{used:>21}", colors.dim))]

    def _block(self, node: NodeState, label: str, state: State, colors: Palette) -> Line:
        """A node in one line: name, cpu, memory, load, the metric's last minutes or its trouble."""
        mark, why = table.node_mark(node, state)
        silent = mark in SILENT
        line = self._front(node, label, silent, colors)
        sample = node.sample
        if sample is None or node.down:
            return line + words((f"{mark} {why}" if mark else "not watched", colors.warn))
        for metric in table.NODE_METRICS[:2]:
            value = table.node_value(sample, metric)
            ink = colors.ink(value, hot=metric.key == "memory")
            line += words((f" {metric.title[:3]} ", colors.dim)) + gauge(value, 8, ink, colors)
            line += words((f"{units.percent(value):>5}", colors.text))
        line += words((f"  {shown(sample.load1, '.1f'):>5} ", colors.label))
        room = self._shape.block - width_of(line) - 1
        if silent:
            line += words((f"{mark} {why}", colors.warn))
        elif room > 3:
            values = self._past(node, state, 2 * room)
            line += words((spark(values, self._scale(state)), colors.spark))
        return line
