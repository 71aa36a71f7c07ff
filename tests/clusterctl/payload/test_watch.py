"""The watcher as it runs on a node: real interpreter, real /proc; drivers are stand-ins on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload import ship
from dashboards.watch_line import parse
from tests.clusterctl.payload.local import LocalConnection, tools_only

ROW = "0, NVIDIA H100 80GB HBM3, 698.30, 700.00, 100, 71204, 81559, 64, 1980"
NO_GPU = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="this machine has GPUs of its own"
)


@contextmanager
def watch(
    env: dict[str, str], interval_s: float = 0.1, nvml: bool = False
) -> Iterator[ship.PayloadStream]:
    connection = LocalConnection(env)
    with ship.stream(connection, "watch", {"interval_s": interval_s}, nvml=nvml) as stream:  # type: ignore[arg-type]
        yield stream


def lines_until(
    stream: ship.PayloadStream, condition: Callable[[dict[str, Any]], bool], deadline_s: float = 10
) -> dict[str, Any]:
    """The first line that fulfils the condition."""
    end = time.monotonic() + deadline_s
    line: dict[str, Any] | None = None
    while time.monotonic() < end:
        line = stream.receive(end - time.monotonic())
        if line is not None and condition(line):
            return line
    raise AssertionError(f"no such line in {deadline_s} s, the last one: {line}")


@NO_GPU
def test_machine_without_gpus_tells_cpu_memory_load_and_that_there_are_none(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path)) as stream:
        line = lines_until(stream, lambda line: line["seq"] == 3)
    sample = parse("n", line, 0.0)
    assert sample.gpus == ()
    assert sample.cpus == os.cpu_count()
    assert sample.cpu is not None
    assert 0 <= sample.cpu <= 1
    assert sample.load1 is not None
    assert sample.memory is not None
    assert 0 < sample.memory < 1
    assert sample.network_bytes_s is not None


def test_lines_come_at_the_interval_and_do_not_drift(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path), interval_s=0.1) as stream:
        first = lines_until(stream, lambda line: True)
        last = lines_until(stream, lambda line: line["seq"] == first["seq"] + 10)
    assert last["mono_s"] - first["mono_s"] == pytest.approx(1.0, abs=0.3)


def test_watcher_ends_when_stdin_closes_with_the_tool_it_follows(tmp_path: Path) -> None:
    env = tools_only(
        tmp_path, **{"nvidia-smi": f'echo $$ > {tmp_path}/pid; echo "{ROW}"; exec sleep 60'}
    )
    with watch(env) as stream:
        lines_until(stream, lambda line: "gpu_csv" in line)
        smi = int((tmp_path / "pid").read_text())
        begun = time.monotonic()
        stream.end_lease()
        with pytest.raises(EOFError):
            lines_until(stream, lambda line: False)
        assert stream.wait(3) == 0
        assert time.monotonic() - begun < 3
    end = time.monotonic() + 3
    while Path(f"/proc/{smi}/cmdline").exists() and Path(f"/proc/{smi}/cmdline").read_text():
        assert time.monotonic() < end, "nvidia-smi lives on"
        time.sleep(0.02)


def test_text_of_nvidia_smi_is_followed(tmp_path: Path) -> None:
    smi = f'while :; do echo "{ROW}"; echo "{ROW}" | sed s/^0/1/; sleep 0.3; done'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        line = lines_until(stream, lambda line: "gpu_csv" in line)
    gpus = parse("n", line, 0.0).gpus
    assert gpus is not None
    assert [(gpu.index, gpu.power_w, gpu.util) for gpu in gpus] == [(0, 698.3, 1.0), (1, 698.3, 1.0)]  # fmt: skip


def test_nvidia_smi_that_knows_no_loop_is_asked_again(tmp_path: Path) -> None:
    smi = f'echo x >> {tmp_path}/asked; echo "{ROW}"'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        lines_until(stream, lambda line: len((tmp_path / "asked").read_text()) >= 4)
        assert "gpu_csv" in lines_until(stream, lambda line: True)


def test_broken_driver_is_unknown_with_its_own_words(tmp_path: Path) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    smi = f'echo "{words}"; exit 9'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        line = lines_until(stream, lambda line: "ended (9)" in line["gpu_error"])
    sample = parse("n", line, 0.0)
    assert sample.gpus is None
    assert words in sample.gpu_error


def test_hung_driver_silences_the_gpus_and_not_the_node(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path, **{"nvidia-smi": "exec sleep 60"})) as stream:
        line = lines_until(stream, lambda line: "no answer for" in line["gpu_error"], 15)
        assert line["gpus"] is None
        assert lines_until(stream, lambda line: True)["memory"]["total"] > 0


NVML = """
#include <string.h>
typedef struct { unsigned gpu, memory; } util_t;
typedef struct { unsigned long long total, free, used; } mem_t;
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return e == 15 ? "GPU is lost" : "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned n) { strncpy(name, "Stand-in H100", n); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { *v = 700000; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) {
  if ((long)d == 3) return 15; /* lost */
  *v = 690000 + (unsigned)(long)d; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, util_t *u) { u->gpu = 97; u->memory = 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, mem_t *m) { m->total = 80ULL << 30; m->used = 71ULL << 30; m->free = 9ULL << 30; return 0; }
int nvmlDeviceGetTemperature(void *d, int s, unsigned *v) { *v = 64; return 0; }
int nvmlDeviceGetClockInfo(void *d, int c, unsigned *v) { return 3; /* not supported */ }
"""


def test_nvml_comes_along_as_source_and_is_preferred(tmp_path: Path) -> None:
    """The shipped pynvml talks to a library of NVML's names that is compiled here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a stand-in for libnvidia-ml")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, tmp_path / "nvml.c"], check=True)  # fmt: skip
    env = tools_only(tmp_path / "bin", **{"nvidia-smi": "echo must not be asked; exit 1"})
    with watch({**env, "LD_LIBRARY_PATH": str(tmp_path)}, nvml=True) as stream:
        line = lines_until(stream, lambda line: line["gpus"] is not None)
    first, second, lost = parse("n", line, 0.0).gpus or ()
    assert (first.name, first.power_w, first.power_limit_w) == ("Stand-in H100", 690.001, 700.0)
    assert (second.util, second.memory_used_bytes, second.temperature_c) == (0.97, 71 * 2**30, 64)
    assert second.sm_mhz is None  # not supported is unknown
    assert lost.error == "GPU is lost"
    assert lost.power_w is None


@NO_GPU
def test_watcher_is_cheap(tmp_path: Path) -> None:
    """On the node at most 1 % of a core at 1 Hz and 2 kB a line; measured here at 10 Hz."""
    connection = LocalConnection(tools_only(tmp_path))
    with ship.stream(connection, "watch", {"interval_s": 0.1}) as stream:  # type: ignore[arg-type]
        first = lines_until(stream, lambda line: True)
        pid = stream._channel.process.pid  # type: ignore[attr-defined]
        begun = cpu_seconds(pid)
        last = lines_until(stream, lambda line: line["seq"] >= first["seq"] + 20)
        spent = cpu_seconds(pid) - begun
    assert spent / 20 < 0.01, f"{1000 * spent / 20:.2f} ms a line"
    assert len(str(last)) < 2000


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
