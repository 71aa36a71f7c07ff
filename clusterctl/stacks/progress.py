"""Whether a process goes on: its stacks and its threads' CPU between the first and the last look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clusterctl.stacks.frames import Stack

TICK_S = 0.01  # SC_CLK_TCK is 100 on every Linux we know
STUCK, SPINNING, MOVING, GONE, UNSURE = "stuck", "spinning", "moving", "gone", "unsure"
STANDS = (STUCK, SPINNING)

AUTOGRAD = "pt_autograd"
"""Name of the threads in which torch computes backward passes of a device."""


def own_threads(looks: Sequence[dict[str, Any]], pid: int) -> list[str]:
    """Threads that do a rank's own work: the main one and autograd's.

    NCCL's, gloo's and watchdog threads poll while the rank hangs: their CPU says nothing.
    """
    tasks = looks[-1].get("tasks") or {} if looks else {}
    return [
        name for name in tasks if name == str(pid) or comm(looks[-1], name).startswith(AUTOGRAD)
    ]


def comm(look: dict[str, Any], name: str) -> str:
    """The kernel's name of a thread; "" where the node did not say."""
    row = (look.get("tasks") or {}).get(name) or []
    return str(row[4] or "") if len(row) > 4 else ""


def ticks(looks: Sequence[dict[str, Any]], names: Iterable[str] | None = None) -> int:
    """CPU ticks of some threads, or all, between the first and the last look."""
    return _grown(looks, names, 1)


def _grown(looks: Sequence[dict[str, Any]], names: Iterable[str] | None, column: int) -> int:
    if len(looks) < 2 or not looks[0].get("tasks") or not looks[-1].get("tasks"):
        return 0
    first, last = looks[0]["tasks"], looks[-1]["tasks"]
    counted = last if names is None else [name for name in names if name in last]
    return sum(max(0, last[n][column] - (first[n][column] if n in first else 0)) for n in counted)


def judge_progress(
    looks: Sequence[dict[str, Any]], stacks: Sequence[Stack], names: Sequence[str], seconds: float
) -> str:
    """stuck: same stack, no CPU, no switch; spinning: same functions, CPU burnt; else moving.

    `stacks` are of the thread that counts, one a look; `names` the threads that do the work. One that
    wakes once a second to look at a clock does not move, nor does one that a dump makes tick: hence
    the small allowances.
    """
    states = [look.get("state") for look in looks]
    if not states or states[-1] == "Z" or None in states:
        return GONE
    if len(looks) < 2 or seconds <= 0:
        return UNSURE
    spent, switches = ticks(looks, names), _grown(looks, names, 2)
    share = spent * TICK_S / seconds
    quiet = spent <= max(1.0, 2.0 * seconds) and switches <= max(2.0, 2.0 * seconds)
    same = len(set(stacks)) == 1 if len(stacks) > 1 else None
    if same is None:  # no stacks: the kernel alone tells
        return STUCK if quiet else SPINNING if share > 0.9 and not switches else UNSURE
    if same and quiet:
        return STUCK
    # Who burns CPU gives it up to nobody; on a crowded machine its share may be small all the same.
    burns = share >= 0.5 or (share >= 0.1 and switches <= max(2.0, 2.0 * seconds))
    if burns and len({stack.coarse for stack in stacks}) == 1:
        return SPINNING
    return MOVING
