"""What a node is and has: GPUs, processes on them, memory, disks, an interpreter, free ports.

Arguments, all optional: tool_timeout_s; paths (disks to measure), python (an interpreter to try),
ports (to try). With `launch` also what a launch is compared with: cards, network, variables,
workdir (its commit), files, wandb. With `everything` also clock, kernel log, limits, mounts and
processes, and growth_s (between two reads of growing counters), names (to resolve, "@" is the
node's own), reach (address and port to connect to), token (a path to read), log (an expression for
the lines of the kernel's log to send), sudo, nvml. With `pings` it answers requests for the time
after its report until stdin closes. Read-only. Sends raw text, which the head parses.
"""

import os
import threading
import time
from functools import partial

from clusterctl.payload.collect import gpus
from clusterctl.payload.collect.forked_child import collect_child, fork_child
from clusterctl.payload.prelude import ARGS, emit, finish, hold_lease
from clusterctl.payload.proc_files import read_text, read_times, read_word
from clusterctl.payload.tools import call, together


def main():
    started = read_times()
    timeout_s = ARGS.get("tool_timeout_s", 10.0)
    everything = ARGS.get("everything", False)
    nvml = None
    if ARGS.get("nvml"):
        import ctypes  # noqa: F401 - once, before there are children that would each import it

        from clusterctl.payload.collect.nvml import ask_nvml

        nvml = fork_child(ask_nvml)
    children = fork_children(min(4.0, timeout_s))
    if ARGS.get("pings"):
        hold_lease(on_message=lambda _: emit({"time_s": time.time()}))
    tasks = [partial(gpus.collect_gpus, timeout_s, nvml, everything)]
    tasks += [partial(collect_child, name, child, timeout_s) for name, child in children.items()]
    reads = {
        "pci": partial(gpus.list_pci, "0x03"),
        "nvidia_proc": gpus.list_nvidia_proc,
        "meminfo": partial(read_text, "/proc/meminfo", 8192),
        "loadavg": partial(read_text, "/proc/loadavg"),
        "machine": describe_machine,
    }
    if everything or ARGS.get("launch"):
        tasks += list_launch(timeout_s, reads, everything)
    if everything:
        tasks += list_everything(timeout_s, started, reads)
    if ARGS.get("ports"):
        from clusterctl.payload.collect.ports import try_port

        reads.update({"port:%d" % port: partial(try_port, port) for port in ARGS["ports"]})
    tasks += [partial(call, name, read, 3.0) for name, read in reads.items()]
    if ARGS.get("python"):
        from clusterctl.payload.collect.launch import ask_python, ask_torch

        tasks.append(partial(ask_python, ARGS["python"], timeout_s))
        tasks.append(partial(ask_torch, ARGS["python"], timeout_s))
    together(tasks)
    finish({"cpu_s": sum(os.times()[:4])})
    if ARGS.get("pings"):
        threading.Event().wait()  # the lease answers, and ends us when stdin closes


def fork_children(patience_s):
    """What touches file systems, by section: on a dead mount any of them may never return."""
    children = {}
    if ARGS.get("paths"):
        from clusterctl.payload.collect.mounts import measure_disk

        for path in ARGS["paths"]:
            children["disk:" + path] = fork_child(partial(measure_disk, path))
    if ARGS.get("everything"):
        from clusterctl.payload.collect.mounts import measure_mounts

        children["mounts"] = fork_child(partial(measure_mounts, patience_s))
    if ARGS.get("files"):
        from clusterctl.payload.collect.launch import measure_files

        children["files"] = fork_child(partial(measure_files, ARGS["files"]))
    if ARGS.get("token"):
        children["token"] = fork_child(partial(read_text, ARGS["token"], 200))
    return children


def list_everything(timeout_s, started, reads):
    """Tasks; what is only read goes into `reads`."""
    from clusterctl.payload.collect.clock import collect_clock
    from clusterctl.payload.collect.fabric import collect_fabric
    from clusterctl.payload.collect.kernel_log import collect_kernel_log
    from clusterctl.payload.collect.processes import list_processes
    from clusterctl.payload.collect.system import read_limits

    growth_s = ARGS.get("growth_s", 0.7)
    reads.update(began=lambda: "%(time_s).6f %(boottime_s).6f" % started, limits=read_limits)
    return [
        partial(collect_clock, timeout_s),
        partial(collect_fabric, growth_s),
        partial(collect_kernel_log, timeout_s, ARGS.get("sudo", False), ARGS.get("log", "")),
        partial(call, "processes", partial(list_processes, growth_s), growth_s + 5.0),
        partial(gpus.collect_switches, timeout_s),
    ]


def list_launch(timeout_s, reads, everything):
    """What a launch line is compared with, and no more: a launch waits for it."""
    from clusterctl.payload.collect.network import collect_network
    from clusterctl.payload.collect.system import describe_system

    tasks = [partial(collect_network, timeout_s, ARGS.get("names", ()))]  # type: list
    reads["system"] = describe_system
    if not everything:
        from clusterctl.payload.collect.fabric import read_infiniband

        tasks.append(partial(call, "ib", read_infiniband, 5.0))
    if ARGS.get("workdir"):
        from clusterctl.payload.collect.launch import ask_git

        tasks.append(partial(ask_git, ARGS["workdir"], timeout_s))
    if ARGS.get("wandb"):
        from clusterctl.payload.collect.launch import find_wandb_login

        reads["wandb"] = find_wandb_login
    return tasks


def describe_machine():
    """key=value lines: what two names of one machine have in common, and its kind."""
    facts = {"kernel": os.uname().release, "cpus": str(os.cpu_count())}
    facts.update(
        {"ns_" + name: os.readlink("/proc/self/ns/" + name) for name in ("pid", "net", "uts")}
    )
    machine_id = read_word("/etc/machine-id")
    facts.update({"machine_id": machine_id} if machine_id is not None else {})  # not in containers
    return "\n".join("%s=%s" % item for item in sorted(facts.items()))
