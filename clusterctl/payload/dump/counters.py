"""What NCCL and the GPUs of a job count, read beside its stacks and in the same time."""

import threading
import time
from functools import partial

from clusterctl.payload.collect.forked_child import collect_child, fork_child
from clusterctl.payload.dump import gpu_load, ras
from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import call, error_text

GPU_S = 3.0  # for both readings, from the first one's start
OFF = "NCCL_RAS_ENABLE=0 switches it off"


class Counters:
    """Asks at the first and the last sample of stacks; nobody waits where RAS does not listen."""

    def __init__(self, rows, shot, given, interval_s, budget_s):
        """`given` is ARGS["ras"]: [] for the job's own address, [host, port], None for no RAS."""
        self._ask_s = min(ras.ASK_S, budget_s / 2)
        self._trainers = [row["pid"] for row in rows if row["role"] == "trainer"]
        self._asked = []  # type: list  # (thread, its answers)
        self._given, self._is_asked = given, given is not None and bool(self._trainers)
        seen = [shot.seen[pid] for pid in self._trainers]
        self._places = ras.ras_places(seen, given) if self._is_asked else []
        self._is_off = not given and ras.ras_is_off(seen)
        self._until = self._gpus_until = 0.0
        self._child = None
        if self._trainers:
            gap_s = min(interval_s, gpu_load.GAP_S)
            self._child = or_none(fork_child, partial(gpu_load.read_twice, gap_s))
            self._gpus_until = time.monotonic() + GPU_S

    def look(self):
        if not self._is_asked or self._is_off:
            return
        answers = []  # type: list

        def work():
            try:
                answers.append(ras.ask_ras(self._places, bool(self._given), self._ask_s))
            except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
                answers.append({"error": error_text(error), "seconds": 0.0})

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._until = time.monotonic() + self._ask_s + 0.5
        self._asked.append((thread, answers))

    def report(self):
        """{ras, addresses, inner, gpus}: answers in order, and what they are compared with."""
        found = []
        for thread, answers in self._asked:
            thread.join(max(0.0, self._until - time.monotonic()))
            late = {"error": "no answer in %g s" % self._ask_s, "seconds": self._ask_s}
            found.append(answers[0] if answers else late)
        if self._is_asked and self._is_off:
            found = [{"error": OFF, "seconds": 0.0}]
        facts = {"ras": found, "addresses": [], "inner": {}, "gpus": None}  # type: dict
        if any("text" in one for one in found):
            call("", lambda: facts.update(addresses=ras.own_addresses()) or "", 1.0)
            facts["inner"] = {str(pid): ras.inner_pid(pid) for pid in self._trainers}
        if self._child:
            left_s = max(0.1, self._gpus_until - time.monotonic())
            facts["gpus"] = collect_child("", self._child, left_s)
        return facts
