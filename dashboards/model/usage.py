"""Who uses the GPUs: by user, by job and by node, with energy and idle time since the watch began.

Energy is what the card's own counter grew by, else power times the time between two readings, at
the mean of both. Where neither is known, as without a counter when two readings are further apart
than `longest_gap_s`, it is unknown: its GPU time is counted as such and never filled in. Holders of
one GPU share it equally. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dashboards.model.samples import NodeSample
from dashboards.model.state import NodeState, State
from dashboards.model.usage_totals import (
    FREE,
    IDLE_UTIL,
    OTHERS,
    UNKNOWN_OWNER,
    Owner,
    Totals,
    holders_of,
    longest_gap_s,
    owners,
)

WAYS = ("job", "user", "node")
NOBODY, NOT_KNOWN = "-", "?"


@dataclass(slots=True)
class Usage:
    """One row: what a user, a job or a node holds now, and what it had since the watch began."""

    user: str  # "-": nobody holds these GPUs; "?": who does could not be found out
    job: str = ""  # the launcher's tag, else the name of the process; "" of a user or node
    node: str = ""
    nodes: set[str] = field(default_factory=set)
    gpus: float = 0.0  # a GPU that two hold is half of each
    idle: float = 0.0
    util: float | None = None  # mean
    memory_bytes: float | None = None
    power_w: float | None = None
    totals: Totals = field(default_factory=Totals)
    _utils: list[float] = field(default_factory=list)

    @property
    def energy_kwh(self) -> float | None:
        return self.totals.energy_kwh


def usage(state: State, way: str = "job", *, of_silent: bool = True) -> list[Usage]:
    """Rows by `way`, the most GPUs first, then the most energy.

    `of_silent`: with the time of nodes that are silent now, as unknown. A reading that ends the
    silence may tell its energy, and who had it.
    """
    rows: dict[tuple[str, str, str], Usage] = {}
    for node in state.nodes.values():
        owned = _totals(node, state) if of_silent else node.usage.totals
        for owner, totals in owned.items():
            row = _row(rows, owner, node.name, way)
            row.totals = row.totals.plus(totals)
    for sample in state.live():
        _add_sample(rows, sample, way)
    for row in rows.values():
        row.util = sum(row._utils) / len(row._utils) if row._utils else None
    order = {name: at for at, name in enumerate(state.nodes)}

    def key(row: Usage) -> tuple[object, ...]:
        if way == "node":
            return (order.get(row.node, 0),)
        is_free = row.user in (NOBODY, NOT_KNOWN)
        return (is_free, -row.gpus, -row.totals.energy_j, row.user, row.job)

    return sorted(rows.values(), key=key)


def gpu_count(value: float) -> str:
    """192; 0.5 where two hold one GPU."""
    return f"{value:.0f}" if abs(value - round(value)) < 0.01 else f"{value:.1f}"


def node_totals(node: NodeState, state: State) -> Totals:
    """Of all GPUs of a node, held or not."""
    found = Totals()
    for totals in _totals(node, state).values():
        found = found.plus(totals)
    return found


def _totals(node: NodeState, state: State) -> Mapping[Owner, Totals]:
    """Those of a node, with the time of its silence up to now: what its GPUs draw is unknown."""
    silent_s = 0.0 if node.sample is None else state.now_s - node.sample.at_s
    if node.sample is None or silent_s <= longest_gap_s(state.interval_s):
        return node.usage.totals
    totals, holders = dict(node.usage.totals), owners(node.sample.processes)
    for gpu in node.sample.gpus or ():
        those = holders_of(holders, gpu.index)
        for owner in those:
            more = Totals(unknown_s=silent_s / len(those))
            totals[owner] = totals.get(owner, Totals()).plus(more)
    return totals


def _row(rows: dict[tuple[str, str, str], Usage], owner: Owner, node: str, way: str) -> Usage:
    user, job = _words(owner)
    key = ("", "", node) if way == "node" else (user, job if way == "job" else "", "")
    if key not in rows:
        rows[key] = Usage(NOBODY if way == "node" else user, *key[1:])
    return rows[key]


def _words(owner: Owner) -> Owner:
    special = {FREE: (NOBODY, ""), UNKNOWN_OWNER: (NOT_KNOWN, ""), OTHERS: (NOT_KNOWN, "others")}
    return special.get(owner, owner)


def _add_sample(rows: dict[tuple[str, str, str], Usage], sample: NodeSample, way: str) -> None:
    holders = owners(sample.processes)
    for gpu in sample.gpus or ():
        if gpu.error:
            continue
        those = holders_of(holders, gpu.index)
        share = 1.0 / len(those)
        for owner in those:
            row = _row(rows, owner, sample.node, way)
            row.nodes.add(sample.node)
            row.gpus += share
            if gpu.util is not None:
                row._utils.append(gpu.util)
                is_idle = gpu.util < IDLE_UTIL and owner not in (FREE, UNKNOWN_OWNER)
                row.idle += share if is_idle else 0.0
            row.memory_bytes = _sum(row.memory_bytes, gpu.memory_used_bytes, share)
            row.power_w = _sum(row.power_w, gpu.power_w, share)


def _sum(so_far: float | None, more: float | None, share: float) -> float | None:
    return so_far if more is None else (so_far or 0.0) + share * more
