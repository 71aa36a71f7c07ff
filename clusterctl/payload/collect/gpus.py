"""Census: GPUs by NVML where its library is, else by nvidia-smi; NVSwitch and its manager."""

import os
import re

from clusterctl.payload.collect.forked_child import collect_child
from clusterctl.payload.proc_files import (
    age_s,
    as_text,
    environ_value,
    owner_of,
    read_bytes,
    read_stat,
    read_text,
    read_word,
    user_name,
)
from clusterctl.payload.tools import SECTIONS, call, section

GPU_FIELDS = (
    "index,uuid,name,driver_version,pci.bus_id,power.draw,power.limit,"
    "memory.used,memory.total,utilization.gpu,temperature.gpu"
)
NVIDIA = "0x10de"  # vendor on PCI
PROCESS_FIELDS = "gpu_uuid,pid,used_memory,process_name"


def look_at_gpus(timeout_s, nvml=None, deep=False):
    """`nvml` is a child that reads NVML; with `deep` nvidia-smi adds health, links and topology."""
    if nvml is not None:
        answer = collect_child("nvml", nvml, timeout_s)
        if answer["rc"] == 0:
            pids = re.findall(r'"processes": \[(.*?)\]\]', answer["out"])
            call("gpu_owners", lambda: describe_processes(" ".join(pids)), 3.0)
            return
        if answer["state"] == "timeout":
            # nvidia-smi would hang in the driver as well.
            SECTIONS["gpus"] = dict(answer, err="NVML: " + answer["err"])
            return

    def ask(name, *words):
        return section(name, ("nvidia-smi",) + words, timeout_s)

    if ask("gpus", "--query-gpu=" + GPU_FIELDS, "--format=csv")["state"] != "ended":
        return  # a second one would hang as well
    text = ask("gpu_processes", "--query-compute-apps=" + PROCESS_FIELDS, "--format=csv")["out"]
    call("gpu_owners", lambda: describe_processes(text), 3.0)
    if deep:
        ask("gpu_details", "-q")
        ask("nvlink", "nvlink", "-s")
        ask("topology", "topo", "-m")


def describe_processes(text):
    """pid, uid, user, age in s, command line, run, rank ("-": none, "?": unreadable) of each."""
    from clusterctl.payload.mask_secrets import hide_words

    lines = []
    for pid in sorted({int(number) for number in re.findall(r"\b\d{1,10}\b", text)}):
        uid, line, stat = owner_of(pid), read_bytes("/proc/%d/cmdline" % pid, 400), read_stat(pid)
        if uid is None or line is None or stat is None:
            continue  # a number that is no process (memory), or one that has just ended
        words = as_text(line).split("\0")
        command = " ".join(hide_words(words)).strip()
        command = command.replace("\n", " ").replace("\t", " ")[:200]
        # What our launcher, or torchrun, wrote into its environment.
        environ, run, rank = read_bytes("/proc/%d/environ" % pid), "?", "?"
        if environ is not None:  # else of another user
            values = [environ_value(environ, name) or "" for name in ("CLUSTERCTL_RUN", "RANK")]
            run, rank = ["".join(value.split())[:100] or "-" for value in values]
        facts = (pid, uid, user_name(uid), age_s(stat[1][19]), command, run, rank)
        lines.append("%d\t%d\t%s\t%.0f\t%s\t%s\t%s" % facts)
    return "\n".join(lines)


def list_pci(pci_class):
    """Address, class and device of NVIDIA's PCI devices of a class, after the number of all."""
    folder = "/sys/bus/pci/devices"
    addresses = sorted(os.listdir(folder))
    lines = ["#devices\t%d" % len(addresses)]
    for address in addresses:
        top = folder + "/" + address
        if read_word(top + "/vendor") == NVIDIA:
            found = read_word(top + "/class", "")
            if found.startswith(pci_class):  # else another class, or it has gone meanwhile
                lines.append("%s %s %s" % (address, found, read_word(top + "/device", "")))
    return "\n".join(lines)


def list_nvidia_proc():
    """Driver version line, then the devices that the driver uses."""
    version = read_text("/proc/driver/nvidia/version").splitlines()[0]
    return "\n".join([version] + sorted(os.listdir("/proc/driver/nvidia/gpus")))


def look_at_switches(timeout_s):
    if "\n" in call("nvswitch", lambda: list_pci("0x0680"), 3.0)["out"]:
        section("fabric_manager", ["systemctl", "is-active", "nvidia-fabricmanager"], timeout_s)
