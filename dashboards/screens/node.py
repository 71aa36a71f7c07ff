"""One machine: every GPU with all its figures and its last minutes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from dashboards import units
from dashboards.columns import NODE_COLUMNS, gpu_column
from dashboards.fleet import (
    METRICS,
    NODE_METRICS,
    Metric,
    level,
    missing,
    node_mark,
    node_past,
    past,
)
from dashboards.plot import Scale, bar, binned, finite, spark
from dashboards.samples import Gpu
from dashboards.screens.base import TopScreen
from dashboards.state import NodeState, State
from dashboards.widgets.history import chart, node_line, reach, ticks
from dashboards.widgets.palette import Palette
from dashboards.widgets.panel import Line, Panel, width_of, words


class NodeGpus(Panel):
    """A line for each GPU of one node."""

    def __init__(self, name: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._node = name
        self.metric: Metric = METRICS[0]

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = state.nodes.get(self._node)
        if node is None:
            return [words((f" {self._node} is not watched", colors.warn))]
        mark, why = node_mark(node, state)
        self.title(node.name, f"{mark} {why}".strip())
        lines = [node_line(node, width, colors)]
        if node.down is not None:
            lines.append(words((f"{mark} {node.down.phase}: {node.down.message}", colors.warn)))
        if node.sample is not None and node.sample.gpus is None:
            lines.append(words((f"- {node.sample.gpu_error}", colors.warn)))
        if not node.gpus_seen:
            return [*lines, [], *self._charts(node, state, width, height - len(lines) - 1, colors)]
        heading = f"{'GPU':>4}  {'power':>6} {'util':>5}  {'memory':^22} {'temp':>6} {'SM':>9}"
        lines.append(
            words((f"{heading}  {self.metric.title.split(' ')[0]}, last minutes", colors.dim))
        )
        gone = missing(node)
        by_index = {gpu.index: gpu for gpu in (node.sample.gpus or ())} if node.sample else {}
        for index in range(node.gpus_seen):
            lines.append(self._gpu(node, index, by_index.get(index), index in gone, state, width, colors))  # fmt: skip
        room = height - len(lines) - 2
        if room >= 4:
            values = node_past(node, self.metric, reach(node), state)
            full = max([self.metric.full_scale or 1.0, *finite(values)])
            lines += [
                [],
                words((f" {self.metric.title.split(' ')[0]}, mean of its GPUs", colors.label)),
            ]
            lines += chart(state, values, width, room, Scale(0.0, full), self.metric.say, colors)
        return lines

    def _gpu(
        self, node: NodeState, index: int, gpu: Gpu | None, gone: bool, state: State, width: int, colors: Palette
    ) -> Line:  # fmt: skip
        odd = state.odd.get((node.name, index))
        mark = "x" if gone else "!" if odd else " "
        line = words((f"{index:>3}", colors.text), (mark, colors.bad))
        if gpu is None or gone or node.down is not None:
            reason = (gpu.error if gpu else "") or ("gone" if gone else "no reading")
            return line + words((f"  {reason}", colors.bad if gone else colors.dim))
        filled, empty = bar(gpu.memory, 10)
        used = f"{units.gib(gpu.memory_used_bytes)}/{units.gib(gpu.memory_total_bytes)}G"
        temperature = units.UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
        clock = units.UNKNOWN if gpu.sm_mhz is None else f"{gpu.sm_mhz:,.0f} MHz"
        hot = level(gpu.temperature_c, METRICS[3])
        line += words(
            (f"  {units.power(gpu.power_w):>6}", colors.alarm if odd else colors.strong),
            (f" {units.percent(gpu.util):>5}  ", colors.text),
            (filled, colors.ink(gpu.memory, hot=False)),
            (empty, colors.dim),
            (f" {used:<11}", colors.label),
            (f" {temperature:>6}", colors.ink(hot, hot=True)),
            (f" {clock:>9}  ", colors.text),
        )
        room = min(120, width - width_of(line) - 1)
        if room >= 6:
            per = 2
            values = past(node, gpu_column(index, self.metric.column), 2 * per * room, state)
            full = self.metric.full_scale or 1.0
            line += words((spark(binned(values, 2 * room, per, ticks(state)), Scale(0.0, full)), colors.spark))  # fmt: skip
        return line

    def _charts(
        self, node: NodeState, state: State, width: int, height: int, colors: Palette
    ) -> list[Line]:
        """CPU and memory over each other, for a machine without GPUs."""
        lines: list[Line] = []
        for metric in NODE_METRICS[:2]:
            values = past(node, NODE_COLUMNS.index(metric.column), reach(node), state)
            lines.append(words((f" {metric.title}", colors.label)))
            lines += chart(
                state,
                values,
                width,
                max(1, height // 2 - 1),
                Scale(0.0, 1.0),
                metric.say,
                colors,
            )
        return lines


class NodeScreen(TopScreen):
    """Opened by enter on the cluster screen, left by escape."""

    RUN_ABOVE = True
    KEYS = (
        ("esc", "back", "app.pop_screen"),
        ("p", "metric", "screen.metric"),
        ("?", "help", "app.help"),
        ("q", "quit", "app.quit"),
        ("w", "screenshot", "app.picture"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("p", "metric", "change the metric"),
    ]

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def body(self) -> Iterable[Widget]:
        yield NodeGpus(self._node, id="node")

    def action_metric(self) -> None:
        panel = self.query_one(NodeGpus)
        panel.metric = METRICS[(METRICS.index(panel.metric) + 1) % len(METRICS)]
        self.again()
