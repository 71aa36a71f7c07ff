"""Power, utilisation and clock of each GPU with its processes, several times, straight from NVML.

By ctypes: pynvml takes longer to compile than all else of this payload. It runs in a child
(collect/forked_child.py), since a call into the driver may never return.
"""

import json
import time

GAP_S = 1.0  # between readings: NVML's utilisation is that of the last sixth of a second to second
PROCESSES = 64
TOO_SMALL = 7  # of the list of processes
SM_CLOCK = 1


def read_twice(gap_s):
    """JSON: readings of [index, utilisation %, power W, limit W, SM MHz, pids] for each GPU."""
    import ctypes

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        raise OSError("NVML does not start")
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    readings = []
    for number in range(2):
        time.sleep(gap_s if number else 0.0)
        readings.append([[index, *reading(ctypes, nvml, index)] for index in range(count.value)])
    return json.dumps(readings)


def reading(ctypes, nvml, index):
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
    return [used, power_w, limit_w, clock_mhz, running(ctypes, nvml, handle)]


def running(ctypes, nvml, handle):
    # A structure of 24 bytes: pid, memory used, GPU and compute instance (with padding after pid).
    function = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    rows, count = (ctypes.c_uint * (6 * PROCESSES))(), ctypes.c_uint(PROCESSES)
    if function is None or function(handle, ctypes.byref(count), rows) not in (0, TOO_SMALL):
        return []
    return [rows[6 * number] for number in range(min(count.value, PROCESSES))]
