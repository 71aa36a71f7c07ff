"""The watcher's GPUs by NVML (pynvml is sent along), else nvidia-smi, in their own thread."""

import glob
import os
import re
import select
import subprocess
import threading
import time

from clusterctl.payload.jobs.processes import TICKS, process, rank_number, tags
from clusterctl.payload.prelude import (
    as_text,
    error_text,
    forget_tool,
    read_text,
    start_tool,
    user_name,
)

SMI_QUERY = (
    "index,name,power.draw,enforced.power.limit,utilization.gpu,memory.used,memory.total,"
    "temperature.gpu,clocks.sm"
)
SMI_ROW = re.compile(r"\d+, ")
SMI_AGAIN_S = 30.0  # between tries when the driver refuses
PROCESSES_S, ECC_S, LINKS_S, STATIC_S = 5.0, 10.0, 30.0, 60.0  # what changes slowly is read seldom
# Throttle reasons that mean trouble: hw slowdown, sw and hw thermal, power brake. A busy card is
# at its power cap every other second.
TROUBLE = 0x8 | 0x20 | 0x40 | 0x80
NVLINKS = 18
PROCESSES = 128


class Gpus:
    """Reads GPUs in its own thread; `newest()` never waits."""

    def __init__(self, interval_s):
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._answer = unknown("the driver has not answered yet")
        self._at_s = time.monotonic()
        self._waiting_for = "the driver"
        self.first_answer = threading.Event()

    def newest(self):
        with self._lock:
            silent_s = time.monotonic() - self._at_s
            if self._answer.get("gpus") == 0 or silent_s <= max(3 * self._interval_s, 5.0):
                return self._answer
            return unknown("%s: no answer for %d s" % (self._waiting_for, silent_s))

    def _set(self, answer):
        with self._lock:
            self._answer, self._at_s = answer, time.monotonic()
        self.first_answer.set()

    def read_forever(self):
        try:
            why = self._nvml_forever()
        except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
            why = "NVML: " + error_text(error)
        while True:
            try:
                again_s = self._smi(why)
            except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
                self._set(unknown("nvidia-smi: %s" % error))
                again_s = SMI_AGAIN_S
            if again_s is None:
                return
            # The error stays an answer while we wait for the next try.
            until = time.monotonic() + again_s
            while time.monotonic() < until:
                with self._lock:
                    self._at_s = time.monotonic()
                time.sleep(1.0)

    def _nvml_forever(self):
        """Returns why NVML cannot be used; else does not return."""
        try:
            import pynvml
        except ImportError:
            return "pynvml was not sent along"
        self._waiting_for = "NVML"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return "NVML: %s" % error
        cards = Cards(pynvml)
        while True:
            started = time.monotonic()
            self._set(cards.read())
            time.sleep(max(0.05, self._interval_s - (time.monotonic() - started)))

    def _smi(self, why):
        """Follow `nvidia-smi -l`; returns seconds until the next try, None without GPUs."""
        self._waiting_for = "nvidia-smi"
        argv = ["nvidia-smi", "--query-gpu=" + SMI_QUERY, "--format=csv,noheader"]
        argv += ["-l", str(max(1, round(self._interval_s)))]
        try:
            child = start_tool(argv, stderr=subprocess.STDOUT)
        except OSError as error:
            cards = nvidia_cards()
            if cards == 0 and isinstance(error, FileNotFoundError):
                self._set({"gpus": 0})
                return None
            found = "cannot be read" if cards is None else "%d NVIDIA devices" % cards
            self._set(unknown("PCI: %s; nvidia-smi: %s; %s" % (found, error, why)))
            return SMI_AGAIN_S
        output = ""
        try:
            for text in bursts(child.stdout):
                output = text.strip()[-600:] or output
                is_table = SMI_ROW.match(output)
                self._set({"csv": text.strip()} if is_table else unknown("nvidia-smi: " + output))
            rc = child.wait(5)
        finally:
            forget_tool(child)
            child.stdout.close()
        if rc == 0 and SMI_ROW.match(output):
            return max(1.0, self._interval_s)  # a driver or wrapper without -l: run it again
        self._set(unknown("nvidia-smi ended (%s): %s" % (rc, output[-300:])))
        return SMI_AGAIN_S


def unknown(why):
    return {"gpus": None, "gpu_error": why}


def bursts(pipe):
    """What a program writes, split where it pauses: `-l` prints all cards at once, then sleeps."""
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN | select.POLLHUP)
    text = data = b""
    while True:
        has_more = poller.poll(150 if text else None)
        data = os.read(pipe.fileno(), 65536) if has_more else b""
        text = (text + data)[-65536:]
        if not data and text:
            yield as_text(text)
            text = b""
        if has_more and not data:
            return


def nvidia_cards():
    """NVIDIA devices of class display or 3D on the PCI bus; None when that cannot be read."""
    cards = 0
    try:
        for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
            if read_text(path).strip() == "0x10de":
                cards += read_text(os.path.join(os.path.dirname(path), "class")).startswith("0x03")
    except OSError:
        return None
    return cards


class Cards:
    """All cards by NVML; what a card does not support is null."""

    def __init__(self, pynvml):
        self._nv = pynvml
        self._handles = {}  # type: dict
        self._static = {}  # type: dict
        self._slow = {}  # index -> [ECC errors, links up, links]
        self._due = {}  # type: dict
        self._processes = None
        self._known = {}  # (pid, start) -> what does not change of a process
        old = getattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        self._throttle = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", old)

    def read(self):
        """The keys gpus, gN, hN, procs."""
        nv = self._nv
        count = nv.nvmlDeviceGetCount()
        answer = {"gpus": count}
        static = self._is_due("static", STATIC_S)
        ecc, links = self._is_due("ecc", ECC_S), self._is_due("links", LINKS_S)
        for index in range(count):
            try:
                handle = self._handle(index)
                if static or index not in self._static:
                    self._static[index] = self._ask_static(handle)
                    self._slow.setdefault(index, [None, None, None])
                slow = self._slow[index]
                if ecc or slow[0] is None:
                    slow[0] = self._ask(nv.nvmlDeviceGetTotalEccErrors, handle, 1, 0)
                if links:
                    slow[1:] = self._ask_links(handle)
                answer["g%d" % index] = self._ask_moving(handle)
                answer["h%d" % index] = self._static[index] + slow
            except nv.NVMLError as error:
                # A card that was reset has another handle.
                self._handles.pop(index, None)
                answer["g%d" % index] = str(error)
        if self._is_due("processes", PROCESSES_S):
            self._processes = self._ask_processes(count)
        if self._processes is not None:
            answer["procs"] = self._processes
        return answer

    def _is_due(self, what, every_s):
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s - 0.1
        return True

    def _handle(self, index):
        if index not in self._handles:
            self._handles[index] = self._nv.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]

    def _ask(self, question, *args):
        """The answer, None where the card has none for this; a lost card raises."""
        nv = self._nv
        if question is None:
            return None
        try:
            return question(*args)
        except nv.NVMLError as error:
            lost = (nv.NVML_ERROR_GPU_IS_LOST, getattr(nv, "NVML_ERROR_RESET_REQUIRED", -1))
            if error.value in lost:
                raise
            return None

    def _ask_moving(self, handle):
        """A GPU of rows.py."""
        nv = self._nv
        power = self._ask(nv.nvmlDeviceGetPowerUsage, handle)
        util = self._ask(nv.nvmlDeviceGetUtilizationRates, handle)
        used = self._ask(nv.nvmlDeviceGetMemoryInfo, handle)
        bits = self._ask(self._throttle, handle)
        return [
            None if power is None else round(power / 1000),
            None if util is None else util.gpu,
            None if used is None else used.used >> 20,
            self._ask(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
            self._ask(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_SM),
            None if bits is None else int(bits) & TROUBLE,
        ]

    def _ask_static(self, handle):
        """The first columns of a CARD of rows.py."""
        nv = self._nv
        name = self._ask(nv.nvmlDeviceGetName, handle)
        limit = self._ask(nv.nvmlDeviceGetEnforcedPowerLimit, handle)
        memory = self._ask(nv.nvmlDeviceGetMemoryInfo, handle)
        pci = self._ask(nv.nvmlDeviceGetPciInfo, handle)
        limit_w = None if limit is None else limit / 1000
        mib = None if memory is None else memory.total >> 20
        return [plain_text(name), limit_w, mib, None if pci is None else plain_text(pci.busId)]

    def _ask_links(self, handle):
        """[NVLinks that are up, NVLinks]; nulls for a card without."""
        states = []
        for link in range(NVLINKS):
            state = self._ask(self._nv.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break
            states.append(int(state))
        return [sum(states), len(states)] if states else [None, None]

    def _ask_processes(self, count):
        """A PROCESS of rows.py for each holder of memory; None if unknown."""
        found, asked = [], False
        list_running = self._nv.nvmlDeviceGetComputeRunningProcesses
        for index in range(count):
            try:
                running = self._ask(list_running, self._handle(index))
            except self._nv.NVMLError:
                continue
            asked = asked or running is not None
            for one in (running or [])[:PROCESSES]:
                memory = getattr(one, "usedGpuMemory", None)
                # 32 MiB are the resolution, so that slow growth is not sent each time.
                memory = None if memory is None else (memory >> 25) << 5
                found.append((one.pid, index, memory))
        if not asked and count:
            return None
        before, self._known, rows = self._known, {}, []
        for pid, index, memory in sorted(found)[:PROCESSES]:
            facts = process(pid)
            key = (pid, facts.start if facts else 0)
            known = self._known[key] = before.get(key) or self._describe(pid, facts)
            rows.append([pid, known[0], known[1], index, memory, *known[2:]])
        return rows

    def _describe(self, pid, facts):
        """(user, name, run, rank, age s); of another user only what everybody can see."""
        if facts is None:
            return "?", "?", "", None, None  # ended, or of another container
        try:
            user = user_name(os.stat("/proc/%d" % pid).st_uid)
        except OSError:
            user = "?"
        run, _, _, rank = tags(pid)
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - facts.start / TICKS
        return user, facts.command, run or "", rank_number(rank), round(age_s)


def plain_text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
