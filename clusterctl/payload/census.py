"""What a node is and has: GPUs, processes on them, memory, disks, an interpreter, free ports.

Arguments, all optional: tool_timeout_s, paths (disks to measure), python (an interpreter to
question), ports (to try). Read-only. Raw text goes home, the head parses it.
"""

from __future__ import annotations

import re
from functools import partial

GPU_FIELDS = (
    "index,uuid,name,driver_version,pci.bus_id,power.draw,power.limit,"
    "memory.used,memory.total,utilization.gpu,temperature.gpu"
)
PROCESS_FIELDS = "gpu_uuid,pid,used_memory,process_name"

# Asks an environment for its versions without importing anything heavy: torch takes seconds.
PYTHON_CODE = """
import json, sys
try:
    from importlib import metadata, util
except ImportError:
    metadata = util = None
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except Exception:
        found[name] = None
cuda = None
try:
    folder = util.find_spec("torch").submodule_search_locations[0]
    for line in open(folder + "/version.py"):
        if line.startswith("cuda"):
            cuda = line.split("=", 1)[1].strip().strip("'\\"")
except Exception:
    pass
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix,
    "python": "%d.%d.%d" % sys.version_info[:3], "packages": found, "torch_cuda": cuda}))
"""
PACKAGES = ("torch", "colossalai", "av", "transformers", "diffusers", "numpy", "clusterctl")

# In a child of its own: statfs on a dead network mount sleeps in the kernel for ever.
DISK_CODE = """
import json, os, sys
path = asked = os.path.abspath(sys.argv[1])
while not os.path.exists(path) and path != "/":
    path = os.path.dirname(path)
s = os.statvfs(path)
print(json.dumps({"asked": asked, "path": path, "free": s.f_bavail * s.f_frsize,
    "total": s.f_blocks * s.f_frsize, "inodes_free": s.f_favail, "inodes": s.f_files,
    "writable": os.access(path, os.W_OK), "is_folder": os.path.isdir(path)}))
"""


def main():
    timeout_s = ARGS.get("tool_timeout_s", 10.0)
    tasks = [
        lambda: ask_nvidia_smi(timeout_s),
        lambda: call("pci", list_nvidia_pci, 3.0),
        lambda: call("nvidia_proc", list_nvidia_proc, 3.0),
        lambda: call("meminfo", lambda: read_text("/proc/meminfo", 8192), 3.0),
        lambda: call("loadavg", lambda: read_text("/proc/loadavg"), 3.0),
        lambda: call("machine", describe_machine, 3.0),
    ]
    tasks += [partial(ask_disk, path, timeout_s) for path in ARGS.get("paths", ())]
    tasks += [partial(ask_port, port) for port in ARGS.get("ports", ())]
    if ARGS.get("python"):
        tasks.append(lambda: ask_python(ARGS["python"], timeout_s))
    together(tasks)
    finish()


def ask_nvidia_smi(timeout_s):
    query = ["nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv"]
    answer = section("gpus", query, timeout_s)
    if answer["state"] != "ended":
        return  # a second one would hang beside the first
    query = ["nvidia-smi", "--query-compute-apps=" + PROCESS_FIELDS, "--format=csv"]
    text = section("gpu_processes", query, timeout_s)["out"]
    call("gpu_owners", lambda: describe_processes(text), 3.0)


def describe_processes(text):
    """pid, uid, user, age in seconds, command line of each number in `text` that is a process."""
    ticks = os.sysconf("SC_CLK_TCK")
    uptime_s = float(read_text("/proc/uptime").split()[0])
    lines = []
    for pid in sorted({int(number) for number in re.findall(r"\b\d{1,10}\b", text)}):
        try:
            uid = os.stat("/proc/%d" % pid).st_uid
            stat = read_text("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()
            words = read_text("/proc/%d/cmdline" % pid, 400).split("\0")
        except (OSError, IndexError):
            continue  # a number that is no process (memory), or one that has just ended
        age_s = uptime_s - int(stat[19]) / ticks
        command = " ".join(words).strip().replace("\n", " ").replace("\t", " ")
        lines.append("%d\t%d\t%s\t%.0f\t%s" % (pid, uid, user_name(uid), age_s, command[:200]))
    return "\n".join(lines)


def list_nvidia_pci():
    """Address, class and device of each NVIDIA display device that the kernel sees on PCI."""
    folder = "/sys/bus/pci/devices"
    lines = []
    for address in sorted(os.listdir(folder)):
        try:
            vendor = read_text("%s/%s/vendor" % (folder, address)).strip()
            kind = read_text("%s/%s/class" % (folder, address)).strip()
            device = read_text("%s/%s/device" % (folder, address)).strip()
        except OSError:
            continue  # it went away while we looked
        if vendor == "0x10de" and kind.startswith("0x03"):
            lines.append("%s %s %s" % (address, kind, device))
    return "\n".join(lines)


def list_nvidia_proc():
    """Driver version line, then the devices that the driver has taken."""
    version = read_text("/proc/driver/nvidia/version").splitlines()[0]
    return "\n".join([version] + sorted(os.listdir("/proc/driver/nvidia/gpus")))


def describe_machine():
    """key=value lines: what tells whether two names are one machine, and what kind it is."""
    facts = {"kernel": os.uname().release, "cpus": str(os.cpu_count())}
    try:
        facts["machine_id"] = read_text("/etc/machine-id").strip()
    except OSError:
        pass  # containers have none
    for name in ("pid", "net", "uts"):
        facts["ns_" + name] = os.readlink("/proc/self/ns/" + name)
    return "\n".join("%s=%s" % item for item in sorted(facts.items()))


def ask_disk(path, timeout_s):
    section("disk:" + path, [sys.executable, "-I", "-S", "-c", DISK_CODE, path], timeout_s)


def ask_python(python, timeout_s):
    # Twice the time: the first start of an environment on a shared folder reads many small files.
    argv = [python, "-B", "-c", PYTHON_CODE]
    section("python", argv + list(PACKAGES), 2 * timeout_s)


def ask_port(port):
    call("port:%d" % port, lambda: try_port(port), 3.0)


def try_port(port):
    """The word free, or who listens there: a rendezvous store binds all addresses with SO_REUSEADDR."""
    import socket

    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in (97, 99):
                continue  # EAFNOSUPPORT, EADDRNOTAVAIL: IPv6 is switched off
            return "%s %s" % (error.strerror, find_listener(port))
        finally:
            probe.close()
    return "free"


def find_listener(port):
    """Process that listens on a port, as far as this user may see it."""
    wanted = ":%04X" % port
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = read_text(table, 4 << 20).splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            if words[1].endswith(wanted) and words[3] == "0A":
                inodes.add("socket:[%s]" % words[9])
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = "/proc/%s/fd" % pid
        try:
            links = [os.readlink("%s/%s" % (folder, name)) for name in os.listdir(folder)]
        except OSError:
            continue  # of another user, or just ended
        if inodes.intersection(links):
            words = read_text("/proc/%s/cmdline" % pid, 200).split("\0")
            return "by pid %s: %s" % (pid, " ".join(words).strip())
    return "by a process that this user may not see" if inodes else ""
