"""Panels of the node screen: the machine, its GPUs, the chart of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.segment import Segment
from rich.style import Style

from checks.units import counted
from dashboards.model import units
from dashboards.model.ring_buffer import NODE_COLUMNS, gpu_column
from dashboards.model.samples import Gpu, NodeSample, Process
from dashboards.model.state import NodeState, State
from dashboards.model.table import METRICS, NODE_METRICS, Metric, level, missing, node_mark, past
from dashboards.tui.braille import Scale, binned, finite, spark
from dashboards.tui.widgets import history
from dashboards.tui.widgets.listing import Scrolled
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, fitted, gauge, width_of, with_parts, words

CLOCK_WARN_S, CLOCK_BAD_S = 0.05, 0.5
# Columns of GPUs and their cells; where the width does not suffice, later ones are left out first.
ALWAYS = {"power": 7, "util": 5, "memory": 19, "temp": 7, "SM MHz": 8}
SOMETIMES = {"process": 18, "rank": 5, "ECC": 5, "NVLink": 8, "throttle": 20}
LEFT = ("memory", "process", "throttle")  # columns of text
Columns = list[tuple[str, int]]  # (name, cells)


class NodePanel(Panel):
    """Shows one node, which may be another one at any time."""

    node = ""  # its name

    def of(self, state: State) -> NodeState | None:
        return state.nodes.get(self.node)

    def sample(self, state: State) -> NodeSample | None:
        """What the node says now; None while it does not answer."""
        node = self.of(state)
        return node.sample if node is not None and node.down is None else None


def why_silent(node: NodeState, state: State) -> str:
    """Why a node gives no reading, or has given none."""
    if node.down is not None:
        return f"{node.down.phase}: {node.down.message}"
    return "no reading yet" if state.watches else "this node is not watched, only its run"


class NodeHead(NodePanel):
    """The machine in two lines: who, how long up, driver, clock; cpu, memory, load, network."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        if node is None:
            return [words((" no nodes are watched", colors.dim))]
        mark, why = node_mark(node, state)
        good = "ok" if state.watches else "not watched"
        names = list(state.nodes)
        line = words(
            (f" {node.name}", colors.strong),
            (f"  {names.index(node.name) + 1}/{len(names)}", colors.dim),
            (f"  {mark} {why}" if mark else f"  {good}", colors.mark(mark, colors.good)),
        )
        sample = self.sample(state)
        if sample is None:
            return [line, words((f" {why_silent(node, state)}", colors.warn))]
        line = with_parts(line, self._facts(sample, colors), width)
        full = colors.warn if (sample.memory or 0) > 0.92 else colors.text
        load = (
            ("cpu", units.percent(sample.cpu), colors.text),
            ("load", history.load_text(sample, 1), history.load_style(sample, colors)),
            ("mem", history.memory_text(sample), full),
            ("net", units.rate(sample.network_bytes_s), colors.text),
        )
        parts = [words((f" {name} ", colors.dim), (f"{text} ", ink)) for name, text, ink in load]
        return [line, with_parts([], parts, width)]

    def _facts(self, sample: NodeSample, colors: Palette) -> Iterator[Line]:
        if sample.up_s is not None:
            yield words(("  up ", colors.dim), (units.duration(sample.up_s), colors.text))
        offset = sample.clock_offset_s
        if offset is None:
            yield words((f"  clock {units.UNKNOWN}", colors.dim))
        else:
            is_bad = abs(offset) > CLOCK_BAD_S
            ink = colors.warn if abs(offset) > CLOCK_WARN_S else colors.text
            text = units.offset(offset)
            if sample.clock_bound_s is not None:
                text += f" ±{units.measured(sample.clock_bound_s)}"
            ink = colors.bad if is_bad else ink
            yield words(("  clock ", colors.dim), (text + " !" * is_bad, ink))
        if sample.driver:
            yield words(("  driver ", colors.dim), (sample.driver, colors.text))


class NodeGpus(NodePanel, Scrolled, can_focus=True):
    """A line for each GPU; the cursor chooses which one the chart shows."""

    WHEEL = 0
    _above = 1
    metric: Metric = METRICS[0]
    gpu = 0

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        if node is None:
            self.title("")
            return []
        sample = self.sample(state)
        gpus = sample.gpus or () if sample else ()
        model = next((gpu.name for gpu in gpus if gpu.name), "")
        title = counted(node.gpus_seen, "GPU") if node.gpus_seen else "GPUs"
        self.title(title, model.removeprefix("NVIDIA "))
        if sample is not None and sample.gpus is None:
            return [words((f" - {sample.gpu_error}", colors.warn))]
        if not node.gpus_seen and sample is None:
            return [words((f" - not known: {why_silent(node, state)}", colors.warn))]
        if not node.gpus_seen:
            return [words((" this machine has none", colors.dim))]
        columns = self._columns(node, width)
        heading = " ".join(aligned(name, name, cells) for name, cells in columns)
        rows = [self._row(node, index, columns, state, colors) for index in range(node.gpus_seen)]
        return [words((f"  GPU  {heading}", colors.dim)), *rows]

    def _columns(self, node: NodeState, width: int) -> Columns:
        """Those that this node has something for, as many as fit."""
        gpus = node.sample.gpus or () if node.sample else ()
        processes = bool(node.sample and node.sample.processes)
        known = {
            "process": processes,
            "rank": processes,
            "ECC": any(gpu.ecc_errors is not None for gpu in gpus),
            "NVLink": any(gpu.nvlinks is not None for gpu in gpus),
            "throttle": any(gpu.throttle for gpu in gpus),
        }
        room, kept = width - 6, []
        for name, cells in (ALWAYS | SOMETIMES).items():
            if known.get(name, True) and cells + 1 <= room:
                kept.append((name, cells))
                room -= cells + 1
        return kept

    def _row(
        self, node: NodeState, index: int, columns: Columns, state: State, colors: Palette
    ) -> Line:
        sample, odd, gone = node.sample, (node.name, index) in state.odd, index in missing(node)
        gpu = next((gpu for gpu in (sample and sample.gpus) or () if gpu.index == index), None)
        here = index == self.gpu
        line = words(
            ("▸" if here else " ", colors.cursor),
            (f"{index:>3} ", colors.cursor if here else colors.text),
            ("x" if gone else "!" if odd else " ", colors.bad),
        )
        if gpu is None or gone or node.down is not None:
            reason = (gpu.error if gpu else "") or ("gone" if gone else "no reading")
            return line + words((f"  {reason}", colors.bad if gone else colors.dim))
        own = [one for one in (sample and sample.processes) or () if one.gpu == index]
        for name, cells in columns:
            if name == "memory":
                cell = gauge(gpu.memory, 5, colors.ink(gpu.memory, hot=False), colors)
                cell += words((f" {history.memory_text(gpu)}", colors.label))
            else:
                text, style = self._cell(name, cells, gpu, node, own, odd, colors)
                cell = words((aligned(name, text, cells), style))
            line += [Segment(" ", colors.text), *fitted(cell, cells, colors.text)]
        room = min(120, self.content_size.width - width_of(line) - 3)
        if room >= 8:
            values = past(node, gpu_column(index, self.metric.column), 4 * room, state)
            scale = Scale(0.0, self.metric.full_scale or 1.0)
            curve = spark(binned(values, 2 * room, 2, history.ticks(state)), scale)
            line += words(("  ", colors.text), (curve, colors.spark))
        return line

    def _cell(
        self,
        name: str,
        cells: int,
        gpu: Gpu,
        node: NodeState,
        own: Sequence[Process],
        odd: bool,
        colors: Palette,
    ) -> tuple[str, Style]:
        if name == "power":
            return units.power(gpu.power_w), colors.alarm if odd else colors.strong
        if name == "util":
            return units.percent(gpu.util), colors.text
        if name == "temp" and gpu.temperature_c is not None:
            heat = level(gpu.temperature_c, METRICS[3])
            return f"{gpu.temperature_c:.0f} °C", colors.ink(heat, hot=True)
        if name == "SM MHz":
            return history.shown(gpu.sm_mhz, ",.0f"), colors.text
        if name == "ECC" and gpu.ecc_errors is not None:
            bad = gpu.ecc_errors > 0
            return f"{gpu.ecc_errors:,}" + "!" * bad, colors.bad if bad else colors.label
        if name == "NVLink" and gpu.nvlinks is not None:
            active, present = gpu.nvlinks
            bad = gpu.lacks_nvlinks((node.sample and node.sample.gpus) or ())
            return f"{active}/{present}" + "!" * bad, colors.bad if bad else colors.label
        if name == "throttle":
            ink = colors.dim if gpu.throttle is None else colors.warn
            return units.UNKNOWN if gpu.throttle is None else gpu.throttle, ink
        if name == "process" and own:
            more = f" +{len(own) - 1}" if len(own) > 1 else ""
            return f"{own[0].name[: cells - 9 - len(more)]} {own[0].pid}{more}", colors.label
        if name == "process":
            return "", colors.label
        if name == "rank":
            return next((f"{one.rank}" for one in own if one.rank is not None), ""), colors.text
        return units.UNKNOWN, colors.text

    def move(self, gpus: int, columns: int = 0) -> None:
        node = self.of(self.state) if self.state else None
        count = node.gpus_seen if node else 0
        gpu = max(0, min(count - 1, self.gpu + gpus))
        if gpu != self.gpu:
            self.gpu = gpu
            self.again()
            self.post_message(self.Moved())

    def point(self, x: int, y: int) -> bool:
        if y >= 0:
            self.move(y - self.gpu)
        return False


def aligned(column: str, text: str, cells: int) -> str:
    return f"{text:<{cells}}" if column in LEFT else f"{text:>{cells}}"


class NodeChart(NodePanel):
    """The last minutes of the GPU under the cursor, or of the CPU."""

    metric: Metric = METRICS[0]
    gpu = 0

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = self.of(state)
        if node is None:
            self.title("")
            return []
        minutes = f"last {units.duration(history.reach(node) * state.history_step_s)}"
        if not node.gpus_seen:
            self.title("cpu and memory", minutes)
            if not history.reach(node):
                return [words((f" - {why_silent(node, state)}", colors.warn))]
            lines: list[Line] = []
            tall, scale = max(1, height // 2 - 1), Scale(0.0, 1.0)
            for metric in NODE_METRICS[:2]:
                values = past(node, NODE_COLUMNS.index(metric.column), history.reach(node), state)
                lines.append(words((f" {metric.title}", colors.label)))
                lines += history.chart(state, values, (width, tall), scale, metric.say, colors)
            return lines
        values = past(node, gpu_column(self.gpu, self.metric.column), history.reach(node), state)
        full = max([self.metric.full_scale or 1.0, *finite(values)])
        now = next((value for value in reversed(values) if value == value), None)
        odd = state.odd.get((node.name, self.gpu), "")
        title = f"GPU {self.gpu} {self.metric.name} {self.metric.say(now)}"
        self.title(title + (f"  ! {odd}" if odd else ""), minutes)
        size, scale = (width, height), Scale(0.0, full)
        return history.chart(state, values, size, scale, self.metric.say, colors)
