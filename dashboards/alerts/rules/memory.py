"""What rules must know of earlier ticks, updated once a tick. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.alerts.rules.base import RuleContext
from dashboards.alerts.rules.nodes import is_up
from dashboards.model.alert_book import RuleMemory, Unit

# 20 minutes of every file system of 1,000 nodes are some ten thousand numbers.
DISK_EVERY_S = 60.0


def keep(context: RuleContext) -> RuleMemory:
    """The memory for the next tick; the same object when nothing has changed."""
    earlier = context.memory
    links: dict[Unit, int] = {}
    ups: set[Unit] = set()
    disks: dict[Unit, tuple[tuple[float, float], ...]] = {}
    for name, node in context.live.items():
        for link in node.links or ():
            unit = (name, link.name)
            if link.downs is not None and earlier.links.get(unit) != link.downs:
                links[unit] = link.downs
            if unit not in earlier.were_up and is_up(link):
                ups.add(unit)
        for one in node.disks or ():
            if one.used_bytes is None:
                continue
            past = earlier.disks.get((name, one.path), ())
            if not past or context.now_s - past[-1][0] >= DISK_EVERY_S:
                new = (context.now_s, one.used_bytes)
                disks[name, one.path] = _longer(past, new, context.limits.disk_looks_s)
    were_busy = _busy(context)
    if not (links or ups or disks) and were_busy is earlier.were_busy:
        return earlier
    return RuleMemory(
        links={**earlier.links, **links} if links else earlier.links,
        were_up=earlier.were_up | ups if ups else earlier.were_up,
        were_busy=were_busy,
        disks={**earlier.disks, **disks} if disks else earlier.disks,
    )


def _busy(context: RuleContext) -> frozenset[Unit]:
    """GPUs that computed with the others and are still in use; the same object if unchanged."""
    known, limits = context.memory.were_busy, context.limits
    part, middle = context.in_use
    limit_w, least = limits.idle_share * middle, limits.used_bytes
    busy = {unit for unit, _, power in part if power >= limit_w and unit not in known}
    free = {
        unit
        for unit, gpu in context.gpus
        if gpu.memory_used_bytes is not None and gpu.memory_used_bytes <= least and unit in known
    }
    return (known | busy) - free if busy or free else known


def _longer(
    past: Sequence[tuple[float, float]], now: tuple[float, float], window_s: float
) -> tuple[tuple[float, float], ...]:
    # After files were deleted the pace before that does not count.
    recent = [] if past and now[1] < 0.98 * past[-1][1] else past
    return (*(one for one in recent if now[0] - one[0] <= window_s), now)
