"""Census: GPUs as NVML tells of them."""

from __future__ import annotations

import json


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
