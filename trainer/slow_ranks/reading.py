"""What a rank reads of itself, its GPU and its node when some rank is slow; on a thread, for some
seconds, never before. What cannot be read is absent."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# A quota may keep a process from running for more than a second, and the kernel counts that only
# when it runs again.
SHORTEST_S, LONGEST_S = 3.0, 20.0
STEPS = 2  # read for so long, so that the slow phase is in it
LOOKS = 20  # at the state of decoding processes
FOREIGN = 0.5  # CPUs of one program that make it worth a name
_TICK = os.sysconf("SC_CLK_TCK")
_IB_ERRORS = frozenset(
    (
        "symbol_error",
        "link_error_recovery",
        "port_rcv_errors",
        "port_xmit_discards",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    )
)
_IB, _IB_PORTS = Path("/sys/class/infiniband"), "*/ports/*"


def seconds_of(step_s: float) -> float:
    """How long to read where a step takes so long."""
    return min(max(STEPS * step_s, SHORTEST_S), LONGEST_S)


class Reader:
    """Begins to read at once, for some seconds; `taken` gives what it has by now, and never
    waits."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._device, self._seconds = device, seconds
        self._found: dict[str, Any] = {"host": socket.gethostname()}
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="slow-rank reading", daemon=True).start()

    def taken(self) -> dict[str, Any]:
        with self._lock:
            return dict(self._found)

    def _run(self) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # the kernel has no such files, or other ones
            self._read()

    def _read(self) -> None:
        before, began = _counters(), time.monotonic()
        waits, waits_of_children = _waits(), _waits_of_children()
        own = _tree()
        foreign_before = _processor_s(own)
        card, states, mhz = _card(self._device), "", 0.0
        for _ in range(LOOKS):
            time.sleep(self._seconds / LOOKS)
            states += _states_of_children()
            mhz = max(mhz, _sm_mhz(*card) if card else 0.0)
        after, passed_s = _counters(), time.monotonic() - began
        found: dict[str, Any] = {
            k: (after[k] - v) / passed_s for k, v in before.items() if k in after
        }
        for name, was, is_now in (
            ("cpu_wait", waits, _waits()),
            ("decoders_cpu_wait", waits_of_children, _waits_of_children()),
        ):
            if grown := [is_now[key] - was[key] for key in was if key in is_now]:
                found[name] = max(grown) / passed_s
        found |= _foreign(foreign_before, _processor_s(own), passed_s)
        found |= _pressure() | _cpu_mhz() | _infiniband_rate()
        if card:
            found |= gpu_figures(*card)
        if mhz:
            found["sm_mhz"] = mhz
        if states:
            found["decoders_disk"] = states.count("D") / len(states)
            found["decoders_busy"] = states.count("R") / len(states)
        with self._lock:
            self._found |= found


def _text(path: str | Path) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def _counters() -> dict[str, float]:
    """Sums whose growth by the second is a share or a rate."""
    found = {}
    ticks = _text("/proc/stat").partition("\n")[0].split()[1:]
    if len(ticks) >= 8:
        found["steal"] = int(ticks[7]) / _TICK / (os.cpu_count() or 1)
    held_s = held_back_s(_text("/proc/self/cgroup"))
    found |= {"quota": held_s} if held_s is not None else {}
    errors = [
        int(text)
        for path in _IB.glob(f"{_IB_PORTS}/counters/*")
        if path.name in _IB_ERRORS and (text := _text(path).strip()).isdigit()
    ]
    return found | ({"ib_errors": float(sum(errors))} if errors else {})


def _waits() -> dict[int, float]:
    """Seconds for which threads that compute have waited for a CPU, by thread: the main one, and
    those of autograd, in which the backward pass of a GPU runs."""
    tasks = [path for path in Path("/proc/self/task").glob("*") if _computes(path)]
    return {int(path.name): wait_s for path in tasks if (wait_s := _wait_s(path)) is not None}


def _computes(task: Path) -> bool:
    return task.name == str(os.getpid()) or _text(task / "comm").startswith("pt_autograd")


def _waits_of_children() -> dict[int, float]:
    waits = {pid: _wait_s(Path(f"/proc/{pid}")) for pid in _children()}
    return {pid: wait_s for pid, wait_s in waits.items() if wait_s is not None}


def _wait_s(task: Path) -> float | None:
    """As the scheduler counts it; None where it does not, or the thread has ended."""
    words = _text(task / "schedstat").split()
    return int(words[1]) / 1e9 if len(words) == 3 else None


def held_back_s(groups: str, top: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Seconds for which quotas of control groups have kept this process from running, by the text
    of /proc/self/cgroup: version 1 (`cpu`) or 2, with the groups above. None where none counts."""
    known = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = top / controllers
        folder = root / path.lstrip("/")
        for one in (folder, *folder.parents[: len(folder.parts) - len(root.parts)]):
            held = re.search(
                r"^throttled_(usec|time) (\d+)$", _text(one / "cpu.stat"), re.MULTILINE
            )
            if held:
                known.append(int(held.group(2)) / (1e6 if held.group(1) == "usec" else 1e9))
    return sum(known) if known else None


def _processes() -> Iterator[tuple[int, str, list[str]]]:
    """(pid, name, fields of its stat from the state on)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            head, _, rest = _text(entry / "stat").rpartition(")")
            if fields := rest.split():
                yield int(entry.name), head.partition("(")[2], fields


def _tree() -> set[int]:
    """This training's processes on the node: all below the one that started this rank."""
    parents = {pid: int(fields[1]) for pid, _, fields in _processes()}
    above = os.getppid()
    own = {os.getpid(), above} if above > 1 else {os.getpid()}
    for pid in sorted(parents):
        line: list[int] = []
        at = pid
        while at > 1 and at not in own and at in parents and len(line) < 100:
            line.append(at)
            at = parents[at]
        if at in own:
            own.update(line)
    return own


def _processor_s(own: set[int]) -> dict[tuple[int, str], float]:
    """Processor seconds so far of each process that is none of this training's."""
    return {
        (pid, name): (int(fields[11]) + int(fields[12])) / _TICK
        for pid, name, fields in _processes()
        if pid not in own and int(fields[1]) not in own
    }


def _foreign(
    before: dict[tuple[int, str], float], after: dict[tuple[int, str], float], passed_s: float
) -> dict[str, Any]:
    used = {key: (after[key] - was) / passed_s for key, was in before.items() if key in after}
    found: dict[str, Any] = {"foreign_cores": sum(used.values())}
    busiest = max(used, key=lambda key: used[key], default=None)
    if busiest is not None and used[busiest] >= FOREIGN:
        pid, name = busiest
        found["foreign_name"] = f"{name}, pid {pid}: {used[busiest]:.1f} CPUs"
    return found


def _children() -> set[int]:
    """Processes that this one has started."""
    listed = (_text(path).split() for path in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for pids in listed for pid in pids}


def _states_of_children() -> str:
    """One letter of each of them, as the kernel has it."""
    states = (_text(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in _children())
    return "".join(fields[0] for fields in states if fields)


def _pressure() -> dict[str, float]:
    found = {}
    for name, what in (("io_stall", "io"), ("memory_stall", "memory")):
        if some := re.search(r"^some avg10=([\d.]+)", _text(f"/proc/pressure/{what}")):
            found[name] = float(some.group(1)) / 100
    return found


def _cpu_mhz() -> dict[str, float]:
    speeds = re.findall(r"^cpu MHz\s*: ([\d.]+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return {"cpu_mhz": max(map(float, speeds))} if speeds else {}


def _infiniband_rate() -> dict[str, float]:
    ports = [(_text(port / "state"), _text(port / "rate").split()) for port in _IB.glob(_IB_PORTS)]
    rates = [float(rate[0]) for state, rate in ports if "ACTIVE" in state and rate]
    return {"ib_gbps": sum(rates)} if ports else {}


def _card(device: torch.device) -> tuple[Any, Any] | None:
    """NVML and its handle of a card; None where its Python module or a driver is missing."""
    if device.type != "cuda":
        return None
    try:
        import pynvml as nv

        nv.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return nv, nv.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # noqa: BLE001 - no module, driver or answer: nothing is known of the GPU
        return None


def _sm_mhz(nv: Any, handle: Any) -> float:
    """0 where it does not tell. Its highest one counts: clocks of a card that computes at its power
    limit change all the time."""
    with contextlib.suppress(nv.NVMLError):
        return float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM))
    return 0.0


_NVLINKS = 18
_TROUBLE = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def gpu_figures(nv: Any, handle: Any) -> dict[str, Any]:
    """What NVML says of a card; what it does not answer is absent."""

    def trouble() -> str:
        bits = int(nv.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return ", ".join(words for bit, words in _TROUBLE.items() if bits & bit)

    def others() -> float:
        running = nv.nvmlDeviceGetComputeRunningProcesses(handle)
        return float(sum(one.pid != os.getpid() for one in running))

    def links() -> float:
        states = [nv.nvmlDeviceGetNvLinkState(handle, 0)]
        with contextlib.suppress(nv.NVMLError):
            while len(states) < _NVLINKS:
                states.append(nv.nvmlDeviceGetNvLinkState(handle, len(states)))
        return float(sum(states))

    questions = {
        "throttle": trouble,
        "power_limit_w": lambda: nv.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "gpu_processes": others,
        "pcie_width": lambda: float(nv.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "pcie_gen": lambda: float(nv.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "nvlinks": links,
    }
    found: dict[str, Any] = {}
    for name, ask in questions.items():
        with contextlib.suppress(nv.NVMLError):
            found[name] = ask()
    return found
