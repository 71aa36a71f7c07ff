"""Census: limits and environment of this user's programs, and the distribution."""

import os
import re

from clusterctl.payload.proc_files import or_none, read_word

VARIABLES = """CUDA_LAUNCH_BLOCKING CUDA_INJECTION64_PATH NSIGHT_CUDA_DEBUGGER CUDA_AUTO_BOOST
CUDA_ENABLE_COREDUMP_ON_EXCEPTION CUDA_DEVICE_WAITS_ON_EXCEPTION CUDA_PROFILE COMPUTE_PROFILE
OPENCL_PROFILE NCCL_DEBUG NCCL_P2P_DISABLE NCCL_SHM_DISABLE TORCH_DISTRIBUTED_DEBUG""".split()


def read_limits():
    """key=value lines of this session's limits; -1 is unlimited."""
    import resource

    lines = []
    for name in ("nofile", "nproc", "memlock"):
        limit = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[0]
        lines.append("%s=%d" % (name, limit))
    found = or_none(os.statvfs, "/dev/shm")
    if found:
        lines.append("shm=%d" % (found.f_blocks * found.f_frsize))
        lines.append("shm_free=%d" % (found.f_bavail * found.f_frsize))
    return "\n".join(lines)


def describe_system():
    """`key TAB value` lines: distribution, governors of the processors, variables."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', read_word("/etc/os-release", ""), re.MULTILINE)
    top = "/sys/devices/system/cpu"
    cores = [name for name in os.listdir(top) if re.match(r"cpu\d+$", name)]
    governors = {read_word("%s/%s/cpufreq/scaling_governor" % (top, name)) for name in cores}
    lines = ["distribution\t" + (match.group(1) if match else "")]
    lines += ["governor\t" + name for name in sorted(filter(None, governors))]
    lines += ["environ\t%s=%s" % (n, os.environ[n][:200]) for n in VARIABLES if n in os.environ]
    return "\n".join(lines)
