"""Census: limits and settings that programs of this user get on a node."""

from __future__ import annotations

import os
import re

from clusterctl.payload.prelude import read_text

VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_INJECTION64_PATH",
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
    "NCCL_DEBUG",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "TORCH_DISTRIBUTED_DEBUG",
)


def read_limits():
    """key=value lines of this session's limits; -1 is unlimited."""
    import resource

    names = {"nofile": "RLIMIT_NOFILE", "nproc": "RLIMIT_NPROC", "memlock": "RLIMIT_MEMLOCK"}
    lines = [
        "%s=%d" % (name, resource.getrlimit(getattr(resource, constant))[0])
        for name, constant in names.items()
    ]
    try:
        room = os.statvfs("/dev/shm")
        lines.append("shm=%d" % (room.f_blocks * room.f_frsize))
        lines.append("shm_free=%d" % (room.f_bavail * room.f_frsize))
    except OSError:
        pass
    return "\n".join(lines)


def describe_system():
    """`key TAB value` lines: distribution, governors of the processors, variables."""
    lines = []
    try:
        match = re.search(r'^PRETTY_NAME="?([^"\n]*)', read_text("/etc/os-release"), re.MULTILINE)
        lines.append("distribution\t" + (match.group(1) if match else ""))
    except OSError:
        lines.append("distribution\t")
    governors = set()
    top = "/sys/devices/system/cpu"
    for name in os.listdir(top):
        if re.match(r"cpu\d+$", name):
            try:
                governors.add(read_text("%s/%s/cpufreq/scaling_governor" % (top, name)).strip())
            except OSError:
                continue  # a virtual machine has none
    lines += ["governor\t" + name for name in sorted(governors)]
    lines += ["environ\t%s=%s" % (n, os.environ[n][:200]) for n in VARIABLES if n in os.environ]
    return "\n".join(lines)
