"""A libnvidia-ml.so.1 that is compiled from C: NVML's names and structures without a driver."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = """
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
/* Broken while this file is there, as by a driver that is loaded again. */
static int broken(void) { const char *path = getenv("NVML_BROKEN"); return path && !access(path, F_OK); }
#define GIB (1ULL << 30)
#define RESERVED (530ULL << 20) /* of an idle H100: firmware, page tables */
typedef struct { unsigned gpu, memory; } util_t;
typedef struct { unsigned long long total, free, used; } mem_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } mem2_t;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned is_over; } sram_t;
int nvmlInitWithFlags(unsigned f) { return broken() ? 9 : 0; }
int nvmlInit_v2(void) { return broken() ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return e == 15 ? "GPU is lost" : e == 13 ? "Function Not Found" : "Not Supported"; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12080; return 0; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { strncpy(v, "570.86.15", n); return 0; }
#ifdef HEALTHY
#define ODD(d, number) 0
int nvmlDeviceGetCount_v2(unsigned *n) { const char *said = getenv("NULL_GPU_DEVICES"); *n = said ? atoi(said) : HEALTHY; return 0; }
#else
#define ODD(d, number) ((long)(d) == (number))
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return broken() ? 999 : 0; }
#endif
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned n) { strncpy(name, "Stand-in H100", n); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { *v = 700000; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) {
  if (ODD(d, 3)) return 15; /* lost */
  *v = 690000 + (unsigned)(long)d; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *v) { /* not before Volta */
  if (ODD(d, 2)) return 3; *v = 123456789ULL; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, util_t *u) { u->gpu = 97; u->memory = 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, mem_t *m) { /* what is reserved counts as used */
  m->total = 80 * GIB; m->used = 71 * GIB + RESERVED; m->free = m->total - m->used; return 0; }
#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(void *d, mem2_t *m) {
  if (m->version != (2u << 24 | sizeof(mem2_t))) return 25; /* argument version mismatch */
  m->total = 80 * GIB; m->reserved = RESERVED; m->used = 71 * GIB; m->free = 9 * GIB - RESERVED; return 0; }
int nvmlDeviceGetSramEccErrorStatus(void *d, sram_t *s) {
  if (s->version != (1u << 24 | sizeof(sram_t))) return 25;
  memset(s->counts, 0, sizeof s->counts); s->is_over = ODD(d, 2); return 0; }
#endif
int nvmlDeviceGetVirtualizationMode(void *d, unsigned *v) { *v = 1; return 0; /* pass-through */ }
int nvmlDeviceGetTemperature(void *d, int s, unsigned *v) { *v = 64; return 0; }
int nvmlDeviceGetClockInfo(void *d, int c, unsigned *v) { return 3; /* not supported */ }
int nvmlDeviceGetTotalEccErrors(void *d, int e, int c, unsigned long long *v) { *v = ODD(d, 2) ? 3 : 0; return 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned link, int *v) { if (link > 3) return 2; *v = !ODD(link, 1); return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *v) { *v = 0x4 | (ODD(d, 2) ? 0x40 : 0); return 0; }
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } proc_t;
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, proc_t *p) {
  if (!ODD(d, 1)) { *n = 0; return 0; }
  if (*n < 1) { *n = 1; return 7; /* too small */ }
  *n = 1; p[0].pid = PID; p[0].used = 70ULL << 30; return 0; }
#ifdef HEALTHY /* what torch asks, and the rest of the census, of idle cards */
int nvmlInit(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **d) { unsigned domain, number; sscanf(bus, "%x:%x", &domain, &number); *d = (void *)(long)number; return 0; }
int nvmlDeviceGetUUID(void *d, char *v, unsigned n) { snprintf(v, n, "GPU-00000000-0000-0000-0000-%012ld", (long)d); return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *d, unsigned *v) { *v = 700000; return 0; }
int nvmlDeviceGetVbiosVersion(void *d, char *v, unsigned n) { strncpy(v, "96.00.99.00.01", n); return 0; }
int nvmlDeviceGetInforomImageVersion(void *d, char *v, unsigned n) { strncpy(v, "G520.0200.00.05", n); return 0; }
int nvmlDeviceGetGspFirmwareVersion(void *d, char *v) { strcpy(v, "580.65.06"); return 0; }
int nvmlDeviceGetPersistenceMode(void *d, int *v) { *v = 1; return 0; }
int nvmlDeviceGetComputeMode(void *d, int *v) { *v = 0; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { *v = 16; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { *v = 16; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { *v = 5; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { *v = 5; return 0; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { *now = *next = 0; return 0; }
int nvmlDeviceGetEccMode(void *d, int *now, int *next) { *now = *next = 1; return 0; }
int nvmlDeviceGetRemappedRows(void *d, unsigned *a, unsigned *b, unsigned *c, unsigned *e) { *a = *b = *c = *e = 0; return 0; }
int nvmlDeviceGetGpuFabricInfoV(void *d, char *info) { memset(info + 4, 0, 32); return 0; /* state 0: no fabric */ }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *d, unsigned link, int *type) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, void *info) { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, void *p) { *n = 0; return 0; }
#endif
"""
"""Three GPUs, the second over its SRAM threshold, the third lost in part; HEALTHY: as many idle ones."""


def build(folder: Path, pid: int = 1, *, is_old: bool = False, healthy: int = 0) -> Path:
    """The library in `folder`; `pid` computes on its GPU 0. `is_old`: as a driver before 510;
    `healthy`: so many idle cards without a fault (NULL_GPU_DEVICES goes before).

    Skips the test without a C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a stand-in for libnvidia-ml")
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(SOURCE)
    flags = ["-shared", "-fPIC", "-w", f"-DPID={pid}", *(["-DOLD"] if is_old else [])]
    flags += [f"-DHEALTHY={healthy}"] if healthy else []
    subprocess.run([compiler, *flags, "-o", library, source], check=True)
    return library
