"""The last minutes as areas: of the fleet, and of the GPU under the cursor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style

from checks.units import counted
from dashboards.model import table, units
from dashboards.model.ring_buffer import CHUNK, FLEET_COLUMNS, NODE_COLUMNS, Ring, gpu_column
from dashboards.model.samples import Gpu, NodeSample
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import Scale, area, binned, finite, nice_scale, spark
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, width_of, with_parts, words

Say = Callable[[float | None], str]
Size = tuple[int, int]  # (width, height)
GONE = "x gone: the node had this GPU and does not show it now"
WINDOW = 600  # rows of history that a chart reaches back, when it is wide enough
_KEPT = 8192  # chunks; five of each of 1,000 nodes are on a screen at most
assert CHUNK % 2 == 0, "a character would reach over the end of a chunk"


def chart(
    state: State, values: list[float], size: Size, scale: Scale, say: Say, colors: Palette
) -> list[Line]:
    """An area with its scale at the left; the newest of `values`, rows of history, is now."""
    width, height = size
    high, low = say(scale.high), say(scale.low) if height > 1 else ""
    gutter = max(len(high), len(low)) + 1
    inner = width - gutter
    if inner < 4 or height < 1:
        return []
    per_dot = max(1, round(min(WINDOW, len(values)) / (2 * inner)))
    dots = binned(values, 2 * inner, per_dot, ticks(state))
    ramp = [colors.chart[n * (len(colors.chart) - 1) // max(1, height - 1)] for n in range(height)]
    labels = [f"{text:>{gutter - 1}} " for text in [high, *[""] * (height - 2), low]]
    return [
        words((label, colors.dim)) + [Segment(text, ramp[level]) for text, level in row]
        for label, row in zip(labels, area(dots, inner, height, scale), strict=False)
    ]


def ticks(state: State) -> int:
    """Rows of history since 1970: bins that begin at its multiples do not move as time passes."""
    return int(state.now_s / state.history_step_s)


def reach(node: NodeState) -> int:
    """Rows of history that there are, up to what a chart shows."""
    return min(WINDOW, len(node.history))


class FleetHistory(Panel):
    metric: table.Metric = table.METRICS[0]

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        metric, power = self.metric, self.metric.key == "power"
        values = state.fleet.column(FLEET_COLUMNS.index(metric.fleet_column), WINDOW)
        values = [value * 1000 for value in values] if power else values
        samples = state.live()
        name = f"{metric.name}, {'all' if metric.of_many == 'total' else metric.of_many}"
        value = f"  {metric.say(values[-1] if values else None)}"
        nodes = f" of {counted(len(samples), 'node')}"
        fits = len(name + nodes + value) <= width - 4
        self.title(name + nodes * fits + value)
        scale = Scale(0.0, max([metric.full_scale or 1.0, *finite(values)]))
        if power or metric.full_scale is None:
            scale = nice_scale(values, from_zero=True)
        notes = self._notes(state, samples, width, colors) if height > 2 else []
        return chart(state, values, (width, height - len(notes)), scale, metric.say, colors) + notes

    def _notes(
        self, state: State, samples: Sequence[NodeSample], width: int, colors: Palette
    ) -> list[Line]:
        found = [
            (value, sample.node, gpu.index)
            for sample in samples
            for gpu in sample.gpus or ()
            if self.metric.of_gpu and (value := self.metric.read(gpu)) is not None
        ]
        if not found:
            return []
        _, short = table.short_names(state.nodes)
        parts = []
        for name, (value, node, index) in ((" low ", min(found)), ("  high ", max(found))):
            gpu = f"{short[node]}/{index} {self.metric.say(value)}"
            parts.append(words((name, colors.dim), (gpu, colors.text)))
        return [with_parts(parts[0], parts[1:], width)]


class Selected(Panel):
    """The GPU or node under the cursor: its figures, why it is odd, its last minutes."""

    metric: table.Metric = table.METRICS[0]
    cursor: tuple[str, int] | None = None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        name, index = self.cursor or ("", 0)
        node = state.nodes.get(name)
        if node is None:
            self.title("nothing selected")
            return []
        gpus = node.sample.gpus or () if node.sample else ()
        gpu = next((gpu for gpu in gpus if gpu.index == index), None)
        name += f"  GPU {index}" if node.gpus_seen else ""
        model = gpu.name.removeprefix("NVIDIA ") if gpu else ""
        self.title(f"{name}  {model}".rstrip() if len(name) + len(model) + 8 < width else name)
        head = self._figures(state, node, gpu, index, colors)[:height]
        column = NODE_COLUMNS.index("cpu")
        if node.gpus_seen:
            column = gpu_column(index, self.metric.column)
        values = table.past(node, column, reach(node), state)
        full = self.metric.full_scale or 1.0
        if self.metric.is_scaled:
            full = max([full, *finite(values)])
        size, scale = (width, height - len(head)), Scale(0.0, full)
        return head + chart(state, values, size, scale, self.metric.say, colors)

    def _figures(
        self, state: State, node: NodeState, gpu: Gpu | None, index: int, colors: Palette
    ) -> list[Line]:
        mark, why = table.node_mark(node, state)
        width = self.content_size.width
        if node.down is not None:
            phase = (f"{mark} {node.down.phase}: ", colors.warn)
            return [words(phase, (node.down.message, colors.text))]
        sample = node.sample
        if sample is None:
            return [words((f"{mark} {why}" if mark else "not watched", colors.warn))]
        lines: list[Line] = []
        odd = state.odd.get((node.name, index))
        if odd:
            lines.append(words((f" ! {odd} ", colors.alarm)))
        elif mark == "~":
            lines.append(words((f"~ last reading {why} ago", colors.warn)))
        elif sample.gpus is None:
            lines.append(words((f"- {sample.gpu_error}", colors.warn)))
        if gpu is not None:
            line = words(
                (units.power(gpu.power_w), colors.strong),
                (f" of {units.power(gpu.power_limit_w)}  ", colors.dim),
                (units.percent(gpu.util), colors.strong),
                (" util", colors.dim),
            )
            texts = (memory_text(gpu), units.degrees(gpu.temperature_c), units.mhz(gpu.sm_mhz))
            parts = [words((f"  {text}", colors.text)) for text in texts]
            lines.append(with_parts(line, parts, width))
        elif node.gpus_seen and sample.gpus is not None:
            lines.append(words((GONE, colors.bad)))
        if len(lines) < 2 or not node.gpus_seen:
            lines.append(node_line(node, width, colors))
        return lines


def shown(value: float | None, form: str, unit: str = "") -> str:
    """A number in a format with its unit, or the mark for unknown."""
    return units.UNKNOWN if value is None else f"{value:{form}}{unit}"


def memory_text(of: Gpu | NodeSample) -> str:
    return units.part(of.memory_used_bytes, of.memory_total_bytes)


def load_text(sample: NodeSample, digits: int) -> str:
    return f"{shown(sample.load1, f'.{digits}f')}/{sample.cpus or units.UNKNOWN}"


def load_style(sample: NodeSample, colors: Palette) -> Style:
    return colors.warn if (sample.load_per_core or 0.0) > 1.5 else colors.text


def node_line(node: NodeState, width: int, colors: Palette) -> Line:
    """A node's CPU, memory, load and network in words."""
    sample = node.sample
    if sample is None:
        return words(("no reading yet", colors.dim))
    cpu = words(("cpu ", colors.dim), (f"{units.percent(sample.cpu):>4}", colors.text))
    memory = words(("  mem ", colors.dim), (units.percent(sample.memory), colors.text))
    gibibytes = words(("  mem ", colors.dim), (memory_text(sample), colors.text))
    load = words(("  load ", colors.dim), (load_text(sample, 2), load_style(sample, colors)))
    network = words(("  net ", colors.dim), (units.rate(sample.network_bytes_s), colors.text))
    # The fullest form that fits.
    full = cpu + load + gibibytes
    forms = (full + network, full, cpu + load + memory, cpu + memory)
    return next((line for line in forms if width_of(line) <= width), cpu)


def node_spark(node: NodeState, metric: table.Metric, width: int, state: State) -> str:
    """The metric up to now in `width` characters of two readings; blank where nothing came.

    History is in chunks that never change, so the text of a chunk is cached. The curve moves by
    whole characters, without flicker.
    """
    column, ring = table.node_column(node, metric), node.history
    high = metric.full_scale or 1.0
    newest = Ring(ring.width, CHUNK, ring.code, tail=ring.tail).column(column)
    newest += [math.nan] * min(2 * width, table.silent_rows(node, state))
    text = spark(newest, Scale(0.0, high))
    for chunk in reversed(ring.chunks):
        if len(text) >= width:
            break
        text = _chunk_spark(chunk, ring.width, ring.code, column, high) + text
    return text[len(text) - width :] if len(text) > width else text.rjust(width)


@functools.lru_cache(_KEPT)
def _chunk_spark(chunk: bytes, width: int, code: str, column: int, high: float) -> str:
    return spark(Ring(width, CHUNK, code, tail=chunk).column(column), Scale(0.0, high))
