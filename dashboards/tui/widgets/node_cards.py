"""Nodes without GPUs: a card each with the last minutes, or a line each when there are many."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.segment import Segment

from dashboards.model import units
from dashboards.model.fleet import (
    NODE_METRICS,
    STALE,
    UNKNOWN,
    Metric,
    arranged,
    level,
    load_per_core,
    node_column,
    node_mark,
    node_value,
    past,
    short_names,
)
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import Scale, bar, finite, nice_scale, spark
from dashboards.tui.widgets.gpu_grid import GpuGrid, Layout
from dashboards.tui.widgets.history import chart, node_line, reach
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, beside, fitted, spread, width_of, words

CARD_HEIGHT, CARD_WIDTH = 5, 38
SIDE = 30  # bars beside the chart
ROW_WIDTH = 58


@dataclass(frozen=True, slots=True)
class Cards:
    """How many cards beside each other; none: lines."""

    columns: int
    height: int


def lay_out_cards(nodes: int, width: int, height: int) -> Cards | None:
    """Cards of pleasant shape, or None when there is no room for that."""
    choices = []
    for columns in range(1, max(2, width // CARD_WIDTH + 1)):
        tall = min(16, height // math.ceil(nodes / columns))
        if tall >= CARD_HEIGHT and width // columns >= CARD_WIDTH:
            # About eight times as wide as tall reads best: a cell is twice as tall as wide.
            choices.append((abs(math.log((width / columns) / tall / 8)), Cards(columns, tall)))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


class NodeCards(GpuGrid):
    """The fleet of machines without GPUs; moves like the grid."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.metric = NODE_METRICS[0]

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        self._listed = arranged(state, self.metric, self.order, self.wanted)
        self._gpus = 0
        notes = self._notes()
        notes += [f"filter: {self.wanted} ({len(self._listed)})"] if self.wanted else []
        prefix, short = short_names(state.nodes)
        many = len(self._listed) > 4
        self.title(
            f"{prefix + '…  ' if prefix and many else ''}{self.metric.title}", " · ".join(notes)
        )
        if not self._listed:
            text = "no node has this name or mark" if state.nodes else "no nodes are watched"
            return [words((" " + text, colors.dim))]
        cards = lay_out_cards(len(self._listed), width, height)
        if cards is not None:
            rows = math.ceil(len(self._listed) / cards.columns)
            self._shape = Layout(cards.columns, rows, width // cards.columns, 1)
            self._keep_cursor(height)
            return self._paint_cards(state, cards, width, colors)
        columns = max(1, width // ROW_WIDTH)
        rows = math.ceil(len(self._listed) / columns)
        self._shape = Layout(columns, rows, width // columns, 1)
        self._keep_cursor(height + 1)
        self._label = max(len(name) for name in short.values())
        lines = []
        for row in range(self._top, min(rows, self._top + height)):
            line: Line = []
            for column in range(columns):
                at = column * rows + row
                if at < len(self._listed):
                    node = self._listed[at]
                    line += self._row(node, short[node.name], state, colors)
            lines.append(line)
        return lines

    def _paint_cards(self, state: State, cards: Cards, width: int, colors: Palette) -> list[Line]:
        lines: list[Line] = []
        shape = self._shape
        scale = self._scale(state)
        for row in range(shape.rows):
            blocks = []
            for column in range(cards.columns):
                at = column * shape.rows + row
                card = (
                    self._card(self._listed[at], state, shape.block, cards.height, scale, colors)
                    if at < len(self._listed)
                    else []
                )
                blocks.append((card, shape.block))
            lines += beside(blocks, cards.height, colors.text)
        return lines

    def _scale(self, state: State) -> Scale:
        """The same for all nodes, so that cards can be compared."""
        if self.metric.full_scale:
            return Scale(0.0, self.metric.full_scale)
        values: list[float] = []
        for node in state.nodes.values():
            values += self._past(node, state, reach(node))
        return nice_scale(
            [*finite(values), 1.0 if self.metric.key == "load" else 0.01], from_zero=True
        )

    def _past(self, node: NodeState, state: State, rows: int) -> list[float]:
        values = past(node, node_column(node, self.metric), rows, state)
        if self.metric.key == "load" and node.sample is not None and node.sample.cpus:
            return [value / node.sample.cpus for value in values]
        return values

    def _card(
        self, node: NodeState, state: State, width: int, height: int, scale: Scale, colors: Palette
    ) -> list[Line]:
        here = self.cursor is not None and self.cursor[0] == node.name
        mark, why = node_mark(node, state)
        name = words(
            ("▸ " if here else "  ", colors.cursor),
            (node.name, colors.cursor if here else colors.strong),
            ("*" if node.name in self.marked else "", colors.cursor),
            (f"  {mark} {why}" if mark else "", colors.warn),
        )
        inner = width - 2
        silent = mark in (UNKNOWN, STALE)
        if node.down is not None or not state.watches:
            said = node.down.message if node.down else "of the run's plan; nobody watches it"
            text = words((f"  {said}", colors.label))
            blank: list[Line] = [[] for _ in range(height - 2)]
            return [name, text, *blank]
        side = inner >= 2 * SIDE + 10 and height >= 6
        head = (
            name
            if side
            else spread(
                name, node_line(node, inner - width_of(name) - 2, colors), inner, colors.text
            )
        )
        chart_width = inner - (SIDE + 3 if side else 0)
        body = chart(
            state,
            self._past(node, state, reach(node)),
            chart_width,
            height - 2,
            scale,
            self.metric.say,
            colors,
        )
        if silent:
            body = [[Segment(s.text, colors.dim) for s in line] for line in body]
        if side:
            body = beside(
                [(body, chart_width + 3), (self._bars(node, colors), SIDE)], height - 2, colors.text
            )
        return [head, *body, []]

    def _bars(self, node: NodeState, colors: Palette) -> list[Line]:
        """All four metrics, the one of the chart in bright."""
        sample = node.sample
        if sample is None:
            return []
        lines = []
        values: list[tuple[Metric, str, float | None]] = [
            (
                metric,
                metric.say(node_value(sample, metric)),
                level(node_value(sample, metric), metric),
            )
            for metric in NODE_METRICS[:2]
        ]
        per_core = load_per_core(sample)
        load = units.UNKNOWN if sample.load1 is None else f"{sample.load1:.2f}"
        values.append((NODE_METRICS[2], f"{load}/{sample.cpus or units.UNKNOWN}", per_core))
        for metric, said, part in values:
            filled, empty = bar(part, 12)
            own = colors.strong if metric.key == self.metric.key else colors.label
            ink = colors.ink(part, hot=metric.key == "memory")
            lines.append(
                words(
                    (f"{metric.title.split(' ')[0]:<8}", own),
                    (filled, ink),
                    (empty, colors.dim),
                    (f" {said:>8}", colors.text),
                )
            )
        own = colors.strong if self.metric.key == "network" else colors.label
        lines.append(
            words(
                (f"{'network':<8}", own), (f"{units.rate(sample.network_bytes_s):>21}", colors.text)
            )
        )
        used = (
            f"{units.gib(sample.memory_used_bytes)} of {units.gib(sample.memory_total_bytes)} GiB"
        )
        lines.append(words((f"{'':<8}{used:>21}", colors.dim)))
        return lines

    def _row(self, node: NodeState, label: str, state: State, colors: Palette) -> Line:
        """A node in one line: name, cpu, memory, load, the metric's last minutes or its trouble."""
        block = self._shape.block
        here = self.cursor is not None and self.cursor[0] == node.name
        mark, why = node_mark(node, state)
        silent = mark in (UNKNOWN, STALE)
        style = colors.cursor if here else colors.dim if silent else colors.text
        line = self._front(node, label, here, style, colors)
        sample = node.sample
        if sample is None or node.down:
            said = f"{mark} {why}" if mark else "not watched"
            return fitted(line + words((said, colors.warn)), block, colors.text)
        for metric in NODE_METRICS[:2]:
            value = node_value(sample, metric)
            filled, empty = bar(value, 8)
            ink = colors.ink(value, hot=metric.key == "memory")
            line += words((f" {metric.title[:3]} ", colors.dim), (filled, ink), (empty, colors.dim))
            line += words((f"{units.percent(value):>5}", colors.text))
        load = units.UNKNOWN if sample.load1 is None else f"{sample.load1:.1f}"
        line += words((f"  {load:>5} ", colors.label))
        room = block - width_of(line) - 1
        if silent:
            line += words((f"{mark} {why}", colors.warn))
        elif room > 3:
            values = self._past(node, state, 2 * room)
            line += words((spark(values, self._scale(state)), colors.spark))
        return fitted(line, block, colors.text)
