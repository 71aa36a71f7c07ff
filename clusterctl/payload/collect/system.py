"""Census: limits, settings, interfaces, names and routes of this user's programs; kernel log."""

import os
import re

from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import or_none, read_word
from clusterctl.payload.tools import SECTIONS, call, section

LOG_LINES = 2000  # of the kernel's log that are sent
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


def look_at_network(timeout_s, names):
    call("network", list_interfaces, 3.0)
    section("addresses", ["ip", "-o", "addr", "show"], timeout_s)
    for name in names:
        call("name:" + name, lambda: resolve(name), min(5.0, timeout_s))
    if ARGS.get("reach"):
        address, port = ARGS["reach"]
        call("reach", lambda: reach(address, port, 3.0), 4.0)


def reach(address, port, timeout_s):
    """connected, refused (the node answers), or why not: the way to where ranks meet."""
    import socket

    try:
        socket.create_connection((address, port), timeout_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "error\t%s" % (error.strerror or error)
    return "connected"


def list_interfaces():
    """name, up or down, MTU, speed in Mb/s, whether it has a device."""
    lines = []
    for name in sorted(os.listdir("/sys/class/net")):
        top = "/sys/class/net/%s/" % name
        cells = [read_word(top + key, "?") for key in ("operstate", "mtu", "speed")]
        lines.append("\t".join([name, *cells, "1" if os.path.exists(top + "device") else "0"]))
    return "\n".join(lines)


def resolve(name):
    """Addresses of a name as this node resolves it; "@" is the node's own name."""
    import socket

    try:
        host = os.uname().nodename if name == "@" else name
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        return "error\t%s" % error
    return "\n".join(sorted({str(item[4][0]) for item in found}))


def look_at_kernel_log(timeout_s, sudo, wanted):
    """dmesg, else the journal, else dmesg by sudo.

    Sends the lines in which `wanted` is found, after the number of all and the oldest of them.
    """
    ways = ["dmesg", "journalctl -k -b -q --no-pager -o short-monotonic", "sudo -n dmesg"]
    first = None
    for way in ways if sudo else ways[:2]:
        # Of a longer log the newest lines are kept.
        answer = section("kernel_log", way.split(), timeout_s, max_bytes=8 << 20, newest=True)
        if answer["rc"] == 0 and answer["out"].strip():
            lines = answer["out"].splitlines()[1 if answer.get("truncated") else 0 :]
            kept = list(filter(re.compile(wanted).search, lines))
            first = lines[0][:200]
            if len(kept) > LOG_LINES:
                kept = kept[-LOG_LINES:]
                first, answer["truncated"] = kept[0][:200], True
            answer["out"] = "#lines\t%d\n#first\t%s\n%s" % (len(lines), first, "\n".join(kept))
            return
        first = first or answer
    SECTIONS["kernel_log"] = first
