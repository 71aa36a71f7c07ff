"""Slow ranks of a run as its trainer names them, with what the watch reads of their nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dashboards.model import units
from dashboards.model.samples import Link, NodeSample
from dashboards.model.state import RunState
from dashboards.model.table import short_names
from trainer.runlog.slow_ranks import SlowRank, slow_ranks
from trainer.runlog.slow_reasons import reasons


def named(run: RunState, nodes: Mapping[str, NodeSample]) -> list[tuple[SlowRank, str]]:
    """(rank, the node it is on, "" where no plan says). `nodes` are good readings of now: they add
    reasons to those that the rank has read of itself."""
    slow = slow_ranks(run.slow) if run.slow is not None else ()
    if not slow:
        return []
    ranks = frozenset(one.rank for one in slow)
    others = list(_readings(run, nodes, ranks))
    return [_with_readings(run, one, nodes, others) for one in slow]


def in_short(run: RunState) -> str:
    """The slowest one in a few words, and how many more there are; "" where none is slow."""
    slow = slow_ranks(run.slow) if run.slow is not None else ()
    if not slow:
        return ""
    one, *rest = slow
    who = "all" if one.rank is None else f"rank {one.rank}"
    place = run.place_of(one.rank) if one.rank is not None else None
    where = f" ({short_names(run.planned)[1][place[0]]}/{place[1]})" if place else ""
    return f"{who} {units.percent(one.share)} {one.phase}{f' +{len(rest)}' if rest else ''}{where}"


def _with_readings(
    run: RunState, slow: SlowRank, nodes: Mapping[str, NodeSample], others: list[dict[str, Any]]
) -> tuple[SlowRank, str]:
    place = None if slow.rank is None else run.place_of(slow.rank)
    if place is None:
        return slow, ""
    node, local = place
    own = reading(nodes[node], local) if node in nodes else {}
    known = {reason.name for reason in slow.reasons}
    more = (one for one in reasons(own, others, slow.phase) if one.name not in known)
    return replace(slow, reasons=(*slow.reasons, *more)), node


def _readings(
    run: RunState, nodes: Mapping[str, NodeSample], slow: Collection[int | None]
) -> Iterator[dict[str, Any]]:
    first = 0
    for node, count in zip(run.planned, run.ranks, strict=False):
        if node in nodes:
            for local in range(count):
                if first + local not in slow:
                    yield reading(nodes[node], local)
        first += count


def reading(node: NodeSample, local: int) -> dict[str, Any]:
    """By the names of `trainer.runlog.slow_reasons`; a local rank has the GPU of its number."""
    found: dict[str, Any] = {"host": node.node}
    gpu = next((one for one in node.gpus or () if one.index == local), None)
    if gpu is not None:
        found |= {"throttle": gpu.throttle, "sm_mhz": gpu.sm_mhz}
        found |= {"power_limit_w": gpu.power_limit_w}
        found |= {"nvlinks": gpu.nvlinks[0] if gpu.nvlinks else None}
    if node.processes is not None:
        found["gpu_processes"] = sum(one.gpu == local for one in node.processes) - 1
    ports = [link for link in node.links or () if link.kind == "ib"]
    if ports:
        found |= {"ib_errors": _errors_s(ports), "ib_gbps": sum(p.rate_gbps or 0.0 for p in ports)}
    return found


def _errors_s(ports: list[Link]) -> float | None:
    known = [port.errors_min / 60 for port in ports if port.errors_min is not None]
    return sum(known) if known else None
