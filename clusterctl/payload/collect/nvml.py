"""Census: GPUs by NVML."""

import json

# name in the answer=name of the function, without nvmlDeviceGet
PLAIN = """uuid=UUID name=Name power_mw=PowerUsage power_limit_mw=EnforcedPowerLimit
power_default_mw=PowerManagementDefaultLimit vbios=VbiosVersion inforom=InforomImageVersion
gsp=GspFirmwareVersion persistence=PersistenceMode compute_mode=ComputeMode
pcie_width=CurrPcieLinkWidth pcie_width_max=MaxPcieLinkWidth pcie_gen=CurrPcieLinkGeneration
pcie_gen_max=MaxPcieLinkGeneration virtualization=VirtualizationMode""".split()


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
    return json.dumps({"driver": nv.nvmlSystemGetDriverVersion(), "cuda": version, "gpus": rows})


def ask_gpu(nv, handle, row):
    def keep(name, function, *args):
        try:
            value = function(*args)
            # As nvidia-ml-py gives the GSP's version; one in the row would be no JSON.
            row[name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        except (nv.NVMLError, AttributeError, TypeError, ValueError) as error:
            row[name] = {"error": str(error)}
        return row[name]

    def get(function, *args):
        # Functions come and go with the library's version: a missing one is an error value.
        return getattr(nv, "nvmlDeviceGet" + function)(handle, *args)

    for pair in PLAIN:
        name, function = pair.split("=")
        keep(name, get, function)
    keep("bus_id", lambda: get("PciInfo").busId)
    keep("memory_used", lambda: memory_info(nv, handle).used)
    keep("memory_total", lambda: memory_info(nv, handle).total)
    keep("utilization", lambda: get("UtilizationRates").gpu)
    now = keep("temperature", get, "Temperature", nv.NVML_TEMPERATURE_GPU)
    slow = keep("slowdown_c", get, "TemperatureThreshold", 1)
    if isinstance(now, int) and isinstance(slow, int):
        row["margin_c"] = slow - now
    else:
        keep("margin_c", get, "MarginTemperature")
    keep("mig", lambda: get("MigMode")[0])
    keep("ecc", lambda: get("EccMode")[0])
    keep("corrected_volatile", get, "TotalEccErrors", 0, 0)
    keep("uncorrected_volatile", get, "TotalEccErrors", 1, 0)
    # Counter type 1 is aggregate, location 7 SRAM.
    keep("sram_uncorrected_aggregate", get, "MemoryErrorCounter", 1, 1, 7)
    keep("sram_threshold", sram_threshold, nv, handle)
    for index, name in enumerate(("remapped_uncorrectable", "remap_pending", "remap_failure"), 1):
        keep(name, lambda: get("RemappedRows")[index])
    if isinstance(keep("throttle", get, "CurrentClocksEventReasons"), dict):
        keep("throttle", get, "CurrentClocksThrottleReasons")
    keep("max_sm_mhz", get, "MaxClockInfo", 1)
    keep("recovery", recovery_action, nv, handle)
    keep("fabric_state", fabric_state, nv, handle, row)
    for index, name in enumerate(("channel_repair", "tpc_repair")):
        keep(name, lambda: get("RepairStatus")[index])
    keep("links", link_states, nv, handle)
    keep("processes", lambda: [[p.pid, p.usedGpuMemory] for p in get("ComputeRunningProcesses")])


def memory_info(nv, handle):
    """Total and used as nvidia-smi shows them; drivers before 510 count the reserved part as used.

    The first version of the structure does so with every driver: half a GB on an idle H100.
    """
    try:
        return nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
    except (nv.NVMLError, AttributeError, TypeError):  # a lost card refuses the first one, too
        return nv.nvmlDeviceGetMemoryInfo(handle)


def sram_threshold(nv, handle):
    """1 where the card has counted too many SRAM errors in its life (driver 550 or newer)."""
    status = nv.c_nvmlEccSramErrorStatus_v1_t()
    nv.nvmlDeviceGetSramEccErrorStatus(handle, nv.byref(status))
    return int(status.bThresholdExceeded)


def recovery_action(nv, handle):
    value = nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    if value.nvmlReturn != 0:
        raise nv.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def fabric_state(nv, handle, row):
    """The state in words; `row` gets the status where it is complete, and the health."""
    try:
        info = nv.c_nvmlGpuFabricInfo_v3_t()
        nv.nvmlDeviceGetGpuFabricInfoV(handle, nv.byref(info))
        row["fabric_summary"] = info.healthSummary
    except (nv.NVMLError, AttributeError):  # a driver or library that has no third version
        info = nv.c_nvmlGpuFabricInfoV_t()
        info.version = nv.nvmlGpuFabricInfo_v2
        nv.nvmlDeviceGetGpuFabricInfoV(handle, nv.byref(info))
    row["fabric_health"] = info.healthMask
    if info.state == 3:
        row["fabric_status"] = "Success" if info.status == 0 else "error %d" % info.status
    states = {0: None, 1: "Not Started", 2: "In Progress", 3: "Completed"}
    return states.get(info.state, str(info.state))


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
