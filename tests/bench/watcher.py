"""The watcher of one node as it would run on a machine of 8 GPUs: NVML is a stand-in compiled here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from clusterctl.remote import payload as ship
from dashboards.feeds.watch_decoder import Decoder
from tests.clusterctl.payload.local import LocalConnection

# Every card moves each second, as busy ones do. Real calls take longer in the driver than these.
NVML = """
#include <string.h>
#include <stdlib.h>
typedef struct { unsigned gpu, memory; } util_t;
typedef struct { unsigned long long total, free, used; } mem_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } proc_t;
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int e) { return "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned n) { strncpy(name, "Stand-in H100", n); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { *v = 700000; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) { *v = 650000 + rand() % 50000; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, util_t *u) { u->gpu = 94 + rand() % 7; u->memory = 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, mem_t *m) { m->total = 80ULL << 30; m->used = 71ULL << 30; m->free = 9ULL << 30; return 0; }
int nvmlDeviceGetTemperature(void *d, int s, unsigned *v) { *v = 60 + rand() % 6; return 0; }
int nvmlDeviceGetClockInfo(void *d, int c, unsigned *v) { *v = 1980 - rand() % 60; return 0; }
int nvmlDeviceGetTotalEccErrors(void *d, int e, int c, unsigned long long *v) { *v = 0; return 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned link, int *v) { *v = 1; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *v) { *v = 4; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, proc_t *p) {
  if (*n < 1) { *n = 1; return 7; }
  *n = 1; p[0].pid = PID; p[0].used = 70ULL << 30; return 0; }
"""


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def node(seconds: int, compiler: str) -> str:
    """A sentence: CPU of one core and bytes a second behind the first line, at 1 Hz."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nvml.c"
        source.write_text(NVML)
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-w", f"-DPID={os.getpid()}", "-o", library, source], check=True)  # fmt: skip
        return _watched(seconds, {"LD_LIBRARY_PATH": folder})


def _watched(seconds: int, env: Mapping[str, str]) -> str:
    connection = LocalConnection(dict(env))
    with closing(ship.stream(connection, "watch", {"interval_s": 1.0}, nvml=True)) as stream:  # type: ignore[arg-type]
        pid = stream.channel.process.pid  # type: ignore[attr-defined]
        decoder = Decoder("n")
        sizes: list[int] = []
        begun = used = 0.0
        while not sizes or len(sizes) < seconds:
            line = stream.receive(5.0)
            if line is None:
                raise TimeoutError("the watcher says nothing")
            text = json.dumps(line, separators=(",", ":"))
            decoder.take(text.encode(), time.time())
            sizes.append(len(text) + 1)
            if len(sizes) == 3:
                begun, used = time.monotonic(), cpu_seconds(pid)
        used = (cpu_seconds(pid) - used) / (time.monotonic() - begun)
        sample = decoder.sample(time.time())
    gpus = len(sample.gpus or ()) if sample else 0
    later = sizes[3:]
    return (
        f"node: {100 * used:.2f} % of a core at 1 Hz, first line {sizes[0]} bytes, "
        f"{sum(later) / len(later):.0f} bytes a line then ({gpus} GPUs)"
    )


def cpu_seconds(pid: int) -> float:
    """Of the process and of the tools that it has run; finer than the ticks of /proc/PID/stat."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = (int(words[13]) + int(words[14])) / os.sysconf("SC_CLK_TCK")
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9 + children
