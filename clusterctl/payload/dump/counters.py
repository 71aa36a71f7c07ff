"""What NCCL and the GPUs of a job count, read beside its stacks and in the same time."""

import json
import threading
import time
from functools import partial

from clusterctl.payload.collect.forked_child import collect_child, fork_child
from clusterctl.payload.dump import ras
from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import call, error_text

GPU_S = 3.0  # for both readings, from the first one's start
GPU_GAP_S = (
    1.0  # between readings: NVML's utilisation is that of the last sixth of a second to second
)
PROCESSES = 64
TOO_SMALL = 7  # of the list of processes
SM_CLOCK = 1
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
            gap_s = min(interval_s, GPU_GAP_S)
            self._child = or_none(fork_child, partial(read_gpus_twice, gap_s))
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


def read_gpus_twice(gap_s):
    """JSON: readings of [index, utilisation %, power W, limit W, SM MHz, pids] for each GPU.

    By ctypes: pynvml takes longer to compile than all else of this payload. It runs in a child
    (collect/forked_child.py), since a call into the driver may never return.
    """
    import ctypes

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        raise OSError("NVML does not start")
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    readings = []
    for number in range(2):
        time.sleep(gap_s if number else 0.0)
        readings.append(
            [[index, *gpu_reading(ctypes, nvml, index)] for index in range(count.value)]
        )
    return json.dumps(readings)


def gpu_reading(ctypes, nvml, index):
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return [None, None, None, None, []]

    def number(name, *words):
        value = ctypes.c_uint()
        function = getattr(nvml, "nvmlDeviceGet" + name, None)  # they come and go with versions
        if function is None or function(handle, *words, ctypes.byref(value)):
            return None
        return value.value

    rates = (ctypes.c_uint * 2)()  # of the GPU, of its memory
    failed = nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))
    watts = [number(name) for name in ("PowerUsage", "EnforcedPowerLimit")]
    power_w, limit_w = [None if value is None else round(value / 1000, 1) for value in watts]
    used = None if failed else rates[0]
    clock_mhz = number("ClockInfo", SM_CLOCK)
    return [used, power_w, limit_w, clock_mhz, gpu_processes(ctypes, nvml, handle)]


def gpu_processes(ctypes, nvml, handle):
    # A structure of 24 bytes: pid, memory used, GPU and compute instance (with padding after pid).
    function = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    rows, count = (ctypes.c_uint * (6 * PROCESSES))(), ctypes.c_uint(PROCESSES)
    if function is None or function(handle, ctypes.byref(count), rows) not in (0, TOO_SMALL):
        return []
    return [rows[6 * number] for number in range(min(count.value, PROCESSES))]
