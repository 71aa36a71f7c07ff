"""The last minutes as areas: of the fleet, and of what the cursor stands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment

from dashboards.model import units
from dashboards.model.fleet import (
    METRICS,
    NODE_METRICS,
    Metric,
    fresh,
    load_per_core,
    node_mark,
    past,
    short_names,
)
from dashboards.model.history_columns import FLEET_COLUMNS, NODE_COLUMNS, gpu_column
from dashboards.model.samples import Gpu
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import Scale, area, binned, finite, nice_scale
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, fitted, width_of, words

WINDOW = 600  # rows of history that a chart reaches back, when it is wide enough


def chart(
    state: State,
    values: Sequence[float],
    width: int,
    height: int,
    scale: Scale,
    say: Callable[[float | None], str],
    colors: Palette,
) -> list[Line]:
    """An area with its scale at the left; the newest of `values`, rows of history, is now."""
    labels = [say(scale.high), say(scale.low)] if height > 1 else [say(scale.high)]
    gutter = max(map(len, labels)) + 1
    inner = width - gutter
    if inner < 4 or height < 1:
        return []
    per_dot = max(1, round(min(WINDOW, len(values)) / (2 * inner)))
    dots = binned(values, 2 * inner, per_dot, ticks(state))
    lines: list[Line] = []
    for y, row in enumerate(area(dots, inner, height, scale)):
        label = labels[0] if y == 0 else labels[1] if y == height - 1 and len(labels) > 1 else ""
        line = words((f"{label:>{gutter - 1}} ", colors.dim))
        for text, level in row:
            at = level * (len(colors.chart) - 1) // max(1, height - 1)
            line.append(Segment(text, colors.chart[at]))
        lines.append(line)
    return lines


def ticks(state: State) -> int:
    """Rows of history since ever: bins that begin at its multiples do not move as time passes."""
    return int(state.now_s / state.history_step_s)


def reach(node: NodeState) -> int:
    """Rows of history that there are, up to what a chart shows."""
    return min(WINDOW, len(node.history))


class FleetHistory(Panel):
    """The whole fleet's metric over the last minutes, and who stands out."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.metric: Metric = METRICS[0]

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        metric = self.metric
        values = state.fleet.column(FLEET_COLUMNS.index(metric.fleet_column), WINDOW)
        now = values[-1] if values else None
        if metric.key == "power":
            values = [value * 1000 for value in values]
            now = values[-1] if values else None
        samples = fresh(state.nodes.values(), state)
        what = "all" if metric.of_many == "total" else metric.of_many
        name, value = f"{metric.name}, {what}", f"  {metric.say(now)}"
        nodes = f" of {len(samples)} nodes"
        fits = len(name + nodes + value) <= width - 4
        self.title(name + (nodes if fits else "") + value)
        scale = Scale(0.0, max([metric.full_scale or 1.0, *finite(values)]))
        if metric.key == "power" or metric.full_scale is None:
            scale = nice_scale(values, from_zero=True)
        notes = self._notes(state, width, colors) if height > 2 else []
        body = chart(state, values, width, height - len(notes), scale, metric.say, colors)
        return body + notes

    def _notes(self, state: State, width: int, colors: Palette) -> list[Line]:
        """Lowest and highest GPU, by name."""
        if not self.metric.of_gpu:
            return []
        _, short = short_names(state.nodes)
        found = [
            (value, sample.node, gpu.index)
            for sample in fresh(state.nodes.values(), state)
            for gpu in sample.gpus or ()
            if (value := self.metric.read(gpu)) is not None
        ]
        if not found:
            return []
        low, high = (
            f"{short[node]}/{index} {self.metric.say(value)}"
            for value, node, index in (min(found), max(found))
        )
        line = words(
            (" low ", colors.dim), (low, colors.text), ("  high ", colors.dim), (high, colors.text)
        )
        if width_of(line) > width:
            del line[2:]
        return [fitted(line, width, colors.text)]


class Selected(Panel):
    """What the cursor stands on: its figures, why it is odd, its last minutes."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.metric: Metric = METRICS[0]
        self.cursor: tuple[str, int] | None = None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        node = state.nodes.get(self.cursor[0]) if self.cursor else None
        if node is None or self.cursor is None:
            self.title("nothing selected")
            return []
        index = self.cursor[1]
        gpu = (
            next((g for g in (node.sample.gpus or ()) if g.index == index), None)
            if node.sample
            else None
        )
        name = f"{node.name}  GPU {index}" if node.gpus_seen else node.name
        model = gpu.name.removeprefix("NVIDIA ") if gpu else ""
        self.title(f"{name}  {model}".rstrip() if len(name) + len(model) + 8 < width else name)
        head = self._figures(state, node, gpu, index, width, colors)[: max(1, height)]
        left = height - len(head)
        if left < 1:
            return head
        rows = reach(node)
        if node.gpus_seen:
            values = past(node, gpu_column(index, self.metric.column), rows, state)
        else:
            values = past(node, NODE_COLUMNS.index("cpu"), rows, state)
        full = self.metric.full_scale or 1.0
        if self.metric.is_scaled:
            full = max([full, *finite(values)])
        return head + chart(state, values, width, left, Scale(0.0, full), self.metric.say, colors)

    def _figures(
        self,
        state: State,
        node: NodeState,
        gpu: Gpu | None,
        index: int,
        width: int,
        colors: Palette,
    ) -> list[Line]:
        mark, why = node_mark(node, state)
        if node.down is not None:
            return [
                words(
                    (f"{mark} {node.down.phase}: ", colors.warn), (node.down.message, colors.text)
                )
            ]
        sample = node.sample
        if sample is None:
            return [words((f"{mark} {why}", colors.warn))]
        lines: list[Line] = []
        odd = state.odd.get((node.name, index))
        if odd:
            lines.append(words((f" ! {odd} ", colors.alarm)))
        elif mark == "~":
            lines.append(words((f"~ last reading {why} ago", colors.warn)))
        elif sample.gpus is None:
            lines.append(words((f"- {sample.gpu_error}", colors.warn)))
        if gpu is not None:
            used = f"{units.gib(gpu.memory_used_bytes)}/{units.gib(gpu.memory_total_bytes)} GiB"
            temperature = (
                units.UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
            )
            clock = units.UNKNOWN if gpu.sm_mhz is None else f"{gpu.sm_mhz:,.0f} MHz"
            line = words(
                (units.power(gpu.power_w), colors.strong),
                (f" of {units.power(gpu.power_limit_w)}  ", colors.dim),
                (units.percent(gpu.util), colors.strong),
                (" util", colors.dim),
            )
            for text in (used, temperature, clock):
                if width_of(line) + len(text) + 2 <= width:
                    line += words((f"  {text}", colors.text))
            lines.append(line)
        elif node.gpus_seen and sample.gpus is not None:
            lines.append(
                words(("x gone: the node had this GPU and does not show it now", colors.bad))
            )
        if len(lines) < 2 or not node.gpus_seen:
            lines.append(node_line(node, width, colors))
        return lines


def node_line(node: NodeState, width: int, colors: Palette) -> Line:
    """A node's CPU, memory, load and network in words."""
    sample = node.sample
    if sample is None:
        return words(("no reading yet", colors.dim))
    per_core = load_per_core(sample)
    used = f"{units.gib(sample.memory_used_bytes)}/{units.gib(sample.memory_total_bytes)} GiB"
    busy = colors.warn if per_core is not None and per_core > 1.5 else colors.text
    load = units.UNKNOWN if sample.load1 is None else f"{sample.load1:.2f}"
    cpu = words(("cpu ", colors.dim), (f"{units.percent(sample.cpu):>4}", colors.text))
    memory = words(("  mem ", colors.dim), (units.percent(sample.memory), colors.text))
    gibibytes = words(("  mem ", colors.dim), (used, colors.text))
    loads = words(("  load ", colors.dim), (f"{load}/{sample.cpus or units.UNKNOWN}", busy))
    network = words(("  net ", colors.dim), (units.rate(sample.network_bytes_s), colors.text))
    # The fullest form that fits.
    for line in (
        cpu + loads + gibibytes + network,
        cpu + loads + gibibytes,
        cpu + loads + memory,
        cpu + memory,
    ):
        if width_of(line) <= width:
            return line
    return cpu


def metrics_of(state: State) -> tuple[Metric, ...]:
    """What `p` goes through: GPU metrics where there are GPUs."""
    return METRICS if state.has_gpus else NODE_METRICS
