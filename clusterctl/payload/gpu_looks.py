"""Census: GPUs by NVML where its library is, else by nvidia-smi; NVSwitch and its manager."""

from __future__ import annotations

import json
import os
import re

from clusterctl.payload.children import collect_child
from clusterctl.payload.prelude import SECTIONS, call, read_text, section, user_name

GPU_FIELDS = (
    "index,uuid,name,driver_version,pci.bus_id,power.draw,power.limit,"
    "memory.used,memory.total,utilization.gpu,temperature.gpu"
)
NVIDIA = "0x10de"  # vendor on PCI
PROCESS_FIELDS = "gpu_uuid,pid,used_memory,process_name"


def look_at_gpus(timeout_s, nvml=None, deep=False):
    """`nvml` is a child that asks it; with `deep` nvidia-smi tells health, links and topology too."""
    if nvml is not None:
        answer = collect_child("nvml", nvml, timeout_s)
        if answer["rc"] == 0:
            pids = re.findall(r'"processes": \[(.*?)\]\]', answer["out"])
            call("gpu_owners", lambda: describe_processes(" ".join(pids)), 3.0)
            return
        if answer["state"] == "timeout":
            # What hangs in the driver would hang nvidia-smi too, beside it.
            SECTIONS["gpus"] = dict(answer, err="NVML: " + answer["err"])
            return
    query = ["nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv"]
    answer = section("gpus", query, timeout_s)
    if answer["state"] != "ended":
        return  # a second one would hang beside the first
    query = ["nvidia-smi", "--query-compute-apps=" + PROCESS_FIELDS, "--format=csv"]
    text = section("gpu_processes", query, timeout_s)["out"]
    call("gpu_owners", lambda: describe_processes(text), 3.0)
    if deep:
        section("gpu_details", ["nvidia-smi", "-q"], timeout_s)
        section("nvlink", ["nvidia-smi", "nvlink", "-s"], timeout_s)
        section("topology", ["nvidia-smi", "topo", "-m"], timeout_s)


def describe_processes(text):
    """pid, uid, user, age in seconds, command line, run and rank of each number in `text` that is a process.

    Run and rank are "-" where the environment has none, "?" where it cannot be read.
    """
    from clusterctl.payload.hide import hide_words

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
    """NVIDIA's devices of a class behind the number of all devices: none is an answer, too."""
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


def ask_nvml():
    """One JSON line: driver, cuda, gpus. A value that a card does not give is {"error": why}."""
    import ctypes

    ctypes.CDLL("libnvidia-ml.so.1")  # before the import: compiling 330 kB for nothing takes 0.1 s
    import pynvml as nv

    nv.nvmlInit()
    cuda = nv.nvmlSystemGetCudaDriverVersion_v2()
    rows = []
    for index in range(nv.nvmlDeviceGetCount()):
        row = {"index": index}  # type: dict
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
        except nv.NVMLError as error:
            row["lost"] = "GPU %d: %s" % (index, error)
            rows.append(row)
            continue
        ask_gpu(nv, handle, row)
        rows.append(row)
    version = "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
    answer = {"driver": plain(nv.nvmlSystemGetDriverVersion()), "cuda": version, "gpus": rows}
    return json.dumps(answer)


def plain(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def ask_gpu(nv, handle, row):
    def ask(name, function, *more):
        try:
            row[name] = plain(function(handle, *more))
        except (nv.NVMLError, AttributeError, TypeError) as error:
            row[name] = {"error": str(error)}
        return row[name]

    def get(name):
        # Functions come and go with the library's version: one that is not there is an error value.
        return getattr(nv, name, None) or (lambda *_: (_ for _ in ()).throw(AttributeError(name)))

    ask("uuid", nv.nvmlDeviceGetUUID)
    ask("name", nv.nvmlDeviceGetName)
    ask("bus_id", lambda h: nv.nvmlDeviceGetPciInfo(h).busId)
    ask("power_mw", nv.nvmlDeviceGetPowerUsage)
    ask("power_limit_mw", get("nvmlDeviceGetEnforcedPowerLimit"))
    ask("power_default_mw", get("nvmlDeviceGetPowerManagementDefaultLimit"))
    ask("memory_used", lambda h: nv.nvmlDeviceGetMemoryInfo(h).used)
    ask("memory_total", lambda h: nv.nvmlDeviceGetMemoryInfo(h).total)
    ask("utilization", lambda h: nv.nvmlDeviceGetUtilizationRates(h).gpu)
    now = ask("temperature", nv.nvmlDeviceGetTemperature, nv.NVML_TEMPERATURE_GPU)
    slow = ask("slowdown_c", nv.nvmlDeviceGetTemperatureThreshold, 1)
    if isinstance(now, int) and isinstance(slow, int):
        row["margin_c"] = slow - now
    else:
        ask("margin_c", get("nvmlDeviceGetMarginTemperature"))
    ask("vbios", nv.nvmlDeviceGetVbiosVersion)
    ask("inforom", nv.nvmlDeviceGetInforomImageVersion)
    ask("gsp", get("nvmlDeviceGetGspFirmwareVersion"))
    ask("persistence", nv.nvmlDeviceGetPersistenceMode)
    ask("mig", lambda h: nv.nvmlDeviceGetMigMode(h)[0])
    ask("compute_mode", nv.nvmlDeviceGetComputeMode)
    ask("ecc", lambda h: nv.nvmlDeviceGetEccMode(h)[0])
    ask("corrected_volatile", nv.nvmlDeviceGetTotalEccErrors, 0, 0)
    ask("uncorrected_volatile", nv.nvmlDeviceGetTotalEccErrors, 1, 0)
    # Counter type 1 is aggregate, location 7 SRAM.
    ask("sram_uncorrected_aggregate", nv.nvmlDeviceGetMemoryErrorCounter, 1, 1, 7)
    rows = ask("rows", get("nvmlDeviceGetRemappedRows"))
    if not isinstance(rows, dict):
        row["remapped_uncorrectable"], row["remap_pending"], row["remap_failure"] = rows[1:4]
    else:
        for name in ("remapped_uncorrectable", "remap_pending", "remap_failure"):
            row[name] = rows
    del row["rows"]
    reasons = get("nvmlDeviceGetCurrentClocksEventReasons")
    if isinstance(ask("throttle", reasons), dict):
        ask("throttle", get("nvmlDeviceGetCurrentClocksThrottleReasons"))
    ask("pcie_width", nv.nvmlDeviceGetCurrPcieLinkWidth)
    ask("pcie_width_max", nv.nvmlDeviceGetMaxPcieLinkWidth)
    ask("pcie_gen", nv.nvmlDeviceGetCurrPcieLinkGeneration)
    ask("pcie_gen_max", nv.nvmlDeviceGetMaxPcieLinkGeneration)
    ask("max_sm_mhz", nv.nvmlDeviceGetMaxClockInfo, 1)
    ask_fields(nv, handle, row)
    ask("links", lambda h: link_states(nv, h))
    ask("processes", lambda h: list_gpu_processes(nv, h))


def ask_fields(nv, handle, row):
    """Values that only newer libraries have, by field number."""
    number = getattr(nv, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    try:
        value = nv.nvmlDeviceGetFieldValues(handle, [number])[0] if number else None
        if value is None or value.nvmlReturn != 0:
            raise nv.NVMLError(value.nvmlReturn if value else nv.NVML_ERROR_NOT_SUPPORTED)
        row["recovery"] = int(value.value.uiVal)
    except (nv.NVMLError, AttributeError, TypeError, ValueError) as error:
        row["recovery"] = {"error": str(error)}
    try:
        info = nv.c_nvmlGpuFabricInfoV_t()
        info.version = nv.nvmlGpuFabricInfo_v2
        nv.nvmlDeviceGetGpuFabricInfoV(handle, nv.byref(info))
        states = {0: None, 1: "Not Started", 2: "In Progress", 3: "Completed"}
        row["fabric_state"] = states.get(info.state, str(info.state))
        if row["fabric_state"] == "Completed":
            row["fabric_status"] = "Success" if info.status == 0 else "error %d" % info.status
    except (nv.NVMLError, AttributeError, TypeError) as error:
        row["fabric_state"] = {"error": str(error)}


def link_states(nv, handle):
    """1 for each NVLink that is up; a card without NVLink has none, and none has a 19th."""
    ends = (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_INVALID_ARGUMENT)
    states = []
    for link in range(18):
        try:
            states.append(int(nv.nvmlDeviceGetNvLinkState(handle, link)))
        except nv.NVMLError as error:
            if error.value not in ends:
                raise
            break
    return states


def list_gpu_processes(nv, handle):
    return [[one.pid, one.usedGpuMemory] for one in nv.nvmlDeviceGetComputeRunningProcesses(handle)]
