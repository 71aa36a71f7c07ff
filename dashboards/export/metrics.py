"""All metrics of the exporter, the Grafana board and the rules, in Prometheus' base units.

What is not known has no sample: it is never 0, nor the last reading of a silent node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from dashboards.alerts.rules.base import is_down, is_up
from dashboards.model.alert_book import SEVERITIES
from dashboards.model.run_progress import Figures, figures, newest
from dashboards.model.samples import Link, NodeSample
from dashboards.model.state import RunState, State
from dashboards.model.table import missing
from dashboards.model.usage import Usage, node_totals, usage
from trainer.runlog.figures import FIGURES
from trainer.runlog.output import printable

PREFIX = "clusterctl_"
GAUGE, COUNTER = "gauge", "counter"
T = TypeVar("T")

Rows = Iterable[tuple[tuple[str, ...], float | None]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One name. `read` gives (values of the labels, value or None) out of a state."""

    name: str  # without PREFIX
    help: str
    unit: str  # Grafana's word for it
    labels: tuple[str, ...]
    read: Callable[[State], Rows]
    kind: str = GAUGE
    row: str = ""  # of the board; "" is not drawn
    panel: str = ""  # title; several metrics may share one
    query: str = "{}"  # PromQL around the metric
    legend: str = ""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


def _parts(
    parts: Callable[[NodeSample], Iterable[Any] | None],
    labels: Callable[[Any], tuple[str, ...]],
    read: Callable[[Any], float | None],
) -> Callable[[State], Rows]:
    """A figure of each part of each node that gives readings."""

    def rows(state: State) -> Rows:
        for node in state.live():
            for part in parts(node) or ():
                yield (node.node, *labels(part)), read(part)

    return rows


_nodes = partial(_parts, lambda node: (node,), lambda node: ())
_gpus = partial(_parts, lambda node: node.gpus, lambda gpu: (str(gpu.index),))
_links = partial(_parts, lambda node: node.links, lambda link: (link.name, link.kind))
_disks = partial(_parts, lambda node: node.disks, lambda disk: (disk.path,))


def _run(read: Callable[[RunState, Figures, State], float | None]) -> Callable[[State], Rows]:
    def rows(state: State) -> Rows:
        run = _run_of(state)
        return [] if run is None else [((run.name,), read(run, figures(run, state.now_s), state))]

    return rows


def _run_of(state: State) -> RunState | None:
    """None while its files cannot be read to their end: what they say is of earlier."""
    return None if state.run is None or state.run.unread else state.run


def _read(state: State) -> Rows:
    return [] if state.run is None else [((state.run.name,), float(not state.run.unread))]


def _of_steps() -> Iterator[Metric]:
    """What a step's record has (trainer/runlog/figures.py), as the newest steps know it."""
    named = {name: one for name, one in FIGURES.items() if one.metric}
    together = Counter(one.panel for one in named.values())
    for name, one in named.items():
        labels = (*R, one.part) if one.part else R
        help = one.meaning[:1].upper() + one.meaning[1:]
        drawn = {}
        if one.panel:
            more = f" {one.metric.replace('_', ' ')}" if together[one.panel] > 1 else ""
            legend = f"{{{{{one.part}}}}}" if one.part else f"{{{{run}}}}{more}"
            drawn = {"row": RUN, "panel": one.panel, "legend": legend}
        read = partial(_of_step, name)
        yield Metric(f"run_{one.metric}", help, one.unit, labels, read, **drawn)


def _of_step(name: str, state: State) -> Rows:
    if (run := _run_of(state)) is not None:
        found = newest(run, name)
        parts = found.items() if isinstance(found, Mapping) else [("", found)]
        for part, value in parts:
            yield (run.name, *([part] if part else [])), _if_known(value, float)


def _ups(state: State) -> Iterator[tuple[tuple[str, ...], float | None]]:
    if state.watches:
        there = {node.node for node in state.live()}
        yield from (((name,), float(name in there)) for name in state.nodes)


def _ages(state: State) -> Rows:
    return (((name,), node.age_s(state.now_s)) for name, node in state.nodes.items())


def _missing(state: State) -> Rows:
    answered = (node.node for node in state.live() if node.gpus is not None)
    return (((name,), float(len(missing(state.nodes[name])))) for name in answered)


def _phases(state: State) -> Rows:
    if (run := _run_of(state)) is not None:
        for name, seconds in figures(run, state.now_s).phases:
            yield (run.name, name), seconds


def _lost(state: State) -> Rows:
    if (run := _run_of(state)) is not None:
        for cause, seconds in figures(run, state.now_s).lost_s:
            yield (run.name, cause), seconds


def _alerts(state: State) -> Rows:
    for alert in state.alerts.active:
        for node, part in alert.units:
            yield (alert.id, alert.severity, node, part), 1.0


def _alert_counts(state: State) -> Rows:
    for severity in SEVERITIES:
        units = [alert.units for alert in state.alerts.active if alert.severity == severity]
        yield (severity,), float(sum(map(len, units)))


def _link_up(link: Link) -> float | None:
    return 1.0 if is_up(link) else 0.0 if is_down(link) else None


def _if_known(value: T | None, convert: Callable[[T], float]) -> float | None:
    return None if value is None else float(convert(value))


def _usage(read: Callable[[Usage], float]) -> Callable[[State], Rows]:
    """A figure of each user and job; unknown time has a metric of its own. What is not decided
    before a silent node answers is left out: a counter must not fall."""

    def rows(state: State) -> Rows:
        for one in usage(state, "job", of_silent=False):
            yield (one.user, one.job), read(one)

    return rows


def _node_energy(state: State) -> Rows:
    live = {sample.node for sample in state.live() if sample.gpus}
    for name, node in state.nodes.items():
        totals = node_totals(node, state)
        if totals.known_s or name in live:
            yield (name,), totals.energy_j


CLUSTER, GPUS, NETWORK, NODES, RUN = "Cluster", "GPUs", "Network", "Nodes", "Run"
USE, U = "Usage", ("user", "job")
N, G, L, D, R = ("node",), ("node", "gpu"), ("node", "link", "kind"), ("node", "path"), ("run",)

METRICS: tuple[Metric, ...] = (
    Metric("node_up", "Whether the node gives readings now", "short", N, _ups, row=CLUSTER, panel="Nodes that answer", query="sum({})", legend="answering"),
    Metric("alerts", "Things that are over their limit now", "short", ("severity",), _alert_counts, row=CLUSTER, panel="Alerts", legend="{{severity}}"),
    Metric("alert_active", "1 for each thing over its limit; docs/reference/alerts.md has the ids", "short", ("id", "severity", "node", "part"), _alerts, row=CLUSTER, panel="Alerts by kind", query="sum by (id) ({})", legend="{{id}}"),
    Metric("gpu_power_watts", "Power draw", "watt", G, _gpus(lambda g: g.power_w), row=CLUSTER, panel="Power of all GPUs", query="sum({})", legend="power"),
    Metric("gpu_power_limit_watts", "Enforced power limit", "watt", G, _gpus(lambda g: g.power_limit_w), row=CLUSTER, panel="Power of all GPUs", query="sum({})", legend="limit"),
    Metric("gpu_utilization_ratio", "Share of time with a kernel running", "percentunit", G, _gpus(lambda g: g.util), row=GPUS, panel="Utilisation", query="avg by (node) ({})", legend="{{node}}"),
    Metric("gpu_memory_used_bytes", "Memory in use", "bytes", G, _gpus(lambda g: g.memory_used_bytes), row=GPUS, panel="Fullest memory", query="max by (node) ({})", legend="{{node}}"),
    Metric("gpu_memory_total_bytes", "Memory", "bytes", G, _gpus(lambda g: g.memory_total_bytes), row=GPUS, panel="Fullest memory", query="min({})", legend="of the smallest GPU"),
    Metric("gpu_temperature_celsius", "Temperature", "celsius", G, _gpus(lambda g: g.temperature_c), row=GPUS, panel="Hottest GPU", query="max by (node) ({})", legend="{{node}}"),
    Metric("gpu_sm_clock_hertz", "Clock of the multiprocessors", "hertz", G, _gpus(lambda g: _if_known(g.sm_mhz, lambda mhz: 1e6 * mhz)), row=GPUS, panel="Slowest clock", query="min by (node) ({})", legend="{{node}}"),
    Metric("gpu_throttled", "Whether its clocks are held down", "short", G, _gpus(lambda g: _if_known(g.throttle, bool)), row=GPUS, panel="GPUs in trouble", query="sum({})", legend="throttled"),
    Metric("gpus_missing", "GPUs that the node had and does not show now", "short", N, _missing, row=GPUS, panel="GPUs in trouble", query="sum({})", legend="missing"),
    Metric("gpu_ecc_uncorrected_errors_total", "Uncorrected memory errors since the driver was loaded", "short", G, _gpus(lambda g: g.ecc_errors), COUNTER, row=GPUS, panel="GPUs in trouble", query="sum({})", legend="ECC errors"),
    Metric("gpu_nvlinks_active", "NVLinks that are up", "short", G, _gpus(lambda g: _if_known(g.nvlinks, itemgetter(0))), row=GPUS, panel="NVLinks", query="sum({})", legend="active"),
    Metric("gpu_nvlinks", "NVLinks that are there", "short", G, _gpus(lambda g: _if_known(g.nvlinks, itemgetter(1))), row=GPUS, panel="NVLinks", query="sum({})", legend="present"),
    Metric("usage_gpus", "GPUs that a user's job holds; the share of one that several hold", "short", U, _usage(lambda one: one.gpus), row=USE, panel="GPUs by user", query="sum by (user) ({})", legend="{{user}}"),
    Metric("usage_idle_gpus", "Of these, used for less than 5 % of the time", "short", U, _usage(lambda one: one.idle), row=USE, panel="Idle GPUs by user", query="sum by (user) ({}) > 0", legend="{{user}}"),
    Metric("usage_energy_joules_total", "Since the exporter began, of the time that is known", "joule", U, _usage(lambda one: one.totals.energy_j), COUNTER, row=USE, panel="Energy of an hour by user", query="sum by (user) (increase({}[1h]))", legend="{{user}}"),
    Metric("usage_energy_unknown_gpu_seconds_total", "GPU time up to the last reading whose energy is unknown, since the exporter began", "s", U, _usage(lambda one: one.totals.unknown_s), COUNTER),
    Metric("usage_idle_gpu_seconds_total", "GPU time that was held and idle, since the exporter began", "s", U, _usage(lambda one: one.totals.idle_s), COUNTER, row=USE, panel="Idle GPU hours of a day by job", query="sum by (user, job) (increase({}[1d])) / 3600 > 0", legend="{{user}} {{job}}"),
    Metric("node_energy_joules_total", "Of its GPUs since the exporter began, of the time that is known", "joule", N, _node_energy, COUNTER),
    *_of_steps(),
    Metric("run_loss_smoothed", "Smoothed loss", "short", R, _run(lambda run, now, state: now.smooth_loss), row=RUN, panel="Loss", legend="{{run}} smoothed"),
    Metric("run_validation_loss", "Of clips that are never trained on", "short", R, _run(lambda run, now, state: _if_known(run.validation, lambda one: one.model)), row=RUN, panel="Validation loss", legend="{{run}}"),
    Metric("run_validation_loss_ema", "The same, with the averaged weights", "short", R, _run(lambda run, now, state: _if_known(run.validation.ema if run.validation else None, float)), row=RUN, panel="Validation loss", legend="{{run}} EMA"),
    Metric("run_step_seconds", "Median of the last steps", "s", R, _run(lambda run, now, state: now.step_s), row=RUN, panel="Step time", legend="{{run}}"),
    Metric("run_phase_seconds", "Of a step, mean over ranks and the last steps", "s", ("run", "phase"), _phases, row=RUN, panel="Where a step goes", legend="{{phase}}"),
    Metric("run_clips_per_second", "Throughput", "short", R, _run(lambda run, now, state: now.clips_per_s), row=RUN, panel="Clips a second", legend="{{run}}"),
    Metric("run_tokens_per_second", "Throughput", "short", R, _run(lambda run, now, state: now.tokens_per_s), row=RUN, panel="Tokens a second", legend="{{run}}"),
    Metric("run_rank_idle_ratio", "Share of a step that ranks wait for the slowest", "percentunit", R, _run(lambda run, now, state: now.idle_share), row=RUN, panel="Ranks wait", legend="{{run}}"),
    Metric("run_last_step_age_seconds", "Since the last step was seen", "s", R, _run(lambda run, now, state: None if run.last_s is None else state.now_s - run.last_s), row=RUN, panel="Last step ago", legend="{{run}}"),
    Metric("run_remaining_seconds", "Until the last step, at the pace of the last ones", "s", R, _run(lambda run, now, state: now.eta_s), row=RUN, panel="Time left", legend="{{run}}"),
    Metric("run_active", "1 while the run trains or waits, 0 once it has ended or hangs", "short", R, _run(lambda run, now, state: float(now.status in ("running", "waiting")))),
    Metric("run_read", "Whether its files are read to their end; 0: it has no other figure now", "short", R, _read),
    Metric("run_attempt", "Number of the attempt", "short", R, _run(lambda run, now, state: now.attempt), row=RUN, panel="Attempts", legend="{{run}}"),
    Metric("run_restarts_total", "Attempts after the first one", "short", R, _run(lambda run, now, state: float(now.restarts)), COUNTER, row=RUN, panel="Attempts", query="increase({}[1h])", legend="{{run}} restarts in an hour"),
    Metric("run_spares", "Nodes left to replace others", "short", R, _run(lambda run, now, state: now.spares), row=RUN, panel="Nodes of the run", legend="{{run}} spares"),
    Metric("run_excluded_nodes", "Nodes left out in this run", "short", R, _run(lambda run, now, state: None if now.spares is None else float(len(now.excluded))), row=RUN, panel="Nodes of the run", legend="{{run}} excluded"),
    Metric("run_ettr_ratio", "Time of the steps that count, of the wall time since the first attempt began", "percentunit", R, _run(lambda run, now, state: now.ettr), row=RUN, panel="Effective training time", legend="{{run}}"),
    Metric("run_lost_seconds_total", "Repeated work and downtime, by what ended an attempt", "s", ("run", "cause"), _lost, COUNTER, row=RUN, panel="Time lost", legend="{{run}} {{cause}}"),
    Metric("link_receive_bytes_per_second", "Received on the port", "Bps", L, _links(lambda o: o.rx_bytes_s), row=NETWORK, panel="Received", query="sum by (node, kind) ({})", legend="{{node}} {{kind}}"),
    Metric("link_transmit_bytes_per_second", "Sent on the port", "Bps", L, _links(lambda o: o.tx_bytes_s), row=NETWORK, panel="Sent", query="sum by (node, kind) ({})", legend="{{node}} {{kind}}"),
    Metric("link_errors_per_minute", "New errors in the last minute", "short", L, _links(lambda o: o.errors_min), row=NETWORK, panel="Link errors a minute", query="{} > 0", legend="{{node}} {{link}}"),
    Metric("link_up", "Whether the port is up", "short", L, _links(_link_up), row=NETWORK, panel="Links that are down", query="count by (node) ({} == 0)", legend="{{node}}"),
    Metric("link_downs_total", "How often the port was lost since boot", "short", L, _links(lambda o: o.downs), COUNTER, row=NETWORK, panel="Lost links", query="increase({}[10m]) > 0", legend="{{node}} {{link}}"),
    Metric("link_rate_bytes_per_second", "What the port is trained to", "Bps", L, _links(lambda o: _if_known(o.rate_gbps, lambda gbps: 1.25e8 * gbps))),
    Metric("node_clock_offset_seconds", "Node minus this machine", "s", N, _nodes(lambda n: n.clock_offset_s), row=NODES, panel="Clock offset", legend="{{node}}"),
    Metric("node_clock_bound_seconds", "The offset may be off by this much", "s", N, _nodes(lambda n: n.clock_bound_s)),
    Metric("node_cpu_ratio", "Busy share of all cores", "percentunit", N, _nodes(lambda n: n.cpu), row=NODES, panel="CPU", legend="{{node}}"),
    Metric("node_load1", "Load of the last minute", "short", N, _nodes(lambda n: n.load1), row=NODES, panel="Load", legend="{{node}}"),
    Metric("node_memory_used_bytes", "What could not be had without swapping", "bytes", N, _nodes(lambda n: n.memory_used_bytes), row=NODES, panel="Memory", legend="{{node}}"),
    Metric("node_memory_total_bytes", "Memory", "bytes", N, _nodes(lambda n: n.memory_total_bytes), row=NODES, panel="Memory", query="min({})", legend="of the smallest node"),
    Metric("node_network_bytes_per_second", "Received and sent, without loopback", "Bps", N, _nodes(lambda n: n.network_bytes_s), row=NODES, panel="Network", legend="{{node}}"),
    Metric("disk_used_bytes", "In use", "bytes", D, _disks(lambda d: d.used_bytes), row=NODES, panel="Disks", legend="{{node}} {{path}}"),
    Metric("disk_total_bytes", "Size", "bytes", D, _disks(lambda d: d.total_bytes)),
    Metric("node_uptime_seconds", "Since boot", "s", N, _nodes(lambda n: n.up_s)),
    Metric("node_reading_age_seconds", "Since the node's last reading", "s", N, _ages, row=NODES, panel="Age of readings", legend="{{node}}"),
)  # fmt: skip


def values(metric: Metric, state: State) -> Iterator[tuple[tuple[str, ...], float]]:
    """Samples of a metric; what is not known is left out. NaN is a value: a loss may be that.

    Labels are printable and unique (the first counts): Prometheus else refuses the whole page.
    """
    seen: set[tuple[str, ...]] = set()
    for words, value in metric.read(state):
        if value is None or math.isinf(value):
            continue
        labels = tuple(map(printable, words))
        if labels not in seen:
            seen.add(labels)
            yield labels, float(value)
