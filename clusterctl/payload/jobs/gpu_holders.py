"""Which processes of this node hold a GPU, and how much of its memory.

nvidia-smi reports process ids of the host. In a container the same number is another process, or
none: there only processes with an open device count, and memory is checked by GPU.
"""

import collections
import os
import re
import time

from clusterctl.payload.jobs.processes import process
from clusterctl.payload.proc_files import all_pids, open_links
from clusterctl.payload.tools import section

HOST_PIDS = "pid:[4026531836]"  # the initial namespace; the number is fixed in the kernel's source
GPU_QUERY_S = 10.0
FREE_MIB = 1024  # a driver keeps some hundred for itself


def has_host_pids():
    """Whether process ids are the driver's."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST_PIDS
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # a kernel without such namespaces


def ask_nvidia_smi(query, header, timeout_s):
    """(rows of cells, ""), or (None, why not). (None, "") where there is no GPU and no tool."""
    # With its header, so that no rows and no output differ.
    answer = section("gpu_processes", ["nvidia-smi", query, "--format=csv,nounits"], timeout_s)
    lines = [line.strip() for line in (answer["out"] + answer["err"]).splitlines() if line.strip()]
    last = lines[-1][:200] if lines else "no output"
    has_device = any(re.match(r"nvidia\d+$", name) for name in os.listdir("/dev"))
    if answer["state"] == "missing" and not has_device:
        return None, ""
    if answer["state"] != "ended":
        return None, "nvidia-smi: %s" % last
    if answer["rc"] != 0 or answer.get("truncated"):
        no_gpu = re.search("no devices were found", answer["out"], re.IGNORECASE)
        return (None, "") if no_gpu else (None, "nvidia-smi: exit %s: %s" % (answer["rc"], last))
    if not lines or not lines[0].startswith(header):
        return None, "nvidia-smi: cannot read %r" % last
    return [[word.strip() for word in line.split(",")] for line in lines[1:]], ""


def gpu_memory(timeout_s=GPU_QUERY_S):
    """({pid: bytes of GPU memory, None where unknown}, ""), else as `ask_nvidia_smi`."""
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
    """Processes with a GPU's device open, as far as this user can see them."""
    device = re.compile(r"/dev/nvidia\d+$")
    return {pid for pid in all_pids() if any(map(device.match, open_links(pid)))}


def gpu_holders():
    """(processes on a GPU, notes): those of nvidia-smi, and those with a device open."""
    held, why = gpu_memory()
    notes = ["only processes with a GPU's device open are taken: %s" % why] if why else []
    return set(held or ()) | device_holders(), notes


def memory_of(pids):
    """{pid: bytes of GPU memory}; None where unknown, 0 without a GPU."""
    held, _ = gpu_memory()
    if held is None:
        held = dict.fromkeys(pids if has_host_pids() else device_holders())
    return {pid: held.get(pid, 0) for pid in pids}


def prove_freed(ended, timeout_s):
    """(rows, why): GPU memory that ended processes still hold, and why that is unknown."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(1.0, deadline - time.monotonic())
        rows, why = _left_of(ended, left_s) if has_host_pids() else _left_in_container(left_s)
        if not rows and not why or time.monotonic() > deadline:
            return rows, why
        time.sleep(0.25)


def _left_of(ended, timeout_s):
    held, why = gpu_memory(timeout_s)
    rows = []
    for pid, size in sorted((held or {}).items()):
        # The kernel may have given the id to another process.
        found = process(pid) if pid in ended else None
        if pid in ended and (found is None or found.state in "ZX"):
            rows.append({"pid": pid, "bytes": size})
    return rows, why


def _left_in_container(timeout_s):
    """In a container: whether a GPU has more memory in use than the driver itself needs."""
    rows, why = ask_nvidia_smi("--query-gpu=memory.used", "memory.used", timeout_s)
    used = [words[0] for words in rows or ()]
    if not all(map(str.isdigit, used)):
        why = "nvidia-smi does not report the memory in use"
    elif max(map(int, used), default=0) > FREE_MIB:
        why = "%s MiB are in use on a GPU, and nvidia-smi cannot name the processes of a container"
        why %= max(map(int, used))
    return [], why
