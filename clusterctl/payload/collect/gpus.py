"""Census: GPUs by NVML where its library is, else by nvidia-smi; NVSwitch and its manager."""

import os
import re

from clusterctl.payload import proc_files
from clusterctl.payload.collect.forked_child import collect_child
from clusterctl.payload.tools import SECTIONS, call, section

GPU_FIELDS = (
    "index,uuid,name,driver_version,pci.bus_id,power.draw,power.limit,"
    "memory.used,memory.total,utilization.gpu,temperature.gpu"
)
NVIDIA = "0x10de"  # vendor on PCI
PROCESS_FIELDS = "gpu_uuid,pid,used_memory,process_name"


def collect_gpus(timeout_s, nvml=None, deep=False):
    """`nvml` is a child that reads NVML; with `deep` nvidia-smi adds health, links and topology.

    Topology is nvidia-smi's in any case: NVML does not know how far GPUs are from network cards.
    """

    def ask(name, *words):
        return section(name, ("nvidia-smi",) + words, timeout_s)

    if nvml is not None:
        answer = collect_child("nvml", nvml, timeout_s)
        if answer["rc"] == 0:
            _, *lists = answer["out"].split('"processes": [')
            pids = " ".join(one.partition("]]")[0] for one in lists)
            call("gpu_owners", lambda: describe_processes(pids), 3.0)
            if deep and '"gpus": []' not in answer["out"]:
                ask("topology", "topo", "-m")
            return
        if answer["state"] == "timeout":
            # nvidia-smi would hang in the driver as well.
            SECTIONS["gpus"] = dict(answer, err="NVML: " + answer["err"])
            return

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
    from clusterctl.payload.secrets.marks import may_hold

    lines = []
    for pid in sorted({int(number) for number in re.findall(r"\b\d{1,10}\b", text)}):
        uid, stat = proc_files.owner_of(pid), proc_files.read_stat(pid)
        line = proc_files.read_bytes("/proc/%d/cmdline" % pid, 400)
        if uid is None or line is None or stat is None:
            continue  # a number that is no process (memory), or one that has just ended
        words = proc_files.as_text(line).split("\0")
        if any(map(may_hold, words)):
            from clusterctl.payload.secrets.mask import hide_words

            words = hide_words(words)
        command = " ".join(words).strip()
        command = command.replace("\n", " ").replace("\t", " ")[:200]
        # What our launcher, or torchrun, wrote into its environment.
        environ, run, rank = proc_files.read_bytes("/proc/%d/environ" % pid), "?", "?"
        if environ is not None:  # else of another user
            tags = [proc_files.environ_value(environ, name) for name in ("CLUSTERCTL_RUN", "RANK")]
            run, rank = ["".join((tag or "").split())[:100] or "-" for tag in tags]
        user, age_s = proc_files.user_name(uid), proc_files.age_s(stat[1][19])
        lines.append("%d\t%d\t%s\t%.0f\t%s\t%s\t%s" % (pid, uid, user, age_s, command, run, rank))
    return "\n".join(lines)


def list_pci(pci_class):
    """Address, class and device of NVIDIA's PCI devices of a class, after the number of all."""
    folder = "/sys/bus/pci/devices"
    addresses = sorted(os.listdir(folder))
    lines = ["#devices\t%d" % len(addresses)]
    for address in addresses:
        top = folder + "/" + address
        if proc_files.read_word(top + "/vendor") == NVIDIA:
            found = proc_files.read_word(top + "/class", "")
            if found.startswith(pci_class):  # else another class, or it has gone meanwhile
                device = proc_files.read_word(top + "/device", "")
                lines.append("%s %s %s" % (address, found, device))
    return "\n".join(lines)


def list_nvidia_proc():
    """Driver version line, then the devices that the driver uses."""
    version = proc_files.read_text("/proc/driver/nvidia/version").splitlines()[0]
    return "\n".join([version] + sorted(os.listdir("/proc/driver/nvidia/gpus")))


def collect_switches(timeout_s):
    if "\n" in call("nvswitch", lambda: list_pci("0x0680"), 3.0)["out"]:
        section("fabric_manager", ["systemctl", "is-active", "nvidia-fabricmanager"], timeout_s)
