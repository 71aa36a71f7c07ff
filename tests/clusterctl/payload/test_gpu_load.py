"""Readings of GPUs by ctypes, with a stand-in for NVML's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from clusterctl.stacks.counts.gpu_use import Use, judge_use
from clusterctl.stacks.node_counters import GpuLoad, read_counters
from tests.captures import nvml_library

READ = "from clusterctl.payload.dump.counters import read_gpus_twice; print(read_gpus_twice(0.0))"


def child(folder: Path) -> subprocess.CompletedProcess[str]:
    """The library's folder must be known before the process starts."""
    env = dict(os.environ, LD_LIBRARY_PATH=str(folder))
    return subprocess.run([sys.executable, "-c", READ], env=env, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def test_power_utilisation_and_processes_of_each_gpu(tmp_path: Path) -> None:
    nvml_library.build(tmp_path, pid=4711)
    done = child(tmp_path)
    assert done.returncode == 0, done.stderr
    sent = {"state": "ended", "rc": 0, "out": done.stdout, "err": ""}
    readings = read_counters({"ras": [], "addresses": [], "inner": {}, "gpus": sent}).gpus
    assert isinstance(readings, tuple)
    assert readings[0] == readings[1] == (
        GpuLoad(0, 97, 690.0, 700.0, None, (4711,)), GpuLoad(1, 97, 690.0, 700.0, None), GpuLoad(2, 97, None, 700.0, None),
    )  # fmt: skip
    assert [judge_use([load, load]) for load in readings[0]] == [Use.COMPUTES, Use.COMPUTES, Use.UNCLEAR]  # fmt: skip


def test_node_without_nvml_says_so(tmp_path: Path) -> None:
    done = child(tmp_path)
    assert done.returncode != 0
    assert "libnvidia-ml.so.1" in done.stderr


def test_readings_that_changed_or_lack_a_value_are_unclear() -> None:
    def load(used: int | None, power_w: float | None) -> GpuLoad:
        return GpuLoad(0, used, power_w, 700.0, 1980)

    assert judge_use([load(100, 120.0), load(100, 118.0)]) == Use.SPINS
    assert judge_use([load(0, 70.0), load(3, 71.0)]) == Use.IDLE
    for one, other in ((load(100, 120.0), load(0, 70.0)), (load(100, 120.0), load(100, 600.0)), (load(None, 1.0),) * 2, (load(100, None),) * 2):  # fmt: skip
        assert judge_use([one, other]) == Use.UNCLEAR
    assert judge_use([load(100, 120.0)]) == Use.UNCLEAR
    assert json.dumps(Use.SPINS) == '"spins"'
