"""Panels of the node screen: the machine, GPUs, processes, links, disks, alerts, one chart."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.events import Click
from textual.message import Message

from dashboards.model import units
from dashboards.model.fleet import (
    METRICS,
    NODE_METRICS,
    Metric,
    level,
    load_per_core,
    missing,
    node_mark,
    past,
)
from dashboards.model.history_columns import NODE_COLUMNS, gpu_column
from dashboards.model.samples import Gpu, NodeSample, Process
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import Scale, bar, binned, finite, spark
from dashboards.tui.widgets.history import chart, reach, ticks
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, fitted, width_of, words

CLOCK_WARN_S, CLOCK_BAD_S = 0.05, 0.5


class NodePanel(Panel):
    """Shows one node, which may be another one at any time."""

    node = ""  # its name

    def of(self, state: State) -> NodeState | None:
        return state.nodes.get(self.node)


class NodeHead(NodePanel):
    """The machine in two lines: who, how long up, driver, clock; cpu, memory, load, network."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        if node is None:
            return [words((" no nodes are watched", colors.dim))]
        mark, why = node_mark(node, state)
        style = {"": colors.good, "~": colors.warn, "-": colors.warn}.get(mark, colors.bad)
        names = list(state.nodes)
        place = f"  {names.index(node.name) + 1}/{len(names)}"
        line = words((f" {node.name}", colors.strong), (place, colors.dim))
        line += words((f"  {f'{mark} {why}'.strip() or 'ok'}", style))
        sample = node.sample
        if sample is None:
            text = node.down.message if node.down else "no reading yet"
            return [line, words((f" {text}", colors.warn))]
        for name, text, ink in self._facts(sample, colors):
            part = words((f"  {name} ", colors.dim), (text, ink))
            if width_of(line) + width_of(part) <= width:
                line += part
        second: Line = []
        if node.down is not None:
            second = words((f" {node.down.phase}: {node.down.message}", colors.warn))
        else:
            for name, text, ink in self._load(sample, colors):
                part = words((f" {name} ", colors.dim), (f"{text} ", ink))
                if width_of(second) + width_of(part) <= width:
                    second += part
        return [line, second]

    def _facts(self, sample: NodeSample, colors: Palette) -> list[tuple[str, str, Style]]:
        facts: list[tuple[str, str, Style]] = []
        if sample.up_s is not None:
            facts.append(("up", units.span(sample.up_s), colors.text))
        offset = sample.clock_offset_s
        if offset is not None:
            size = abs(offset)
            ink = (
                colors.bad
                if size > CLOCK_BAD_S
                else colors.warn
                if size > CLOCK_WARN_S
                else colors.text
            )
            text = units.offset(offset)
            if sample.clock_bound_s is not None:
                text += f" ±{1000 * sample.clock_bound_s:.1f} ms"
            facts.append(("clock", text + (" !" if size > CLOCK_BAD_S else ""), ink))
        if sample.driver:
            facts.append(("driver", sample.driver, colors.text))
        return facts

    def _load(self, sample: NodeSample, colors: Palette) -> list[tuple[str, str, Style]]:
        per_core = load_per_core(sample)
        busy = colors.warn if per_core is not None and per_core > 1.5 else colors.text
        load = units.UNKNOWN if sample.load1 is None else f"{sample.load1:.1f}"
        used = f"{units.gib(sample.memory_used_bytes)}/{units.gib(sample.memory_total_bytes)} GiB"
        full = colors.warn if (sample.memory or 0) > 0.92 else colors.text
        return [
            ("cpu", units.percent(sample.cpu), colors.text),
            ("load", f"{load}/{sample.cpus or units.UNKNOWN}", busy),
            ("mem", used, full),
            ("net", units.rate(sample.network_bytes_s), colors.text),
        ]


class NodeGpus(NodePanel, can_focus=True):
    """A line for each GPU; the cursor chooses which one the chart shows."""

    class Moved(Message):
        """Another GPU is under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.metric: Metric = METRICS[0]
        self.gpu = 0

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        if node is None:
            self.title("")
            return []
        model = (
            next((g.name for g in (node.sample.gpus or ()) if g.name), "") if node.sample else ""
        )
        self.title(
            f"{node.gpus_seen} GPUs" if node.gpus_seen else "GPUs", model.removeprefix("NVIDIA ")
        )
        if node.sample is not None and node.sample.gpus is None:
            return [words((f" - {node.sample.gpu_error}", colors.warn))]
        if not node.gpus_seen:
            return [words((" this machine has none", colors.dim))]
        columns = self._columns(node, width)
        lines = [words((self._heading(columns), colors.dim))]
        gone = missing(node)
        by_index = {gpu.index: gpu for gpu in (node.sample.gpus or ())} if node.sample else {}
        for index in range(node.gpus_seen):
            lines.append(
                self._row(
                    node, index, by_index.get(index), index in gone, columns, state, width, colors
                )
            )
        return lines

    # (name, cells): which columns there are depends on the width; later ones give way first.
    _COLUMNS = (
        ("power", 7),
        ("util", 5),
        ("memory", 19),
        ("temp", 7),
        ("SM MHz", 8),
        ("process", 18),
        ("rank", 5),
        ("ECC", 5),
        ("NVLink", 8),
        ("throttle", 20),
    )

    def _columns(self, node: NodeState, width: int) -> list[tuple[str, int]]:
        room = width - 6
        kept = []
        known = self._known(node)
        for name, cells in self._COLUMNS:
            if name in known and cells + 1 <= room:
                kept.append((name, cells))
                room -= cells + 1
        return kept

    def _known(self, node: NodeState) -> set[str]:
        """Columns that this node has something for."""
        known = {"power", "util", "memory", "temp", "SM MHz"}
        sample = node.sample
        for gpu in (sample.gpus or ()) if sample else ():
            if gpu.ecc_errors is not None:
                known.add("ECC")
            if gpu.nvlinks is not None:
                known.add("NVLink")
            if gpu.throttle:
                known.add("throttle")
        if sample is not None and sample.processes:
            known |= {"process", "rank"}
        return known

    def _heading(self, columns: Sequence[tuple[str, int]]) -> str:
        text = "  GPU "
        for name, cells in columns:
            left = name in ("process", "throttle", "memory")
            text += " " + (f"{name:<{cells}}" if left else f"{name:>{cells}}")
        return text

    def _row(
        self,
        node: NodeState,
        index: int,
        gpu: Gpu | None,
        gone: bool,
        columns: Sequence[tuple[str, int]],
        state: State,
        width: int,
        colors: Palette,
    ) -> Line:
        odd = state.odd.get((node.name, index))
        here = index == self.gpu
        mark = "x" if gone else "!" if odd else " "
        line = words(
            ("▸" if here else " ", colors.cursor),
            (f"{index:>3} ", colors.cursor if here else colors.text),
            (mark, colors.bad),
        )
        if gpu is None or gone or node.down is not None:
            reason = (gpu.error if gpu else "") or ("gone" if gone else "no reading")
            return line + words((f"  {reason}", colors.bad if gone else colors.dim))
        found = node.sample.processes if node.sample else None
        own = [p for p in found or () if p.gpu == index]
        for name, cells in columns:
            line += words((" ", colors.text))
            line += fitted(self._cell(name, cells, gpu, own, bool(odd), colors), cells, colors.text)
        room = min(120, width - width_of(line) - 3)
        if room >= 8:
            values = past(node, gpu_column(index, self.metric.column), 4 * room, state)
            full = self.metric.full_scale or 1.0
            line += words(
                ("  ", colors.text),
                (spark(binned(values, 2 * room, 2, ticks(state)), Scale(0.0, full)), colors.spark),
            )
        return line

    def _cell(
        self, name: str, cells: int, gpu: Gpu, own: Sequence[Process], odd: bool, colors: Palette
    ) -> Line:
        text, style, left = units.UNKNOWN, colors.text, False
        if name == "power":
            text, style = units.power(gpu.power_w), colors.alarm if odd else colors.strong
        elif name == "util":
            text = units.percent(gpu.util)
        elif name == "memory":
            filled, empty = bar(gpu.memory, 8)
            used = f"{units.gib(gpu.memory_used_bytes)}/{units.gib(gpu.memory_total_bytes)}G"
            ink = colors.ink(gpu.memory, hot=False)
            return words((filled, ink), (empty, colors.dim), (f" {used}", colors.label))
        elif name == "temp" and gpu.temperature_c is not None:
            text = f"{gpu.temperature_c:.0f} °C"
            style = colors.ink(level(gpu.temperature_c, METRICS[3]), hot=True)
        elif name == "SM MHz" and gpu.sm_mhz is not None:
            text = f"{gpu.sm_mhz:,.0f}"
        elif name == "ECC" and gpu.ecc_errors is not None:
            text = f"{gpu.ecc_errors:,}" + ("!" if gpu.ecc_errors else "")
            style = colors.bad if gpu.ecc_errors else colors.label
        elif name == "NVLink" and gpu.nvlinks is not None:
            active, present = gpu.nvlinks
            short = active < present
            text = f"{active}/{present}" + ("!" if short else "")
            style = colors.bad if short else colors.label
        elif name == "throttle":
            text, style, left = gpu.throttle or "", colors.warn, True
            if gpu.throttle is None:
                text, style = units.UNKNOWN, colors.dim
        elif name == "process":
            left, style = True, colors.label
            first = own[0] if own else None
            more = f" +{len(own) - 1}" if len(own) > 1 else ""
            text = f"{first.name[: cells - 9 - len(more)]} {first.pid}{more}" if first else ""
        elif name == "rank":
            text = next((f"{p.rank}" for p in own if p.rank is not None), "")
        return words((f"{text:<{cells}}" if left else f"{text:>{cells}}", style))

    def move(self, gpus: int) -> None:
        node = self.state.nodes.get(self.node) if self.state else None
        count = node.gpus_seen if node else 0
        gpu = max(0, min(count - 1, self.gpu + gpus))
        if gpu != self.gpu:
            self.gpu = gpu
            self.again()
            self.post_message(self.Moved())

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.y >= 1:
            self.move(offset.y - 1 - self.gpu)


class NodeChart(NodePanel):
    """The last minutes of the GPU under the cursor, or of the CPU."""

    metric: Metric = METRICS[0]
    gpu = 0

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        if node is None:
            self.title("")
            return []
        if not node.gpus_seen:
            return self._cpu(node, state, width, height, colors)
        values = past(node, gpu_column(self.gpu, self.metric.column), reach(node), state)
        full = max([self.metric.full_scale or 1.0, *finite(values)])
        now = next((v for v in reversed(values) if v == v), None)
        odd = state.odd.get((node.name, self.gpu), "")
        minutes = units.span(len(values) * state.history_step_s)
        self.title(
            f"GPU {self.gpu} {self.metric.name} {self.metric.say(now)}"
            + (f"  ! {odd}" if odd else ""),
            f"last {minutes}",
        )
        return chart(state, values, width, height, Scale(0.0, full), self.metric.say, colors)

    def _cpu(
        self, node: NodeState, state: State, width: int, height: int, colors: Palette
    ) -> list[Line]:
        """CPU and memory over each other, for a machine without GPUs."""
        self.title("cpu and memory", f"last {units.span(reach(node) * state.history_step_s)}")
        lines: list[Line] = []
        for metric in NODE_METRICS[:2]:
            values = past(node, NODE_COLUMNS.index(metric.column), reach(node), state)
            lines.append(words((f" {metric.title}", colors.label)))
            tall = max(1, height // 2 - 1)
            lines += chart(state, values, width, tall, Scale(0.0, 1.0), metric.say, colors)
        return lines
