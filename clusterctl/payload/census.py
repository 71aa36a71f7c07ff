"""What a node is and has: GPUs, processes on them, memory, disks, an interpreter, free ports.

Arguments, all optional: tool_timeout_s; paths (disks to measure), python (an interpreter to
question), ports (to try); all that with little cost. With `launch` also what a launch line is
compared with: cards, network, variables, workdir (its commit), files, wandb. With `everything` also
clock, kernel log, limits, mounts and processes, and growth_s (between two reads of growing
counters), names (to resolve, "@" is the node's own), reach (address and port to connect to), token (a path to read), sudo, nvml. With `pings` it stays after its answer and says the time whenever asked, for as long as stdin
is open. Read-only. Raw text goes home, the head parses it.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from clusterctl.payload.children import collect_child, fork_child
from clusterctl.payload.gpu_looks import (
    ask_nvml,
    list_nvidia_pci,
    list_nvidia_proc,
    look_at_gpus,
    look_at_switches,
)
from clusterctl.payload.host_looks import (
    describe_system,
    look_at_clock,
    look_at_fabric,
    look_at_kernel_log,
    look_at_network,
    look_at_processes,
    measure_mounts,
    read_infiniband,
    read_limits,
)
from clusterctl.payload.launch_looks import (
    ask_git,
    ask_port,
    ask_python,
    find_wandb_login,
    measure_disk,
    measure_files,
)
from clusterctl.payload.prelude import (
    ARGS,
    call,
    emit,
    envelope,
    finish,
    hold_lease,
    read_text,
    together,
)


def main():
    began = (time.time(), time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))
    timeout_s = ARGS.get("tool_timeout_s", 10.0)
    everything = ARGS.get("everything", False)
    if ARGS.get("nvml"):
        import ctypes  # noqa: F401 - once, before there are children that would each import it
    nvml = fork_child(ask_nvml) if ARGS.get("nvml") else None
    children = fork_children(min(4.0, timeout_s))
    if ARGS.get("pings"):
        hold_lease(on_message=lambda _: emit({"time_s": time.time()}))
    tasks = [
        partial(look_at_gpus, timeout_s, nvml, everything),
        lambda: call("pci", list_nvidia_pci, 3.0),
        lambda: call("nvidia_proc", list_nvidia_proc, 3.0),
        lambda: call("meminfo", lambda: read_text("/proc/meminfo", 8192), 3.0),
        lambda: call("loadavg", lambda: read_text("/proc/loadavg"), 3.0),
        lambda: call("machine", describe_machine, 3.0),
    ]
    tasks += [partial(collect_child, name, child, timeout_s) for name, child in children.items()]
    tasks += [partial(ask_port, port) for port in ARGS.get("ports", ())]
    if ARGS.get("python"):
        tasks.append(lambda: ask_python(ARGS["python"], timeout_s))
    if everything:
        tasks += list_everything(timeout_s, began)
    elif ARGS.get("launch"):
        tasks += list_launch(timeout_s)
    together(tasks)
    cpu_s = sum(os.times()[:4])
    if not ARGS.get("pings"):
        finish({"cpu_s": cpu_s})
    emit(envelope(cpu_s=cpu_s))
    threading.Event().wait()  # the lease answers, and ends us when stdin closes


def fork_children(patience_s):
    """What touches file systems, by section: any of them may hang for ever on a dead mount."""
    children = {}
    for path in ARGS.get("paths", ()):
        children["disk:" + path] = fork_child(partial(measure_disk, path))
    if ARGS.get("everything"):
        children["mounts"] = fork_child(partial(measure_mounts, patience_s))
    if ARGS.get("files"):
        children["files"] = fork_child(partial(measure_files, ARGS["files"]))
    if ARGS.get("token"):
        children["token"] = fork_child(partial(read_text, ARGS["token"], 200))
    return children


def list_everything(timeout_s, began):
    growth_s = ARGS.get("growth_s", 0.7)
    tasks = [
        lambda: call("began", lambda: "%.6f %.6f" % began, 2.0),
        partial(look_at_clock, timeout_s),
        partial(look_at_fabric, growth_s),
        partial(look_at_kernel_log, timeout_s, ARGS.get("sudo", False)),
        partial(look_at_processes, growth_s),
        lambda: call("limits", read_limits, 3.0),
        partial(look_at_switches, timeout_s),
    ]
    return tasks + list_launch(timeout_s)


def list_launch(timeout_s):
    """What a launch line is compared with, and no more: a launch waits for it."""
    tasks = [
        partial(look_at_network, timeout_s, ARGS.get("names", ())),
        lambda: call("system", describe_system, 3.0),
    ]
    if not ARGS.get("everything"):
        tasks.append(lambda: call("ib", read_infiniband, 5.0))
    if ARGS.get("workdir"):
        tasks.append(lambda: ask_git(ARGS["workdir"], timeout_s))
    if ARGS.get("wandb"):
        tasks.append(lambda: call("wandb", find_wandb_login, 2.0))
    return tasks


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
