"""What healthy nodes send home, section by section, as raw text: the census before it is parsed."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from checks.facts import Fleet, LaunchNeeds, NodeFacts
from checks.parsers.census import parse_census
from tests.captures import fake_nvidia_smi as fake
from tests.checks import healthy
from tests.checks.captures import recorded

COMMIT = healthy.COMMIT
Sections = dict[str, dict[str, Any]]


def raw(out: str, rc: int | None = 0, state: str = "ended", err: str = "") -> dict[str, Any]:
    return {"state": state, "rc": rc, "out": out, "err": err, "seconds": 0.1}


def _nvml_row(index: int) -> dict[str, Any]:
    return {
        "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H100 80GB HBM3", "bus_id": f"00000000:{index:02x}:00.0",
        "power_mw": 100890, "power_limit_mw": 700000, "power_default_mw": 700000, "memory_used": 1 << 20,
        "memory_total": 80 << 30, "utilization": 0, "temperature": 30, "slowdown_c": 89, "margin_c": 59,
        "vbios": "96.00.74.00.01", "inforom": "G520", "gsp": "565.57.01", "persistence": 1, "mig": 0,
        "compute_mode": 0, "ecc": 1, "corrected_volatile": 0, "uncorrected_volatile": 0,
        "sram_uncorrected_aggregate": 0, "sram_threshold": 0, "virtualization": 0, "remapped_uncorrectable": 0, "remap_pending": 0, "remap_failure": 0,
        "throttle": 1, "pcie_width": 16, "pcie_width_max": 16, "pcie_gen": 5, "pcie_gen_max": 5,
        "max_sm_mhz": 1980, "recovery": 0, "fabric_state": "Completed", "fabric_status": "Success",
        "links": [1] * 18, "processes": [],
    }  # fmt: skip


@functools.cache
def _nvml() -> str:
    rows = [_nvml_row(index) for index in range(8)]
    return json.dumps({"driver": "565.57.01", "cuda": "12.7", "gpus": rows})


def _smi() -> dict[str, str]:
    csv = fake.h100()
    return {
        "gpus": csv, "gpu_processes": fake.capture("no-processes.apps.csv"), "gpu_details": fake.details(csv),
        "nvlink": fake.nvlinks(csv),
    }  # fmt: skip


def _pci(kind: str, device: str, count: int) -> str:
    devices = "".join(f"\n0000:{n:02x}:00.0 {kind} {device}" for n in range(count))
    return f"#devices\t40{devices}"


def _module(gpus: int) -> str:
    version = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Thu Oct 10 12:29:05 UTC 2024"
    )
    return "\n".join([version, *(f"0000:{n:02x}:00.0" for n in range(gpus))])


def _mount(path: str, kind: str, source: str) -> str:
    space = {
        "path": path, "asked": path, "kind": kind, "source": source, "read_only": False, "writable": True,
        "is_folder": True, "free": 700 << 30, "total": 1000 << 30, "inodes_free": 900, "inodes": 1000,
    }  # fmt: skip
    return json.dumps(space)


_PYTHON = {
    "executable": "/venv/bin/python", "prefix": "/venv", "python": "3.11.7", "torch_cuda": "12.8",
    "packages": {"torch": "2.9.0+cu128", "colossalai": "0.5.0", "av": "17.1.0"},
    "installed": {"torch": "2.9.0", "nvidia-nccl-cu12": "2.27.5"},
}  # fmt: skip


@functools.cache
def _texts(by_nvml: bool) -> Mapping[str, str]:
    lids = "".join(
        f"mlx5_{number}/ports/1/lid\t0x{number + 48:x}\n" for number in (0, 1, 4, 5, 6, 7, 8, 9)
    )
    fabric = "#devices\t9\n#peermem\tyes\n" + lids + recorded("infiniband/sysfs-h100.tsv")
    return {
        **({"nvml": _nvml()} if by_nvml else _smi()),
        "topology": recorded("topo/topo-m.h100x8-no-nic.txt"), "nvidia_proc": _module(8),
        "torch": json.dumps({"count": 8, "reason": ""}),
        "pci": _pci("0x030200", "0x2330", 8), "nvswitch": _pci("0x068000", "0x22a3", 4), "fabric_manager": "active\n",
        "meminfo": "MemTotal: 2097152000 kB\nMemAvailable: 2000000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
        "loadavg": "1.00 1.00 1.00 1/900 4711\n",
        "machine": "cpus=64\nkernel=6.8.0\nmachine_id=abc\nns_net=net:[1]\nns_pid=pid:[1]\nns_uts=uts:[1]",
        "began": "1800000000.000000 90000.000000", "clocksource": "tsc\n", "log_ahead": "-5.000",
        "adjtimex": "state=0 status=8193 maxerror=1000 esterror=10",
        "chrony_tracking": recorded("chrony/good.tracking.csv"), "chrony_sources": recorded("chrony/good.sources.csv"),
        "ib": fabric, "ib_again": "#seconds\t0.7\n" + recorded("infiniband/sysfs-h100.tsv"),
        "kernel_log": "#lines\t800\n#first\t[    0.000000] Linux version 6.8.0\n",
        "processes": "count\t400\ndaemon\tchronyd\t700",
        "limits": f"nofile=1048576\nnproc=-1\nmemlock=-1\nshm={1100 << 30}\nshm_free={1100 << 30}",
        "mounts": "\n".join([_mount("/", "ext4", "/dev/sda1"), _mount("/data", "nfs4", "fs1:/data")]),
        "network": "eth0\tup\t9000\t25000\t1\nlo\tunknown\t65536\t?\t0",
        "addresses": "1: lo    inet 127.0.0.1/8 scope host lo\n2: eth0    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth0\n",
        "name:@": "10.0.0.1", "name:n1": "10.0.0.1", "reach": "connected",
        "system": "distribution\tUbuntu 22.04\ngovernor\tperformance", "python": json.dumps(_PYTHON) + "\n",
        "git_head": COMMIT + "\n", "git_status": "## main\n",
        "files": json.dumps({"path": "/data/clips.csv", "exists": True, "size": 1000, "files": 1}),
        "token": "word", "wandb": "yes", "disk:/data": _mount("/data", "nfs4", "fs1:/data"), "port:29500": "free",
    }  # fmt: skip


def sections(by_nvml: bool = True) -> Sections:
    """All sections of a healthy node's census, GPUs by NVML or by nvidia-smi."""
    return {name: raw(text) for name, text in _texts(by_nvml).items()}


def facts(name: str, raw_sections: Sections) -> NodeFacts:
    """The facts of a node that has sent these sections."""
    who = {
        "hostname": name, "user": "me", "python": "3.10.12", "boot_id": f"boot-{name}",
        "time_s": 1800000001.0, "boottime_s": 90001.0,
    }  # fmt: skip
    samples = [[1800000000.0, 1800000000.0005, 1800000000.001]] * 8
    head = {"connect_s": 0.2, "samples": samples}
    return parse_census(name, {"sections": raw_sections, "node": who, "head": head})


def fleet(*nodes: NodeFacts, launch: LaunchNeeds | None = None) -> Fleet:
    return Fleet(nodes, launch or needs(), token="word")


def needs() -> LaunchNeeds:
    return healthy.needs(env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9", "NCCL_SOCKET_IFNAME": "=eth0"})  # fmt: skip
