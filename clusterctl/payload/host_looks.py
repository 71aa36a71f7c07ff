"""Census: clock, fabric, kernel log, limits, mounts, network and processes of a node.

What needs more rights than this user has ends as an error with its reason; with `sudo` in the
arguments the tools that are named here are tried with `sudo -n`, which never asks for a password.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import stat
import time

from clusterctl.payload.children import fork_child
from clusterctl.payload.prelude import ARGS, SECTIONS, call, read_text, section

# The same words as checks.parse.kernel_log.INTERESTING; a test compares them. Each begins with a
# letter as it stands: then a line is searched in 1 us, where one [Ll] among them makes it 2.4.
INTERESTING = (
    r"NVRM|SXid|fallen off|Out of memory|oom-kill|oom_reaper|Hardware Error|Machine check|lockup"
    r"|LOCKUP|blocked for more|read-only|nvme|I/O error|medium error|not responding|arrier"
    r"|Link (?:is )?(?:[Dd]own|[Uu]p)|link (?:is )?(?:[Dd]own|[Uu]p)|peermem|segfault|PCIe bandwidth"
)
TIME_DAEMONS = (
    "chronyd", "ntpd", "ntpsec-ntpd", "systemd-timesyn", "openntpd", "ptp4l", "phc2sys",
    "timemaster",
)  # fmt: skip
VARIABLES = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NSIGHT_CUDA_DEBUGGER", "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_DEVICE_WAITS_ON_EXCEPTION", "CUDA_PROFILE",
    "COMPUTE_PROFILE", "OPENCL_PROFILE", "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
    "TORCH_DISTRIBUTED_DEBUG",
)  # fmt: skip
IB = "/sys/class/infiniband"
IB_TOP = ("fw_ver", "board_id", "hca_type", "node_guid", "device/numa_node")
IB_PORT = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
YOUNG_S = 10.0  # too young to hang
MOUNTS = 64  # that are measured; each takes a child
LOG_FILES = 5000  # of /var/log that are looked at; what is deeper or more is archives and pods
LOG_LINES = 2000  # of the kernel's log that go home
GIDS = 16  # entries of a GID table that are read; drivers keep 128 or 256, nearly all empty


def look_at_clock(timeout_s):
    call("clocksource", lambda: read_text(CLOCKSOURCE), 2.0)
    kernel = call("adjtimex", read_adjtimex, 2.0)
    call("log_ahead", newest_log, 3.0)
    patience_s = min(3.0, timeout_s)
    if section("chrony_tracking", ["chronyc", "-c", "-n", "tracking"], patience_s)["rc"] == 0:
        section("chrony_sources", ["chronyc", "-c", "-n", "sources"], patience_s)
    else:
        section("ntpq", ["ntpq", "-pn"], patience_s)
        if kernel["state"] != "ended":  # it reads the same bit, by way of two daemons
            section("timedatectl", ["timedatectl", "show", "-p", "NTPSynchronized"], patience_s)


CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def read_adjtimex():
    """What the kernel thinks of its clock; status bit 0x40 is "not synchronised"."""
    import ctypes
    import struct

    buffer = ctypes.create_string_buffer(512)  # struct timex with modes 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    _, _, _, maxerror, esterror, status = struct.unpack_from("iqqqqi", buffer.raw)
    return "state=%d status=%d maxerror=%d esterror=%d" % (state, status, maxerror, esterror)


def newest_log():
    """Seconds by which the newest log file lies ahead of now: the clock has stood there before."""
    newest = max(log_times("/var/log"), default=None)
    return "none" if newest is None else "%.3f" % (newest - time.time())


def log_times(top):
    """Modification times of the files of a folder and of the two levels below it, nearest first."""
    folders, left = [top], LOG_FILES
    for _ in range(3):
        below = []
        for folder in folders:
            try:
                names = os.listdir(folder)
            except OSError:
                continue  # of another user
            for name in names[: max(0, left)]:
                left -= 1
                path = folder + "/" + name
                try:
                    facts = os.lstat(path)
                except OSError:
                    continue  # it has gone
                if stat.S_ISDIR(facts.st_mode):
                    below.append(path)
                else:
                    yield facts.st_mtime
        folders = below


def look_at_fabric(growth_s):
    begun = time.monotonic()
    if call("ib", read_infiniband, 5.0)["state"] == "ended":
        time.sleep(growth_s)
        call("ib_again", lambda: read_counters(begun), 5.0)


def read_infiniband():
    """All that matters of /sys/class/infiniband as `path TAB value` lines."""
    lines = []
    try:
        modules = read_text("/proc/modules")
        lines.append("#peermem\t" + ("yes" if "nvidia_peermem" in modules else "no"))
    except OSError:
        pass
    devices = sorted(os.listdir(IB))
    lines.append("#devices\t%d" % len(devices))
    for device in devices:
        top = "%s/%s" % (IB, device)
        lines += values(top, IB_TOP)
        try:
            lines.append("%s/netdev\t%s" % (top, sorted(os.listdir(top + "/device/net"))[0]))
        except (OSError, IndexError):
            pass
        for port in ports_of(device):
            here = "ports/%s/" % port
            lines += values(top, [here + name for name in IB_PORT])
            lines += counters(top, here)
            for number in range(GIDS):
                gid = values(top, ["%sgids/%d" % (here, number)])
                if gid and gid[0].split("\t")[1].strip("0:"):
                    names = ("types", "ndevs")
                    more = ["%sgid_attrs/%s/%d" % (here, name, number) for name in names]
                    lines += gid + values(top, more)
    return "\n".join(lines)


def values(top, names):
    found = []
    for name in names:
        try:
            found.append("%s/%s\t%s" % (top, name, read_text(top + "/" + name, 400).strip()))
        except OSError:
            continue  # not every driver has every file
    return found


def counters(top, here):
    found = []
    for folder in ("counters", "hw_counters"):
        try:
            names = sorted(os.listdir("%s/%s%s" % (top, here, folder)))
        except OSError:
            continue
        found += values(top, ["%s%s/%s" % (here, folder, name) for name in names])
    return found


def read_counters(begun):
    lines = ["#seconds\t%.3f" % (time.monotonic() - begun)]
    for device in sorted(os.listdir(IB)):
        for port in ports_of(device):
            lines += counters("%s/%s" % (IB, device), "ports/%s/" % port)
    return "\n".join(lines)


def ports_of(device):
    """None where the card went away meanwhile: the head counts cards, and misses it."""
    try:
        return sorted(os.listdir("%s/%s/ports" % (IB, device)))
    except OSError:
        return []


def look_at_kernel_log(timeout_s, sudo):
    """dmesg, else the journal, else dmesg by sudo; only lines that mean something go home."""
    ways = [["dmesg"], ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"]]
    if sudo:
        ways.append(["sudo", "-n", "dmesg"])
    first = None
    for argv in ways:
        # The newest lines say what is wrong now; of a log that is longer than this they are kept.
        answer = section("kernel_log", argv, timeout_s, max_bytes=8 << 20, newest=True)
        if answer["rc"] == 0 and answer["out"].strip():
            keep_what_matters(answer)
            return
        first = first or answer
    SECTIONS["kernel_log"] = first


def keep_what_matters(answer):
    """Of a log's lines those that mean something, behind how many there were and the oldest of all."""
    lines = answer["out"].splitlines()
    if answer.get("truncated"):
        del lines[:1]  # a part of one
    wanted = re.compile(INTERESTING)
    kept = [line for line in lines if wanted.search(line)]
    first = lines[0][:200]
    if len(kept) > LOG_LINES:
        kept = kept[-LOG_LINES:]
        first, answer["truncated"] = kept[0][:200], True
    answer["out"] = "#lines\t%d\n#first\t%s\n%s" % (len(lines), first, "\n".join(kept))


def look_at_processes(growth_s):
    call("processes", lambda: list_processes(growth_s), growth_s + 5.0)


def list_processes(growth_s):
    """`daemon NAME PID`, `zombie NAME`, `blocked PID NAME SINCE WHERE`, `count N`, `hidden WHY` lines."""
    before = scan_processes()
    time.sleep(growth_s)
    lines = ["count\t%d" % len(before)]
    if 1 not in before:  # /proc is mounted with hidepid
        lines.append("hidden\tother users' processes cannot be seen here")
    for pid, (name, state, switches) in sorted(before.items()):
        if name in TIME_DAEMONS:
            lines.append("daemon\t%s\t%d" % (name, pid))
        if state not in "DZ":
            continue
        now = scan_one(pid)
        if now is None or now[1] != state:
            continue
        if state == "Z":
            lines.append("zombie\t%s" % name)
        elif now[2] == switches:  # it has not run in between
            since = blocked_since(pid)
            if scan_one(pid) == now:  # nor ended while we asked
                lines.append("blocked\t%d\t%s\t%s\t%s" % ((pid, name) + since))
    return "\n".join(lines)


def scan_processes():
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            seen = scan_one(int(name))
            if seen is not None:
                found[int(name)] = seen
    return found


def scan_one(pid):
    """(name, state letter, context switches where it sleeps in the kernel) of a process."""
    try:
        head, _, tail = read_text("/proc/%d/stat" % pid, 512).rpartition(")")
        name, state = " ".join(head.partition("(")[2].split()), tail.split()[0]
        if state != "D":
            return name, state, ""
        status = read_text("/proc/%d/status" % pid, 8192)
        return name, state, "".join(re.findall(r"ctxt_switches:\s*(\d+)", status))
    except (OSError, IndexError):
        return None  # it has ended


def blocked_since(pid):
    """(seconds since it last ran or "?", kernel function)."""
    last, now, age = last_run(pid), last_run("self"), age_of(pid)
    since = "?"
    if last and now:
        since = "%.0f" % max(0.0, now - last)
    elif age is not None and age < YOUNG_S:
        since = "%.0f" % age  # the kernel forgets when it last ran as it moves to another CPU
    try:
        return since, read_text("/proc/%d/wchan" % pid, 80).strip() or "?"
    except OSError:
        return since, "?"


def age_of(pid):
    """Seconds since a process was started."""
    try:
        started = read_text("/proc/%d/stat" % pid, 512).rpartition(")")[2].split()[19]
        uptime = float(read_text("/proc/uptime", 80).split()[0])
        return uptime - int(started) / float(os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return None


def last_run(pid):
    """When a process last had a CPU, by the scheduler's own clock, which is no other clock.

    0 after a move to another CPU on which it has not run yet.
    """
    try:
        match = re.search(r"se\.exec_start\s*:\s*([\d.]+)", read_text("/proc/%s/sched" % pid, 2048))
    except OSError:
        return None  # a kernel without CONFIG_SCHED_DEBUG
    return float(match.group(1)) / 1000 if match else None


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


NO_ROOM = (
    "squashfs", "iso9660", "fusectl", "fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal",
    "fuse.snapfuse", "autofs",
)  # fmt: skip
NETWORK_KINDS = (
    "nfs", "fuse", "cifs", "smb", "ceph", "9p", "lustre", "beegfs", "gpfs", "wekafs", "glusterfs",
    "virtiofs",
)  # fmt: skip


def room_of(path):
    room = os.statvfs(path)
    return {
        "path": path, "free": room.f_bavail * room.f_frsize, "total": room.f_blocks * room.f_frsize,
        "inodes_free": room.f_favail, "inodes": room.f_files,
    }  # fmt: skip


def measure_mounts(timeout_s):
    """One JSON line for each file system, from a child each: a dead server stops only its own."""
    deadline = time.monotonic() + timeout_s
    children = {}  # type: dict
    lines = []
    for about in list_mounts():
        if len(children) == MOUNTS:
            lines.append(
                json.dumps(dict(about, error="one of more than %d, not measured" % MOUNTS))
            )
            continue
        pid, pipe = fork_child(lambda: json.dumps(measure_mount(about)))
        children[pipe] = (pid, about)
    while children and time.monotonic() < deadline:
        for pipe in select.select(list(children), [], [], 0.1)[0]:
            text = os.read(pipe, 65536).decode("utf-8", "replace")
            pid, about = children.pop(pipe)
            os.waitpid(pid, 0)
            lines.append(text if text[:1] == "{" else json.dumps(dict(about, error=text or "died")))
    for pid, about in children.values():
        lines.append(json.dumps(dict(about, error="no answer in %g s" % timeout_s)))
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        except OSError:
            pass
    return "\n".join(lines)


def measure_mount(about):
    try:
        writable = not about["read_only"]
        about.update(room_of(about["path"]), asked=about["path"], writable=writable, is_folder=True)
    except OSError as error:
        about["error"] = error.strerror
    return about


def list_mounts():
    """Network mounts, and local file systems once each by their shortest path."""
    chosen = {}  # type: dict
    for line in read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) < 6 or len(kind) < 2 or kind[0] in NO_ROOM:
            continue
        path = re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), words[4])
        network = kind[0].startswith(NETWORK_KINDS)
        if not (network or kind[1].startswith("/dev/") or path in ("/", "/tmp")):
            continue
        if path.startswith(("/boot", "/snap", "/proc", "/sys", "/dev/")):
            continue
        key = (words[2], kind[1] if network else "")
        if key not in chosen or len(path) < len(chosen[key]["path"]):
            chosen[key] = {
                "path": path, "kind": kind[0], "source": kind[1], "read_only": "ro" in words[5].split(","),
            }  # fmt: skip
    return sorted(chosen.values(), key=lambda about: about["path"])


def look_at_network(timeout_s, names):
    call("network", list_interfaces, 3.0)
    section("addresses", ["ip", "-o", "addr", "show"], timeout_s)
    for name in names:
        call("name:" + name, lambda: resolve(name), min(5.0, timeout_s))
    if ARGS.get("reach"):
        address, port = ARGS["reach"]
        call("reach", lambda: reach(address, port, 3.0), 4.0)


def reach(address, port, timeout_s):
    """connected, refused (somebody is there), or why not: the way to the node where ranks meet."""
    import socket

    try:
        socket.create_connection((address, port), timeout_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "error\t%s" % (error.strerror or error)
    return "connected"


def list_interfaces():
    """name, up or down, MTU, speed in Mb/s, whether a device stands behind it."""
    top = "/sys/class/net"
    lines = []
    for name in sorted(os.listdir(top)):
        here = "%s/%s" % (top, name)
        found = dict(line.split("\t") for line in values(here, ("operstate", "mtu", "speed")))
        cells = [found.get("%s/%s" % (here, key), "?") for key in ("operstate", "mtu", "speed")]
        lines.append("\t".join([name] + cells + ["1" if os.path.exists(here + "/device") else "0"]))
    return "\n".join(lines)


def resolve(name):
    """Addresses of a name as this node sees them; "@" is the node's own name."""
    import socket

    asked = os.uname().nodename if name == "@" else name
    try:
        found = socket.getaddrinfo(asked, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        return "error\t%s" % error
    return "\n".join(sorted({str(item[4][0]) for item in found}))


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
