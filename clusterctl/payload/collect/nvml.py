"""Census: GPUs by NVML."""

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
        rows.append(row)
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
        except nv.NVMLError as error:
            row["lost"] = "GPU %d: %s" % (index, error)
        else:
            ask_gpu(nv, handle, row)
    version = "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
    driver = plain(nv.nvmlSystemGetDriverVersion())
    return json.dumps({"driver": driver, "cuda": version, "gpus": rows})


def plain(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def ask_gpu(nv, handle, row):
    def keep(name, function, *args):
        try:
            row[name] = plain(function(*args))
        except (nv.NVMLError, AttributeError, TypeError) as error:
            row[name] = {"error": str(error)}
        return row[name]

    def get(function, *args):
        # Functions come and go with the library's version: a missing one is an error value.
        return getattr(nv, "nvmlDeviceGet" + function)(handle, *args)

    def ask(name, function, *args):
        return keep(name, get, function, *args)

    ask("uuid", "UUID")
    ask("name", "Name")
    keep("bus_id", lambda: get("PciInfo").busId)
    ask("power_mw", "PowerUsage")
    ask("power_limit_mw", "EnforcedPowerLimit")
    ask("power_default_mw", "PowerManagementDefaultLimit")
    keep("memory_used", lambda: get("MemoryInfo").used)
    keep("memory_total", lambda: get("MemoryInfo").total)
    keep("utilization", lambda: get("UtilizationRates").gpu)
    now = ask("temperature", "Temperature", nv.NVML_TEMPERATURE_GPU)
    slow = ask("slowdown_c", "TemperatureThreshold", 1)
    if isinstance(now, int) and isinstance(slow, int):
        row["margin_c"] = slow - now
    else:
        ask("margin_c", "MarginTemperature")
    ask("vbios", "VbiosVersion")
    ask("inforom", "InforomImageVersion")
    ask("gsp", "GspFirmwareVersion")
    ask("persistence", "PersistenceMode")
    keep("mig", lambda: get("MigMode")[0])
    ask("compute_mode", "ComputeMode")
    keep("ecc", lambda: get("EccMode")[0])
    ask("corrected_volatile", "TotalEccErrors", 0, 0)
    ask("uncorrected_volatile", "TotalEccErrors", 1, 0)
    # Counter type 1 is aggregate, location 7 SRAM.
    ask("sram_uncorrected_aggregate", "MemoryErrorCounter", 1, 1, 7)
    rows = ask("rows", "RemappedRows")
    for index, name in enumerate(("remapped_uncorrectable", "remap_pending", "remap_failure"), 1):
        row[name] = rows if isinstance(rows, dict) else rows[index]
    del row["rows"]
    if isinstance(ask("throttle", "CurrentClocksEventReasons"), dict):
        ask("throttle", "CurrentClocksThrottleReasons")
    ask("pcie_width", "CurrPcieLinkWidth")
    ask("pcie_width_max", "MaxPcieLinkWidth")
    ask("pcie_gen", "CurrPcieLinkGeneration")
    ask("pcie_gen_max", "MaxPcieLinkGeneration")
    ask("max_sm_mhz", "MaxClockInfo", 1)
    ask_fields(nv, handle, row)
    keep("links", link_states, nv, handle)
    keep("processes", lambda: [[p.pid, p.usedGpuMemory] for p in get("ComputeRunningProcesses")])


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
