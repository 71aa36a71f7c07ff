"""Whether a process moves: its stacks and its threads' CPU from the first to the last sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from clusterctl.stacks.frames import Stack

TICK_S = 0.01  # SC_CLK_TCK is 100 on every Linux we know


class Progress(str, Enum):
    """What a process did between the samples."""

    STUCK = "stuck"
    SPINNING = "spinning"  # uses CPU in the same functions
    MOVING = "moving"
    GONE = "gone"
    UNSURE = "unsure"

    __str__ = str.__str__


STANDS = (Progress.STUCK, Progress.SPINNING)

AUTOGRAD = "pt_autograd"
"""Name of the threads in which torch computes backward passes of a device."""


def comm(look: dict[str, Any], name: str) -> str:
    """The kernel's name of a thread; "" where the node did not report it."""
    row = (look.get("tasks") or {}).get(name) or []
    return str(row[4] or "") if len(row) > 4 else ""


def grown(looks: Sequence[dict[str, Any]], names: Iterable[str] | None, column: int) -> int:
    """CPU ticks (column 1) or switches (2) of threads, or all, from the first look to the last."""
    if len(looks) < 2 or not looks[0].get("tasks") or not looks[-1].get("tasks"):
        return 0
    first, last = looks[0]["tasks"], looks[-1]["tasks"]
    counted = last if names is None else [name for name in names if name in last]
    return sum(max(0, last[n][column] - (first[n][column] if n in first else 0)) for n in counted)


def judge_progress(
    looks: Sequence[dict[str, Any]], stacks: Sequence[Stack], pid: int, seconds: float
) -> Progress:
    """stuck: same stack, no CPU, no switch; spinning: same functions, CPU used; else moving.

    `stacks` are of the main thread, one a sample. A thread that wakes once a second to read a
    clock, or that a dump wakes, does not move: hence the small allowances.
    """
    states = [look.get("state") for look in looks]
    if not states or states[-1] == "Z" or None in states:
        return Progress.GONE
    if len(looks) < 2 or seconds <= 0:
        return Progress.UNSURE
    # The main thread and autograd's. NCCL's, gloo's and watchdog threads poll while the rank hangs.
    tasks = looks[-1].get("tasks") or {}
    names = [n for n in tasks if n == str(pid) or comm(looks[-1], n).startswith(AUTOGRAD)]
    spent, switches = grown(looks, names, 1), grown(looks, names, 2)
    share = spent * TICK_S / seconds
    few_switches = switches <= max(2.0, 2.0 * seconds)
    quiet = spent <= max(1.0, 2.0 * seconds) and few_switches
    if quiet and len(set(stacks)) < 2:
        return Progress.STUCK
    if len(stacks) < 2:  # only the kernel's facts
        return Progress.SPINNING if share > 0.9 and not switches else Progress.UNSURE
    # What burns CPU never gives it up; on a crowded machine its share may still be small.
    burns = share >= 0.5 or (share >= 0.1 and few_switches)
    if burns and len({stack.coarse for stack in stacks}) == 1:
        return Progress.SPINNING
    return Progress.MOVING
