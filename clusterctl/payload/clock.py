"""This node's clock: what steers it, and its time on request.

ARGS: tool_timeout_s. stdin carries questions as JSON lines until it closes: {"op": "time", "id"}
is answered at once with {"time_s", "boottime_s", "id"}, {"op": "state"} with the census's sections
about time, {"op": "boot"} with the boot id. Read-only; one process for all, because starting one
for each question takes longer than what is measured (1 ms against 0.04).
"""

import os
import threading
from functools import partial

from clusterctl.payload.collect.clock import collect_clock
from clusterctl.payload.collect.processes import list_processes
from clusterctl.payload.prelude import ARGS, emit, hold_lease
from clusterctl.payload.proc_files import node_facts, read_times
from clusterctl.payload.tools import SECTIONS, call, in_thread, together

STARTED = {}  # type: dict


def main():
    STARTED.update(read_times())
    hold_lease(on_message=answer)
    threading.Event().wait()  # the lease answers, and ends the process when stdin closes


def answer(message):
    if message["op"] == "time":
        emit(dict(read_times(), id=message.get("id")))
    elif message["op"] == "boot":
        emit({"boot_id": node_facts()["boot_id"]})
    elif message["op"] == "state":
        in_thread(send_state)  # chronyc may hang


def send_state():
    collect_processes = partial(call, "processes", partial(list_processes, 0.0), 5.0)
    together([partial(collect_clock, ARGS.get("tool_timeout_s", 5.0)), collect_processes])
    call("began", lambda: "%(time_s).6f %(boottime_s).6f" % STARTED, 2.0)
    emit({"node": node_facts(), "sections": dict(SECTIONS), "cpu_s": sum(os.times()[:4])})
