"""Census: GPUs by NVML where its library is, else by nvidia-smi; NVSwitch and its manager."""

from __future__ import annotations

import os
import re

from clusterctl.payload.collect.forked_child import collect_child
from clusterctl.payload.prelude import SECTIONS, call, read_text, section, user_name

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
    query = ["nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv"]
    answer = section("gpus", query, timeout_s)
    if answer["state"] != "ended":
        return  # a second one would hang as well
    query = ["nvidia-smi", "--query-compute-apps=" + PROCESS_FIELDS, "--format=csv"]
    text = section("gpu_processes", query, timeout_s)["out"]
    call("gpu_owners", lambda: describe_processes(text), 3.0)
    if deep:
        section("gpu_details", ["nvidia-smi", "-q"], timeout_s)
        section("nvlink", ["nvidia-smi", "nvlink", "-s"], timeout_s)
        section("topology", ["nvidia-smi", "topo", "-m"], timeout_s)


def describe_processes(text):
    """pid, uid, user, age in seconds, command line, run, rank of each process id in `text`.

    Run and rank are "-" where the environment has none, "?" where it cannot be read.
    """
    from clusterctl.payload.mask_secrets import hide_words

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
        command = " ".join(hide_words(words)).strip()
        command = command.replace("\n", " ").replace("\t", " ")[:200]
        facts = (pid, uid, user_name(uid), age_s, command) + run_and_rank(pid)
        lines.append("%d\t%d\t%s\t%.0f\t%s\t%s\t%s" % facts)
    return "\n".join(lines)


def run_and_rank(pid):
    """What our launcher, or torchrun, wrote into a process's environment."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            text = b"\0" + file.read(1 << 20)
    except OSError:
        return ("?", "?")  # of another user
    found = []
    for name in (b"CLUSTERCTL_RUN", b"RANK"):
        _, known, rest = text.partition(b"\0" + name + b"=")
        value = rest.split(b"\0", 1)[0].decode("utf-8", "replace") if known else "-"
        found.append("".join(value.split())[:100] or "-")
    return tuple(found)


def list_nvidia_pci():
    """Address, class and device of each NVIDIA display device that the kernel sees on PCI."""
    return pci_devices(" 0x03")


def list_nvswitches():
    """The same for NVSwitch chips, which are bridges of their own kind."""
    return pci_devices(" 0x0680")


def pci_devices(wanted):
    """NVIDIA's devices of a class, after the number of all devices."""
    folder = "/sys/bus/pci/devices"
    addresses = sorted(os.listdir(folder))
    lines = ["#devices\t%d" % len(addresses)]
    for address in addresses:
        try:
            if read_text("%s/%s/vendor" % (folder, address)).strip() != NVIDIA:
                continue
            kind = read_text("%s/%s/class" % (folder, address)).strip()
            device = read_text("%s/%s/device" % (folder, address)).strip()
        except OSError:
            continue  # it went away while we looked
        line = "%s %s %s" % (address, kind, device)
        lines += [line] if wanted in line else []
    return "\n".join(lines)


def list_nvidia_proc():
    """Driver version line, then the devices that the driver has taken."""
    version = read_text("/proc/driver/nvidia/version").splitlines()[0]
    return "\n".join([version] + sorted(os.listdir("/proc/driver/nvidia/gpus")))


def look_at_switches(timeout_s):
    if "\n" in call("nvswitch", list_nvswitches, 3.0)["out"]:
        section("fabric_manager", ["systemctl", "is-active", "nvidia-fabricmanager"], timeout_s)
