"""Four healthy H100 nodes with everything known, and a launch on them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from checks.facts import (
    ChronyTracking,
    Clock,
    Disk,
    Exchange,
    Fabric,
    FileSeen,
    Fleet,
    Gid,
    GitState,
    Gpu,
    GpuFacts,
    GpuHealth,
    History,
    IbPort,
    Interface,
    KernelLog,
    LaunchNeeds,
    Memory,
    Mount,
    Network,
    NodeFacts,
    Port,
    ProcessTable,
    ShellLimits,
    System,
    TimeSource,
    TorchGpus,
    Unknown,
)
from checks.parsers.census import parse_all_gpus
from tests.captures import fake_nvidia_smi as fake
from tests.checks.sections import ended, environment, machine

NAMES = ("n1", "n2", "n3", "n4")
COMMIT = "0123456789abcdef" * 2 + "01234567"


def gpu_facts(count: int = 8, **more: Any) -> GpuFacts:
    return dataclasses.replace(_parsed(count), **more)


@functools.cache
def _parsed(count: int) -> GpuFacts:
    csv = fake.h100(count)
    return parse_all_gpus(
        {
            "gpus": ended(csv),
            "gpu_processes": ended(fake.capture("no-processes.apps.csv")),
            "gpu_details": ended(fake.details(csv)),
            "nvlink": ended(fake.nvlinks(csv)),
            "topology": ended((fake.CAPTURES.parent / "topo/topo-m.h100x8-no-nic.txt").read_text()),
            "nvswitch": ended("".join(f"0000:0{n}:00.0 0x068000 0x22a3\n" for n in range(4))),
            "fabric_manager": ended("active\n"),
        }
    )


def with_gpu(position: int, **fields: Any) -> GpuFacts:
    """Facts in which one GPU differs; fields of Gpu and of GpuHealth alike."""
    facts = gpu_facts()
    known = {item.name for item in dataclasses.fields(Gpu)}
    old = facts.gpus[position]
    assert isinstance(old.health, GpuHealth)
    health = dataclasses.replace(old.health, **{k: v for k, v in fields.items() if k not in known})
    new = dataclasses.replace(
        old, **{"health": health, **{k: v for k, v in fields.items() if k in known}}
    )
    return dataclasses.replace(
        facts, gpus=(*facts.gpus[:position], new, *facts.gpus[position + 1 :])
    )


def port(number: int = 0, **fields: Any) -> IbPort:
    plain = IbPort(
        f"mlx5_{number}", 1, "ACTIVE", "LinkUp", 400.0, "InfiniBand", netdev=f"ib{number}", lid=50,
        sm_lid=1, counters={"link_downed": 0, "symbol_error": 3}, growth={"link_downed": 0},
        firmware="28.41.1000", guid=f"0xa0{number}", board_id="MT_0000000838", model="MT4129",
    )  # fmt: skip
    return dataclasses.replace(plain, **fields)


def roce(number: int = 0, gid_type: str = "RoCE v2", **fields: Any) -> IbPort:
    gids = (Gid(3, "::ffff:10.1.0.1", gid_type, f"eth{number}"),)
    return port(number, link_layer="Ethernet", lid=0, sm_lid=0, gids=gids, **fields)


def fabric(*ports: IbPort, peermem: bool = True) -> Fabric:
    return Fabric(ports or (port(0), port(1)), peermem, 0.7)


def clock(**fields: Any) -> Clock:
    track = ChronyTracking("0A630001", "10.99.0.1", 3, 1.8e9, 1e-4, 1e-6, 1e-5, 0.1, 0.1, 1e-3, 5e-4, 64.0, "Normal")  # fmt: skip
    source = TimeSource("10.99.0.1", "selected", 2, 64.0, 0o377, 5.0, 1e-4, 1e-3)
    plain = Clock(
        time_s=1.8e9, boottime_s=9e4, moved_s=0.0, kernel_synced=True, tracking=track, sources=(source,),
        daemons=("chronyd",), clocksource="tsc", log_ahead_s=-5.0, exchange=Exchange(0.0005, 0.0004, 8),
    )  # fmt: skip
    return dataclasses.replace(plain, **fields)


def tracking(**fields: Any) -> ChronyTracking:
    found = clock().tracking
    assert not isinstance(found, Unknown)
    return dataclasses.replace(found, **fields)


def disk(
    used: float = 0.3, inodes_used: float = 0.1, path: str = "/", total_gib: int = 1000
) -> Disk:
    total = total_gib << 30
    return Disk(
        path, path, int(total * (1 - used)), total, int(1000 * (1 - inodes_used)), 1000, True, True
    )


ROOT = Mount("/", "ext4", "/dev/sda1", False, disk())
SHARED = Mount("/data", "nfs4", "fs1:/data", False, disk(path="/data"))


def interface(name: str = "eth0", address: str = "10.0.0.1/24", **fields: Any) -> Interface:
    plain = Interface(name, True, 9000, 25000, (address,), True)
    return dataclasses.replace(plain, **fields)


def network(*interfaces: Interface, own: str = "10.0.0.1", first: str = "10.0.0.1") -> Network:
    names = {"@": (own,), "n1": (first,)}
    return Network(
        interfaces or (interface(), interface("lo", "127.0.0.1/8", is_hardware=False)),
        names,
        "connected",
    )


def full(name: str, **fields: Any) -> NodeFacts:
    """A healthy node about which everything is known."""
    plain = NodeFacts(
        name=name, hostname=name, user="me", python="3.10.12", gpus=gpu_facts(),
        machine=machine(f"boot-{name}"), memory=Memory(1 << 41, 1 << 40, 0, 0), load_1min=1.0,
        software=dataclasses.replace(environment(), installed={"torch": "2.9.0", "nvidia-nccl-cu12": "2.27.5"}),
        torch_gpus=TorchGpus(8), interpreter="works", disks={"/data": disk(path="/data")}, ports={29500: Port(True)}, connect_s=0.2,
        fabric=fabric(), clock=clock(), kernel_log=KernelLog((), 800),
        shell_limits=ShellLimits(1048576, None, 1 << 40), mounts=(ROOT, SHARED),
        network=network(), processes=ProcessTable((), (), 400), system=System("Ubuntu 22.04", ("performance",)),
        git=GitState(COMMIT, ()), files={"/data/clips.csv": FileSeen(True, False, 1000)}, token="word",
        token_s=0.01, wandb=True, previous=Unknown("no look before"), history=History(),
    )  # fmt: skip
    return dataclasses.replace(plain, **fields)


def needs(**fields: Any) -> LaunchNeeds:
    plain = LaunchNeeds(
        python="/venv/bin/python", port=29500, slots=dict.fromkeys(NAMES, 8), device="cuda",
        run_dir_parent="/data", min_free_bytes=20 << 30, master="n1",
        env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "=eth0"},
        files=("/data/clips.csv",), wandb=True,
    )  # fmt: skip
    return dataclasses.replace(plain, **fields)


def fleet(launch: LaunchNeeds | None = None, **changed: dict[str, Any]) -> Fleet:
    """The four nodes; `n3={"gpus": …}` replaces fields of one."""
    nodes = tuple(full(name, **changed.get(name, {})) for name in NAMES)
    return Fleet(nodes, launch or needs(), token="word")
