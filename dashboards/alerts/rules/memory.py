"""What rules must know of earlier looks, one look further. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.alerts.book import Kept, Unit
from dashboards.alerts.rules.base import Look
from dashboards.alerts.rules.gpus import newly_busy, newly_free
from dashboards.alerts.rules.nodes import is_up

# So far apart that 20 minutes of every file system of 1,000 nodes are some ten thousand numbers.
DISK_EVERY_S = 60.0


def keep(look: Look) -> Kept:
    """What the next looks must know of this one; the same object when nothing has changed."""
    kept = look.kept
    links: dict[Unit, int] = {}
    ups: set[Unit] = set()
    busy, free = newly_busy(look), newly_free(look)
    disks: dict[Unit, tuple[tuple[float, float], ...]] = {}
    for name, node in look.live.items():
        for link in node.links or ():
            unit = (name, link.name)
            if link.downs is not None and kept.links.get(unit) != link.downs:
                links[unit] = link.downs
            if unit not in kept.were_up and is_up(link):
                ups.add(unit)
        for one in node.disks or ():
            if one.used_bytes is None:
                continue
            past = kept.disks.get((name, one.path), ())
            if not past or look.now_s - past[-1][0] >= DISK_EVERY_S:
                disks[name, one.path] = _longer(
                    past, (look.now_s, one.used_bytes), look.limits.disk_looks_s
                )
    were_busy = (kept.were_busy | busy) - free if busy or free else kept.were_busy
    if not (links or ups or disks) and were_busy is kept.were_busy:
        return kept
    return Kept(
        links={**kept.links, **links} if links else kept.links,
        were_up=kept.were_up | ups if ups else kept.were_up,
        were_busy=were_busy,
        disks={**kept.disks, **disks} if disks else kept.disks,
    )


def _longer(
    past: Sequence[tuple[float, float]], now: tuple[float, float], window_s: float
) -> tuple[tuple[float, float], ...]:
    # Someone has cleaned up: the pace before that says nothing about the time to come.
    recent = [] if past and now[1] < 0.98 * past[-1][1] else past
    return (*(look for look in recent if now[0] - look[0] <= window_s), now)
