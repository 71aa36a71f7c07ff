"""Which processes of this node hold a GPU, and how much of its memory.

nvidia-smi names processes by their ids on the host. In a container the same number is another process, or
none: there only what has one of the devices open counts, and memory is proved by GPU, not by process.
"""

import collections
import os
import re
import time

from clusterctl.payload.jobs.processes import all_pids, process
from clusterctl.payload.prelude import section

DEVICE = re.compile(r"nvidia\d+$")
HOST_PIDS = (
    "pid:[4026531836]"  # the namespace that a kernel starts with; the number is fixed in its source
)
GPU_QUERY_S = 10.0
FREE_MIB = 1024  # a driver keeps some hundred for itself


def has_host_pids():
    """Whether process ids mean here what they mean to the driver."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST_PIDS
    except FileNotFoundError:
        return True  # a kernel without such namespaces
    except OSError:
        return False


def has_devices():
    return any(DEVICE.match(name) for name in os.listdir("/dev"))


def ask_nvidia_smi(query, header, timeout_s):
    """(rows of cells, ""), or (None, why not). (None, "") where there is no GPU and no tool to ask.

    With its header: no row is then an answer, and no word is none.
    """
    answer = section("gpu_processes", ["nvidia-smi", query, "--format=csv,nounits"], timeout_s)
    lines = [line.strip() for line in (answer["out"] + answer["err"]).splitlines() if line.strip()]
    said = lines[-1][:200] if lines else "no word"
    if answer["state"] == "missing" and not has_devices():
        return None, ""
    if answer["state"] != "ended":
        return None, "nvidia-smi: %s" % said
    if answer["rc"] != 0 or answer.get("truncated"):
        no_gpu = re.search("no devices were found", answer["out"], re.IGNORECASE)
        return (None, "") if no_gpu else (None, "nvidia-smi: exit %s: %s" % (answer["rc"], said))
    if not lines or not lines[0].startswith(header):
        return None, "nvidia-smi: cannot read %r" % said
    return [[word.strip() for word in line.split(",")] for line in lines[1:]], ""


def gpu_memory(timeout_s=GPU_QUERY_S):
    """({pid: bytes of GPU memory, None where the driver does not tell}, ""), else as `ask_nvidia_smi`."""
    if not has_host_pids():
        return None, "nvidia-smi cannot name the processes of a container"
    rows, why = ask_nvidia_smi("--query-compute-apps=pid,used_memory", "pid", timeout_s)
    if rows is None:
        return None, why
    held = collections.defaultdict(list)  # type: Any
    for words in rows:
        if len(words) != 2 or not words[0].isdigit():
            return None, "nvidia-smi: cannot read %r" % ", ".join(words)[:200]
        held[int(words[0])].append(int(words[1]) << 20 if words[1].isdigit() else None)
    return {pid: None if None in sizes else sum(sizes) for pid, sizes in held.items()}, ""


def device_holders():
    """Processes with a GPU's device open, as far as this user may see it."""
    holders = set()
    for pid in all_pids():
        folder = "/proc/%d/fd" % pid
        try:
            links = [os.readlink("%s/%s" % (folder, name)) for name in os.listdir(folder)]
        except OSError:
            continue  # of another user, or just ended
        if any(re.match(r"/dev/nvidia\d+$", link) for link in links):
            holders.add(pid)
    return holders


def gpu_holders():
    """(processes on a GPU, notes): those that nvidia-smi names, and those with a device open."""
    held, why = gpu_memory()
    notes = ["only processes with a GPU's device open are taken: %s" % why] if why else []
    return set(held or ()) | device_holders(), notes


def memory_of(pids):
    """{pid: bytes of GPU memory}; None where that is not known, or where there is no GPU."""
    held, _ = gpu_memory()
    if held is not None:
        return {pid: held.get(pid, 0) for pid in pids}
    holders = device_holders()
    return {pid: None if pid in holders or has_host_pids() else 0 for pid in pids}


def prove_freed(ended, timeout_s):
    """(rows, why): GPU memory that processes hold although they have ended, and why nobody can tell.

    Both empty: it is proved that there is none.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(1.0, deadline - time.monotonic())
        rows, why = _left_of(ended, left_s) if has_host_pids() else _left_in_container(left_s)
        if not rows and not why or time.monotonic() > deadline:
            return rows, why
        time.sleep(0.25)


def _left_of(ended, timeout_s):
    held, why = gpu_memory(timeout_s)
    # An id that has been given to another process since is that one's.
    gone = {pid for pid in ended if process(pid) is None or process(pid).state in "ZX"}
    rows = [
        {"pid": pid, "bytes": size} for pid, size in sorted((held or {}).items()) if pid in gone
    ]
    return rows, why


def _left_in_container(timeout_s):
    """Where ids say nothing: no GPU has more in use than a driver keeps for itself."""
    rows, why = ask_nvidia_smi("--query-gpu=memory.used", "memory.used", timeout_s)
    if rows is None:
        return [], why
    if not all(words[0].isdigit() for words in rows):
        return [], "nvidia-smi does not tell the memory in use"
    used = [int(words[0]) for words in rows]
    if max(used, default=0) <= FREE_MIB:
        return [], ""
    return (
        [],
        "%d MiB are in use on a GPU, and nvidia-smi cannot name the processes of a container"
        % max(used),
    )
