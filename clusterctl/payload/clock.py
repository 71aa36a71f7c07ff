"""This node's clock: what steers it, and its time on request.

ARGS: tool_timeout_s. stdin carries questions as JSON lines until it closes: {"op": "time", "id"}
is answered at once with {"time_s", "boottime_s", "id"}, {"op": "state"} with the census's sections
about time, {"op": "boot"} with the boot id. Read-only; one process for all, because starting one
for each question takes longer than what is measured (1 ms against 0.04).
"""

from __future__ import annotations

import os
import threading
import time

from clusterctl.payload.collect.clock import look_at_clock
from clusterctl.payload.collect.processes import list_processes
from clusterctl.payload.prelude import (
    ARGS,
    SECTIONS,
    _guard,
    call,
    emit,
    hold_lease,
    node_facts,
    together,
)

BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
BEGAN = {}  # type: dict


def main():
    BEGAN.update(read_times())
    hold_lease(on_message=answer)
    threading.Event().wait()  # the lease answers, and ends the process when stdin closes


def answer(message):
    op = message.get("op")
    if op == "time":
        emit(dict(read_times(), id=message.get("id")))
    elif op == "boot":
        emit({"boot_id": node_facts()["boot_id"]})
    elif op == "state":
        # In a thread: chronyc may hang.
        threading.Thread(target=_guard, args=(tell_state,), daemon=True).start()


def read_times():
    """Both clocks, read with the shortest gap of three tries."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(3):
        before = time.clock_gettime(BOOTTIME)
        wall_s = time.time()
        after = time.clock_gettime(BOOTTIME)
        best = min(best, (after - before, wall_s, (before + after) / 2))
    return {"time_s": best[1], "boottime_s": best[2]}


def tell_state():
    timeout_s = ARGS.get("tool_timeout_s", 5.0)
    together(
        [
            lambda: look_at_clock(timeout_s),
            lambda: call("processes", lambda: list_processes(0.0), 5.0),
        ]
    )
    call("began", lambda: "%.6f %.6f" % (BEGAN["time_s"], BEGAN["boottime_s"]), 2.0)
    emit(
        {
            "node": dict(node_facts(), **read_times()),
            "sections": dict(SECTIONS),
            "cpu_s": sum(os.times()[:4]),
        }
    )
