"""The fleet as rows and cells: metrics, marks, order and filter. Pure."""

from __future__ import annotations

import functools
import math
import os.path
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from dashboards.model import units
from dashboards.model.ring_buffer import NODE_COLUMNS
from dashboards.model.samples import Gpu, NodeSample
from dashboards.model.state import NodeState, State
from dashboards.model.thresholds import DEFAULT

ALARM, STALE, UNKNOWN, MISSING = "!", "~", "-", "x"  # beside each colour


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a GPU or node: how to read it and how to say it."""

    key: str
    title: str
    of_gpu: bool
    read: Callable[[Any], float | None]  # of a Gpu, or of a NodeSample
    column: str  # in GPU_COLUMNS or NODE_COLUMNS
    fleet_column: str  # in FLEET_COLUMNS
    say: Callable[[float | None], str]  # in full, with unit
    short: Callable[[float], str]  # at most three characters
    full_scale: float | None  # value of a full bar; None: of the largest seen
    of_many: str = "mean"  # a node's or the fleet's one number, see FOLDS

    @property
    def is_scaled(self) -> bool:
        """Whether `short` and the title are in tens or hundreds of the unit."""
        return " x1" in self.title

    @property
    def whole_title(self) -> str:
        """The title where cells have room for all digits."""
        return " ".join(word for word in self.title.split() if not word.startswith("x1"))

    @property
    def name(self) -> str:
        """The title without the unit."""
        return self.whole_title.rpartition(" ")[0] if self.of_gpu else self.title


FOLDS: dict[str, Callable[[list[float]], float]] = {
    "total": sum, "highest": max, "lowest": min, "mean": statistics.fmean
}  # fmt: skip


def _percent_number(value: float) -> str:
    return f"{100 * value:.0f}"


_whole = "{:.0f}".format
METRICS = (
    Metric("power", "power x10 W", True, attrgetter("power_w"), "power", "power_kw", units.power, lambda v: f"{v / 10:.0f}", 700.0, "total"),
    Metric("util", "utilisation %", True, attrgetter("util"), "util", "util", units.percent, _percent_number, 1.0),
    Metric("memory", "GPU memory %", True, attrgetter("memory"), "memory", "gpu_memory", units.percent, _percent_number, 1.0),
    Metric("temperature", "temperature C", True, attrgetter("temperature_c"), "temperature", "temperature", units.degrees, _whole, 90.0, "highest"),
    # A slow one delays all others. Full is what H100 and H200 reach; others differ all the same.
    Metric("clock", "SM clock x100 MHz", True, attrgetter("sm_mhz"), "clock", "clock", units.mhz, lambda v: f"{v / 100:.0f}", 1980.0, "lowest"),
)  # fmt: skip
NODE_METRICS = (
    Metric("cpu", "cpu", False, attrgetter("cpu"), "cpu", "cpu", units.percent, _percent_number, 1.0),
    Metric("memory", "memory", False, attrgetter("memory"), "memory", "memory", units.percent, _percent_number, 1.0),
    Metric("load", "load per core", False, attrgetter("load_per_core"), "load", "load", units.two_digits, _whole, None),
    Metric("network", "network", False, attrgetter("network_mb_s"), "network_mb_s", "network_mb_s", lambda v: units.rate(v and v * 1e6), _whole, None, "total"),
)  # fmt: skip


class Cell(NamedTuple):
    """One GPU in the grid. `value` is None where there is a mark instead of a number."""

    value: float | None
    level: float | None  # 0 to 1, for colour
    mark: str = ""


def level(value: float | None, metric: Metric, gpu: Gpu | None = None) -> float | None:
    """The value as 0 to 1 for colour; power relates to the GPU's own limit when that is known."""
    if value is None:
        return None
    scale = metric.full_scale or 1.0
    if metric.key == "power" and gpu and gpu.power_limit_w:
        scale = gpu.power_limit_w
    if metric.key == "temperature":
        value, scale = value - 25.0, scale - 25.0  # cold metal is the zero
    return max(0.0, min(1.0, value / scale))


def cells(node: NodeState, metric: Metric, state: State) -> list[Cell]:
    """One cell for each GPU that the node ever showed."""
    if node.sample is None or node.down is not None or node.sample.gpus is None:
        return [Cell(None, None, UNKNOWN)] * node.gpus_seen
    stale = node.sample.at_s < state.oldest_s
    by_index = {gpu.index: gpu for gpu in node.sample.gpus}

    def cell(index: int) -> Cell:
        gpu = by_index.get(index)
        if gpu is None or gpu.error:
            return Cell(None, None, MISSING)
        value = metric.read(gpu)
        if value is None:
            return Cell(None, None, UNKNOWN)
        mark = STALE if stale else ALARM if (node.name, index) in state.odd else ""
        return Cell(value, level(value, metric, gpu), mark)

    return list(map(cell, range(node.gpus_seen)))


def node_mark(node: NodeState, state: State) -> tuple[str, str]:
    """(mark, few words) of a node; ("", "") when there is nothing to say."""
    if node.down is not None:
        return UNKNOWN, node.down.phase
    sample = node.sample
    if sample is None:
        return (UNKNOWN, "waiting") if state.watches else ("", "")
    if sample.at_s < state.oldest_s:
        return STALE, units.duration(state.now_s - sample.at_s)
    if sample.gpus is None:
        return UNKNOWN, "GPUs ?"
    if gone := missing(node):
        return MISSING, f"GPU {','.join(map(str, gone))} gone"
    odd = [index for name, index in state.odd if name == node.name] if state.odd else ()
    return (ALARM, f"GPU {','.join(map(str, odd))}") if odd else ("", "")


def missing(node: NodeState) -> list[int]:
    """GPUs that the node had and does not show now; nothing is said of a silent node."""
    if node.sample is None or node.sample.gpus is None or node.down is not None:
        return []
    gpus = node.sample.gpus
    if len(gpus) == node.gpus_seen and not any(gpu.error for gpu in gpus):
        return []  # as nearly always: a thousand nodes are asked several times a second
    there = {gpu.index for gpu in gpus if not gpu.error}
    return [index for index in range(node.gpus_seen) if index not in there]


def past(node: NodeState, column: int, rows: int, state: State) -> list[float]:
    """The newest `rows` of one column up to now, oldest first; NaN where and since nothing came."""
    silent = min(rows, silent_rows(node, state))
    known = node.history.column(column, rows - silent) if rows > silent else []
    return [math.nan] * (rows - silent - len(known)) + known + [math.nan] * silent


def silent_rows(node: NodeState, state: State) -> int:
    """Rows of history that would have come by now."""
    if node.history_s is None:
        return 0
    # One interval is the usual distance between a reading and now, not a silence.
    return max(0, int((state.now_s - node.history_s) / state.history_step_s - 1))


def node_column(node: NodeState, metric: Metric) -> int:
    """Of the node's one number in its history: the mean over its GPUs, cpu where it has none."""
    if not metric.of_gpu:
        return NODE_COLUMNS.index(metric.column)
    return NODE_COLUMNS.index("gpu_" + metric.column if node.gpus_seen else "cpu")


# Of a normal spread 1 of 16,000 lies further out; the floor keeps a calm fleet from being all odd.
RANGE_SIGMAS, RANGE_FLOOR = 4.0, 0.04


def usual_range(state: State, metric: Metric) -> tuple[float, float] | None:
    """Where nearly all GPUs (nodes) lie: median and its absolute deviation. None for too few."""
    samples = state.live()
    gpus = (gpu for sample in samples for gpu in sample.gpus or ())
    found = map(metric.read, gpus if metric.of_gpu else samples)
    values = [value for value in found if value is not None]
    if len(values) < DEFAULT.idle_peers:
        return None
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    reach = max(RANGE_SIGMAS * spread, RANGE_FLOOR * (metric.full_scale or abs(middle)))
    return middle - reach, middle + reach


def node_value(sample: NodeSample, metric: Metric) -> float | None:
    """A node's one number: total power, mean share, highest temperature."""
    if not metric.of_gpu:
        return metric.read(sample)
    return folded(metric.of_many, map(metric.read, sample.gpus or ()))


def folded(of_many: str, readings: Iterable[float | None]) -> float | None:
    """One of FOLDS of what is known; None where nothing is."""
    values = [value for value in readings if value is not None]
    return FOLDS[of_many](values) if values else None


def fleet_row(state: State) -> list[float | None]:
    """One row of the fleet's history, in the order of FLEET_COLUMNS."""
    samples = state.live()
    gpus = [gpu for sample in samples for gpu in sample.gpus or ()]
    power, *row = (folded(metric.of_many, map(metric.read, gpus)) for metric in METRICS)
    row += (folded(metric.of_many, map(metric.read, samples)) for metric in NODE_METRICS)
    return [None if power is None else power / 1000, *row]


ORDERS = ("hostfile", "value", "state", "outliers")


def arranged(state: State, metric: Metric, order: str, wanted: str) -> list[NodeState]:
    """Nodes that match the filter, in the hostfile's order, by value (highest first) or state."""

    def value_of(node: NodeState) -> float:
        value = None if node.sample is None or node.down else node_value(node.sample, metric)
        return -math.inf if value is None else value

    terms = [term for term in map(str.strip, wanted.split(",")) if term]
    nodes = [node for node in state.nodes.values() if not terms or _matches(node, state, terms)]
    if order == "value":
        nodes.sort(key=value_of, reverse=True)
    elif order == "state":
        rank = (MISSING, ALARM, UNKNOWN, STALE, "")
        nodes.sort(key=lambda node: rank.index(node_mark(node, state)[0]))
    elif order == "outliers":
        usual = usual_range(state, metric)
        nodes.sort(key=lambda node: _distance(node, metric, usual), reverse=True)
    return nodes


def _distance(node: NodeState, metric: Metric, usual: tuple[float, float] | None) -> float:
    """How far its oddest GPU stands from the fleet's middle."""
    if usual is None or node.sample is None or node.down is not None:
        return -1.0
    middle = sum(usual) / 2
    parts = (node.sample.gpus or ()) if metric.of_gpu else (node.sample,)
    values = (value for value in map(metric.read, parts) if value is not None)
    return max((abs(value - middle) for value in values), default=-1.0)


def _matches(node: NodeState, state: State, terms: Iterable[str]) -> bool:
    """Any term: part of the name, or a mark."""
    mark, name = node_mark(node, state)[0], node.name.lower()
    marks = (ALARM, STALE, UNKNOWN, MISSING)
    return any(term == mark if term in marks else term.lower() in name for term in terms)


SHORT_NAME = 8  # characters; names up to here are shown whole


def short_names(names: Iterable[str]) -> tuple[str, Mapping[str, str]]:
    """(what all names begin with, name -> the rest): ml-64-node-001 becomes 001.

    Cuts only before a number or after a separator, and leaves something of every name.
    """
    return _shortened(tuple(names))


@functools.lru_cache(4)  # several widgets ask at every tick
def _shortened(names: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
    if len(names) < 2 or max(map(len, names)) <= SHORT_NAME:
        return "", {name: name for name in names}
    low = min(names)
    size = len(os.path.commonprefix(names))  # noqa: RUF071 - names, not paths
    # Back to the beginning of a number: node-00[1-9] is cut before 00, not inside of it.
    while size and low[size - 1].isdigit():
        size -= 1
    while size and low[size - 1].isalnum() and not low[size : size + 1].isdigit():
        size -= 1
    if size < 3:
        size = 0
    return low[:size], {name: name[size:] for name in names}


@dataclass(frozen=True, slots=True)
class Summary:
    """The line above the grid."""

    nodes: int
    answering: int
    marks: Mapping[str, int]  # nodes by mark, those that have one
    gpus: int
    gpus_seen: int
    odd: int


def summarise(state: State) -> Summary:
    marks: Counter[str] = Counter()
    gpus = seen = 0
    for node in state.nodes.values():
        mark = node_mark(node, state)[0]
        marks[mark] += 1
        seen += node.gpus_seen
        if node.sample is not None and node.down is None:
            # A node that has another mark, or none, has all of them.
            gpus += node.gpus_seen - (len(missing(node)) if mark in (MISSING, STALE) else 0)
    del marks[""]
    return Summary(len(state.nodes), len(state.live()), marks, gpus, seen, len(state.odd))
