"""A bad case for every check: what differs on node n3 (n1 where the check looks there), the verdict.

The good case of all is `healthy.fleet()`. Where the checks' first home is a recorded output, the
bad facts are made from it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from checks.facts import (
    Blocked,
    Exchange,
    FileSeen,
    Fleet,
    GitState,
    GpuProcess,
    History,
    KernelLog,
    LaunchNeeds,
    Memory,
    Mount,
    PastFault,
    Port,
    Previous,
    ProcessTable,
    ShellLimits,
    System,
    TimeSource,
    TorchGpus,
    Unknown,
    Unreached,
)
from checks.finding import Verdict
from checks.parsers import gpu_health, kernel_log
from checks.parsers.clock import read_sources, read_tracking
from checks.parsers.nvidia_smi import parse_gpus
from tests.checks import active_cases
from tests.checks import healthy as h
from tests.checks.captures import recorded
from tests.checks.sections import ended, environment, machine

WARN, FAIL, UNKNOWN = Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN


@dataclasses.dataclass(frozen=True)
class Case:
    """A fleet in which one node is bad, and how bad."""

    name: str
    verdict: Verdict
    fleet: Fleet
    node: str = "n3"


def bad(
    name: str, verdict: Verdict, launch: LaunchNeeds | None = None, at: str = "n3", **fields: Any
) -> Case:
    return Case(name, verdict, h.fleet(launch, **{at: fields}), at)


def known(value: Any) -> Any:
    assert not isinstance(value, Unknown), value
    return value


def past(count: int) -> History:
    faults = [
        PastFault("incident", "xid-79", 86400.0 * n, "2026-03-01", f"run{n}") for n in range(count)
    ]
    return History(tuple(faults))


def log(text: str, uptime_s: float = 1000.0) -> KernelLog:
    return KernelLog(kernel_log.read_events(text, uptime_s, 1795226227.0), 900)


def of_chrony(name: str) -> Any:
    return h.clock(
        tracking=known(read_tracking(recorded(f"chrony/{name}.tracking.csv"))),
        sources=known(read_sources(recorded(f"chrony/{name}.sources.csv"))),
    )


def before(**counters: int) -> Previous:
    return Previous("boot-n3", 1.8e9 - 9e4, {"mlx5_0:1": counters}, 3600.0)


def clock(**fields: Any) -> dict[str, Any]:
    return {"clock": h.clock(**fields)}


def gpu(position: int = 3, **fields: Any) -> dict[str, Any]:
    return {"gpus": h.with_gpu(position, **fields)}


def of_csv(name: str) -> Any:
    return parse_gpus(ended(recorded(f"nvidia-smi/{name}.gpus.csv")))


_A100 = known(gpu_health.read_details(recorded("nvidia-smi/a100-sxm-x4.q.txt")))["0000:9e:00.0"]
_NO_NVLINK = known(gpu_health.read_nvlinks(recorded("nvlink/bad_nvlink_status.txt")))
_PROCESS = GpuProcess(7, "GPU-1", 1 << 30, "python", "bob", 60.0, "python x.py")
_SAME_VENV = {"torch": "2.9.0", "nvidia-nccl-cu12": "2.27.5"}


def env(**installed: str) -> dict[str, Any]:
    return {"software": dataclasses.replace(environment(), installed={**_SAME_VENV, **installed})}


def launch_env(**variables: str) -> LaunchNeeds:
    return h.needs(env={**h.needs().env, **variables})


CASES: dict[str, list[Case]] = {
    "ssh.reachable": [bad("login refused", UNKNOWN, unreached=Unreached("auth", 0.2, "refused"))],
    "ssh.connect_time": [bad("slow login", WARN, connect_s=3.5)],
    "shell.noise": [bad("greeting", WARN, noise="Welcome")],
    "host.python": [bad("not said", UNKNOWN, python=Unknown("not said"))],
    "host.same_machine": [bad("two names", FAIL, machine=machine("boot-n4"))],
    "host.history": [
        bad("three", WARN, history=past(3)),
        bad("cannot be read", UNKNOWN, history=Unknown("node-history.jsonl cannot be read")),
    ],
    "host.limits": [bad("few files", WARN, shell_limits=ShellLimits(1024, None, 1 << 40))],
    "host.memlock": [bad("64 KiB", FAIL, shell_limits=ShellLimits(1 << 20, 65536, 1 << 40))],
    "host.shm": [bad("64 MiB", WARN, shell_limits=ShellLimits(1 << 20, None, 64 << 20))],
    "host.swap": [bad("8 GiB", WARN, memory=Memory(1 << 41, 1 << 40, 16 << 30, 8 << 30))],
    "host.memory_equal": [bad("half", WARN, memory=Memory(1 << 40, 1 << 39, 0, 0))],
    "host.blocked": [
        bad("ten minutes in nfs", FAIL, processes=ProcessTable((), (Blocked(9, "cp", "nfs_wait", 600.0),), 9)),
        bad("no scheduler file", WARN, processes=ProcessTable((), (Blocked(9, "cp", "?", Unknown("?")),), 9)),
    ],
    "host.zombies": [bad("twenty", WARN, processes=ProcessTable(("sh",) * 20, (), 99))],
    "host.load": [bad("60 on 64", WARN, load_1min=60.0)],
    "host.governor": [bad("powersave", WARN, system=System("Ubuntu 22.04", ("performance", "powersave")))],
    "host.kernel_equal": [
        bad("older", WARN, machine=dataclasses.replace(machine("boot-n3"), kernel="5.15"))
    ],
    "host.os_equal": [bad("older", WARN, system=System("Ubuntu 20.04", ("performance",)))],
    "host.kernel_log": [
        bad("machine check", FAIL, kernel_log=log("[ 5.000000] mce: [Hardware Error]: Machine check events logged")),
        bad("fatal PCIe error of a GPU", FAIL, kernel_log=log(recorded("dmesg/pcie-aer-fatal.txt"), 90100.0)),
        bad("uncorrected memory", FAIL, kernel_log=log("[ 5.000000] EDAC MC3: 1 UE memory read error on CPU_SrcID#1")),
        bad("a network card failed", FAIL, kernel_log=log("[ 5.000000] mlx5_core 0000:1a:00.0: poll_health:823:(pid 0): device's health compromised - reached miss count")),
        bad("NVLink was not set up", WARN, kernel_log=log("[ 5.000000] NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!")),
        bad("an old library of the driver", WARN, kernel_log=log("[ 5.000000] NVRM: API mismatch: the client has the version 570.148.08, but")),
        bad("a queue of a card stands", WARN, kernel_log=log("[ 5.000000] NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out")),
        bad("out of memory", WARN, kernel_log=log("[ 5.000000] Out of memory: Killed process 123 (python)")),
    ],
    "net.names": [
        bad("127.0.1.1", WARN, network=h.network(own="127.0.1.1")),
        bad("another address", FAIL, network=h.network(first="10.9.9.9")),
    ],
    "net.reachable": [bad("no route", FAIL, network=dataclasses.replace(h.network(), reach="error\tNo route to host"))],
    "net.mtu": [bad("1500", WARN, network=h.network(h.interface(mtu=1500)))],
    "net.speed": [bad("1 Gb/s", WARN, network=h.network(h.interface(speed_mbps=1000)))],
    "time.skew": [
        bad("2 s behind", FAIL, **clock(exchange=Exchange(-2.0, 0.001, 8))),
        bad("50 ms", WARN, **clock(exchange=Exchange(0.050, 0.001, 8))),
        bad("a way too long to tell", UNKNOWN, **clock(exchange=Exchange(0.1, 0.3, 8))),
    ],
    "time.step": [
        bad("back during the measurement", FAIL, **clock(moved_s=-2.5)),
        bad("forward since the previous run", WARN, previous=dataclasses.replace(before(), wall_minus_boot_s=1.8e9 - 9e4 - 1)),
        bad("back since the previous run", FAIL, previous=dataclasses.replace(before(), wall_minus_boot_s=1.8e9 - 9e4 + 1)),
    ],
    "time.log_ahead": [bad("written in the future", FAIL, **clock(log_ahead_s=30.0))],
    "time.sync": [
        bad("its own clock", FAIL, clock=of_chrony("local10")),
        bad("2.5 s off", FAIL, clock=of_chrony("bigoffset")),
        bad("stepped back", FAIL, clock=of_chrony("backwards")),
        bad("never answered", FAIL, clock=of_chrony("unreachable")),
        bad("leap=3", FAIL, clock=of_chrony("unsync")),
        bad("a false ticker", WARN, clock=of_chrony("falseticker")),
        bad("RMS offset", WARN, **clock(tracking=h.tracking(rms_offset_s=0.5))),
        bad("kernel says no", FAIL, **clock(tracking=Unknown("no chronyd"), sources=Unknown("-"), kernel_synced=False)),
        bad("status unavailable", UNKNOWN, **clock(tracking=Unknown("-"), sources=Unknown("-"), kernel_synced=Unknown("refused"))),
    ],
    "time.daemons": [bad("two", FAIL, **clock(daemons=("chronyd", "systemd-timesyn")))],
    "time.sources": [bad("another server", WARN, **clock(sources=(TimeSource("8.8.8.8", "selected", 2, 64.0, 255, 1.0, 0.0, 0.0),)))],
    "time.clocksource": [bad("hpet", WARN, **clock(clocksource="hpet"))],
    "fleet.driver_equal": [bad("older", FAIL, gpus=dataclasses.replace(
        h.gpu_facts(), gpus=tuple(dataclasses.replace(one, driver="550.90.07") for one in h.gpu_facts().gpus)))],
    "gpu.model_equal": [bad("one A100", FAIL, **gpu(name="NVIDIA A100-SXM4-80GB"))],
    "gpu.vbios_equal": [bad("another", WARN, **gpu(vbios="96.00.99"))],
    "gpu.inforom_equal": [bad("another", WARN, **gpu(inforom="G520.0999"))],
    "gpu.power_limit": [
        bad("capped to 400 W", FAIL, **gpu(power_limit_w=400.0)), bad("690 W", WARN, **gpu(power_limit_w=690.0)),
    ],
    "gpu.driver": [
        bad("one requires a reset, as recorded", FAIL, gpus=of_csv("requires-reset")),
        bad("a damaged InfoROM, as recorded", WARN, gpus=of_csv("inforom-warning")),
        bad("failed", FAIL, gpus=dataclasses.replace(h.gpu_facts(), state="failed", gpus=(), message="has failed")),
    ],
    "gpu.details": [bad("no -q", UNKNOWN, gpus=dataclasses.replace(
        h.gpu_facts(), gpus=tuple(dataclasses.replace(one, health=Unknown("no end in 10 s")) for one in h.gpu_facts().gpus)))],
    "gpu.count_majority": [bad("seven", FAIL, gpus=h.gpu_facts(7))],
    "gpu.busy": [bad("somebody", FAIL, gpus=h.gpu_facts(processes=(_PROCESS,)))],
    "gpu.ecc_mode": [bad("off", FAIL, **gpu(ecc=False)), bad("unreadable", UNKNOWN, **gpu(ecc=Unknown("ERR!")))],
    "gpu.ecc_errors": [
        bad("two uncorrected", FAIL, **gpu(uncorrected_volatile=2)),
        bad("SRAM in its life", FAIL, **gpu(sram_uncorrected_aggregate=5)),
        bad("many corrected", WARN, **gpu(corrected_volatile=30_000_000)),
    ],
    "gpu.remap": [
        bad("pending, as recorded on an A100", FAIL, **gpu(health=_A100)), bad("failed", FAIL, **gpu(remap_failure=True)),
        bad("channel repair", FAIL, **gpu(channel_repair=True)), bad("TPC repair", FAIL, **gpu(tpc_repair=True)),
        bad("rows were remapped", WARN, **gpu(remapped_uncorrectable=2)),
    ],
    "gpu.recovery": [
        bad(asked, FAIL, **gpu(recovery_action=asked))
        for asked in ("Reset", "GPU Reset Required", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain")
    ],
    "gpu.throttle": [
        bad("power brake", FAIL, **gpu(throttle=("idle", "power brake"))), bad("warm", WARN, **gpu(throttle=("sw thermal",))),
    ],
    "gpu.temperature": [
        bad("at the limit", FAIL, **gpu(margin_c=-1.0)), bad("5 degrees left", WARN, **gpu(margin_c=5.0)),
        bad("hotter than all", WARN, **gpu(temperature_c=70.0)),
    ],
    "gpu.pcie": [bad("x8", FAIL, **gpu(pcie_width=8)), bad("gen 3 under load", WARN, **gpu(pcie_gen=3, utilization_percent=99.0))],
    "gpu.nvlink": [
        bad("all inactive, as recorded", FAIL, gpus=h.gpu_facts(nvlinks=_NO_NVLINK)),
        bad("no NVLink between two", FAIL, gpus=h.gpu_facts(pairs={"0-1": "PIX"})),
    ],
    "gpu.fabric": [
        bad("manager failed", FAIL, gpus=h.gpu_facts(fabric_manager="failed")),
        bad("in progress", FAIL, **gpu(fabric_state="In Progress")),
        bad("not healthy", FAIL, **gpu(fabric_health=("Summary: Unhealthy", "Bandwidth: Degraded"))),
        bad("recovers", WARN, **gpu(fabric_health=("Route Recovery in progress: True",))),
        bad("a GB200 without a fabric", FAIL, **gpu(name="NVIDIA GB200", fabric_state=Unknown("Not Supported", is_absence=True))),
        bad("in progress in a virtual machine", WARN, gpus=dataclasses.replace(
            h.with_gpu(3, fabric_state="In Progress", virtualization="Pass-Through"), nvswitches=0)),
    ],
    "gpu.persistence": [bad("off", WARN, **gpu(persistence=False))],
    "gpu.mig": [bad("on", FAIL, **gpu(mig=True))],
    "gpu.compute_mode": [bad("exclusive", FAIL, **gpu(compute_mode="Exclusive_Process"))],
    "gpu.memory_held": [bad("40 GiB", WARN, **gpu(memory_used_bytes=40 << 30))],
    "gpu.xid": [
        bad("row remap failed, as recorded", FAIL, kernel_log=log(recorded("dmesg/xid-lines.txt"), 2400000.0)),
        bad("user code, as recorded", WARN, kernel_log=log(recorded("dmesg/oom-and-xid.log"))),
        bad("a reboot wanted, by its number", FAIL, kernel_log=log(recorded("dmesg/xid154-os-reboot.txt"), 90100.0)),
        bad("fatal, then nonfatal on one GPU", FAIL, kernel_log=log(recorded("dmesg/xid149-fatal-then-nonfatal.txt"), 90100.0)),
        bad("new numbers", FAIL, kernel_log=log(recorded("dmesg/xid-151-to-172.txt"), 90100.0)),
        bad("three days ago", WARN, kernel_log=log("[ 5.000000] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off", 3 * 86400.0)),
        bad("no right to read", UNKNOWN, kernel_log=Unknown("Operation not permitted")),
    ],
    "gpu.fell_off": [
        bad("without a number, as recorded", FAIL, kernel_log=log(recorded("dmesg/fallen-off-bus-no-xid.txt"), 2000.0)),
        bad("not initialised", FAIL, kernel_log=log("[ 5.000000] NVRM: GPU 0000:fe:00.0: RmInitAdapter failed! (0x22:0x56:894)")),
        bad("firmware is silent", FAIL, kernel_log=log("[ 5.000000] NVRM: GPU6 _kgspRpcRecvPoll: GSP RM heartbeat timed out")),
        bad("was silent three days ago", WARN, kernel_log=log("[ 5.000000] NVRM: GPU6 _kgspRpcRecvPoll: GSP RM heartbeat timed out", 3 * 86400.0)),
    ],
    "gpu.sxid": [bad("non-fatal, as recorded", WARN, kernel_log=log(recorded("dmesg/xid-lines.txt"), 2400000.0))],
    "ib.ports": [
        bad("down", FAIL, fabric=h.fabric(h.port(0), h.port(1, state="DOWN", phys_state="Polling"))),
        bad("gone", FAIL, fabric=h.fabric(h.port(0))),
    ],
    "ib.rate": [bad("half rate", FAIL, fabric=h.fabric(h.port(0, rate_gbps=200.0), h.port(1)))],
    "ib.subnet_manager": [bad("none", FAIL, fabric=h.fabric(h.port(0, state="INIT", lid=65535, sm_lid=0), h.port(1)))],
    "ib.errors": [
        bad("link_downed now", FAIL, fabric=h.fabric(h.port(0, growth={"link_downed": 1}), h.port(1))),
        bad("symbols since the previous run", WARN, previous=before(symbol_error=1)),
    ],
    "ib.flaps": [
        bad("three times, as recorded", FAIL, kernel_log=log(recorded("dmesg/ib-link-flap.syslog").replace("Aug 17", "Nov 21"))),
        bad("a port of InfiniBand three times", FAIL, kernel_log=log(recorded("dmesg/ib-port-down.txt"), 90300.0)),
        bad("Ethernet three times", WARN, kernel_log=log("[ 5.000000] ice 0000:31:00.0 eno1: NIC Link is Down\n" * 3)),
        bad("once", WARN, kernel_log=log("[ 5.000000] mlx5_core 0000:1a:00.0 ib0: Link down")),
    ],
    "ib.firmware_equal": [bad("older", WARN, fabric=h.fabric(h.port(0, firmware="28.40.1000"), h.port(1)))],
    "ib.gdr": [
        bad("no module", WARN, fabric=h.fabric(peermem=False)),
        bad("invalid context, as recorded", WARN, kernel_log=log(recorded("dmesg/kmsg-peermem.log"))),
    ],
    "ib.pcie_limited": [bad("x8 of x16, as recorded", WARN, kernel_log=log(recorded("dmesg/xid-lines.txt")))],
    "launch.ib_hca": [
        bad("not on the node", FAIL, fabric=h.fabric(h.port(0), h.port(2))),
        bad("not active", FAIL, fabric=h.fabric(h.port(0), h.port(1, state="DOWN"))),
        bad("two link layers", FAIL, fabric=h.fabric(h.port(0), h.roce(1))),
        bad("one left out", WARN, fabric=h.fabric(h.port(0), h.port(1), h.port(2))),
        bad("a prefix that takes more", WARN, launch_env(NCCL_IB_HCA="mlx5_1,mlx5_0"), fabric=h.fabric(h.port(0), h.port(1), h.port(10))),
    ],
    "launch.roce_gid": [],  # needs another good fleet, see test_cases
    "launch.ib_present": [],
    "launch.socket_ifname": [
        bad("no such interface", FAIL, network=h.network(h.interface("ens1"))),
        bad("another subnet", FAIL, network=h.network(h.interface(address="192.168.7.1/24"))),
        bad("two match", WARN, launch_env(NCCL_SOCKET_IFNAME="eth"), network=h.network(h.interface(), h.interface("eth1", "10.5.0.1/24"))),
    ],
    "launch.debug_env": [bad("blocking", WARN, system=System("Ubuntu 22.04", ("performance",), {"CUDA_LAUNCH_BLOCKING": "1"}))],
    "launch.port_free": [bad("held", FAIL, at="n1", ports={29500: Port(False, "Address already in use")})],
    "launch.port_range": [bad("ephemeral", WARN, h.needs(port=40000), at="n1"), bad("root's", FAIL, h.needs(port=80), at="n1")],
    "launch.gpus": [bad("seven for eight", FAIL, gpus=h.gpu_facts(7))],
    "launch.order": [bad("exchanged", WARN, hostname="n4")],
    "launch.files": [
        bad("missing", FAIL, files={"/data/clips.csv": FileSeen(False)}),
        bad("other size", FAIL, files={"/data/clips.csv": FileSeen(True, False, 999)}),
        bad("hangs", UNKNOWN, files={"/other": FileSeen(True)}),
    ],
    "launch.wandb": [bad("no login", WARN, at="n1", wandb=False)],
    "software.interpreter_exists": [bad("missing", FAIL, interpreter="missing", software=Unknown("not found"))],
    "software.python_equal": [bad("3.10", FAIL, software=environment("3.10.1"))],
    "software.torch_equal": [bad("older", FAIL, software=environment(torch="2.8.0"))],
    "software.colossalai_equal": [bad("older", FAIL, software=environment(colossalai="0.4.0"))],
    "software.av_known_bad": [
        bad("14.1", WARN, software=environment(av="14.1.0")),
        bad("16.1", WARN, software=environment(av="16.1.0")),
    ],
    "software.nccl_equal": [bad("older", FAIL, **env(**{"nvidia-nccl-cu12": "2.21.5"}))],
    "software.packages_equal": [bad("one package", WARN, **env(einops="0.7"))],
    "software.cuda_driver": [
        bad("CUDA 13 on driver 565", FAIL, software=dataclasses.replace(environment(), torch_cuda="13.0"),
            torch_gpus=TorchGpus(0, "The NVIDIA driver on your system is too old (found version 12070)")),
        bad("with cuda-compat", WARN, software=dataclasses.replace(environment(), torch_cuda="13.0")),
        bad("a torch for the CPU", FAIL, software=dataclasses.replace(environment(), torch_cuda=None)),
        bad("no line about CUDA", UNKNOWN, software=dataclasses.replace(environment(), torch_cuda=Unknown("version.py"))),
    ],
    "software.torch_gpus": [
        bad("fabric manager is down", FAIL, torch_gpus=TorchGpus(0, "Error 802: system not yet initialized")),
        bad("six of eight", FAIL, torch_gpus=TorchGpus(6)),
        bad("import hangs", UNKNOWN, torch_gpus=Unknown("no end in 20 s, killed")),
    ],
    "software.git_commit": [bad("another", FAIL, git=GitState("f" * 40, ()))],
    "software.git_dirty": [bad("changed", WARN, git=GitState(h.COMMIT, ("train.py",)))],
    "storage.free_space": [bad("9 GiB for 20", FAIL, disks={"/data": h.disk(0.991, path="/data")})],
    "storage.disks": [
        bad("92 %", WARN, mounts=(dataclasses.replace(h.ROOT, disk=h.disk(0.92)), h.SHARED)),
        bad("99 % of 100 GiB", FAIL, mounts=(dataclasses.replace(h.ROOT, disk=h.disk(0.99, total_gib=100)), h.SHARED)),
    ],
    "storage.inodes": [bad("96 %", FAIL, mounts=(dataclasses.replace(h.ROOT, disk=h.disk(inodes_used=0.96)), h.SHARED))],
    "storage.mounts": [
        bad("hangs", FAIL, mounts=(h.ROOT, dataclasses.replace(h.SHARED, disk=Unknown("no answer in 4 s")))),
        bad("stale FUSE", FAIL, mounts=(h.ROOT, h.SHARED, Mount("/f", "fuse.sshfs", "x:", False, Unknown("Transport endpoint is not connected")))),
    ],
    "storage.mounts_equal": [bad("not mounted", WARN, mounts=(h.ROOT,))],
    "storage.token": [
        bad("another folder", FAIL, token="other"), bad("missing", FAIL, token=Unknown("No such file")), bad("slow", WARN, token_s=3.0),
    ],
}  # fmt: skip

_ROCE = {name: {"fabric": h.fabric(h.roce(0), h.roce(1))} for name in h.NAMES}
_GID = launch_env(NCCL_IB_GID_INDEX="3")
ROCE_FLEET = h.fleet(_GID, **_ROCE)
CASES["launch.roce_gid"] = [
    Case("index of another kind", FAIL, h.fleet(_GID, **{**_ROCE, "n3": {"fabric": h.fabric(h.roce(0, "IB/RoCE v1"))}})),
]  # fmt: skip
_OFF = h.needs(env={"NCCL_IB_DISABLE": "1"})
_BARE = {name: {"fabric": h.Fabric()} for name in h.NAMES if name != "n3"}
CASES["launch.ib_present"] = [Case("switched off", WARN, h.fleet(_OFF, **_BARE))]
for _id, _made in active_cases.CASES.items():
    CASES[_id] = [Case(name, verdict, fleet) for name, verdict, fleet in _made]
GOOD: dict[str, Fleet] = {
    "launch.roce_gid": ROCE_FLEET,
    **dict.fromkeys(active_cases.CASES, active_cases.fleet()),
}
"""Where the plain healthy fleet would only SKIP."""
