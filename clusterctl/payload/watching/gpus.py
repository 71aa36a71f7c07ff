"""The watcher's GPUs by NVML (pynvml is sent along), else nvidia-smi, in their own thread."""

import contextlib
import glob
import os
import re
import select
import subprocess
import threading
import time

from clusterctl.payload.collect.nvml import memory_info
from clusterctl.payload.jobs.processes import process, rank_number, tags
from clusterctl.payload.proc_files import age_s, as_text, owner_of, read_text, user_name
from clusterctl.payload.tools import error_text, forget_tool, kill_group, start_tool
from clusterctl.payload.watching.columns import CARD

SMI_QUERY = (
    "index,name,power.draw,enforced.power.limit,utilization.gpu,memory.used,memory.total,"
    "temperature.gpu,clocks.sm"
)
SMI_ROW = re.compile(r"\d{1,4}, ")
SMI_AGAIN_S = 30.0  # between tries when the driver refuses
# NVML fails before the driver is loaded, and when it is reset; nvidia-smi tells less.
NVML_AGAIN_S = 300.0
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
        while True:
            try:
                self._nvml_forever()
            except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
                why = "NVML: " + error_text(error)
            if not self._smi_until(time.monotonic() + NVML_AGAIN_S, why):
                return

    def _nvml_forever(self):
        """Raises why NVML cannot be used."""
        import pynvml

        self._waiting_for = "NVML"
        pynvml.nvmlInit()
        try:
            cards = Cards(pynvml)
            while True:
                started = time.monotonic()
                self._set(cards.read())
                time.sleep(max(0.05, self._interval_s - (time.monotonic() - started)))
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _smi_until(self, until_s, why):
        """Whether there are GPUs."""
        while time.monotonic() < until_s:
            try:
                again_s = self._smi(until_s, why)
            except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
                self._set(unknown("nvidia-smi: %s" % error))
                again_s = SMI_AGAIN_S
            if again_s is None:
                return False
            # The error stays an answer while we wait for the next try.
            next_s = min(until_s, time.monotonic() + again_s)
            while time.monotonic() < next_s:
                with self._lock:
                    self._at_s = time.monotonic()
                time.sleep(max(0.0, min(1.0, next_s - time.monotonic())))
        return True

    def _smi(self, until_s, why):
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
                if time.monotonic() >= until_s:
                    kill_group(child)
                    return 0.0
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
    try:
        vendors = {path: read_text(path) for path in glob.glob("/sys/bus/pci/devices/*/vendor")}
        found = [path[:-6] for path, vendor in vendors.items() if vendor.strip() == "0x10de"]
        return sum(read_text(folder + "class").startswith("0x03") for folder in found)
    except OSError:
        return None


class Cards:
    """All cards by NVML; what a card does not support is null."""

    def __init__(self, pynvml):
        self._nv = pynvml
        self._handles = {}  # type: dict
        self._rows = {}  # index -> its CARD of columns.py
        self._due = {}  # type: dict
        self._processes = None
        self._known = {}  # (pid, start) -> what does not change of a process

    def read(self):
        """The keys gpus, gN, hN, procs."""
        nv, ask = self._nv, self._ask
        count = nv.nvmlDeviceGetCount()
        answer = {"gpus": count}
        static = self._is_due("static", STATIC_S)
        ecc, links = self._is_due("ecc", ECC_S), self._is_due("links", LINKS_S)
        for index in range(count):
            row = self._rows.setdefault(index, [None] * len(CARD))
            try:
                handle = self._handle(index)
                if static or row[0] is None:
                    row[:4] = [
                        ask(lambda: nv.nvmlDeviceGetName(handle)),
                        ask(lambda: nv.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
                        ask(lambda: memory_info(nv, handle).total >> 20),
                        ask(lambda: nv.nvmlDeviceGetPciInfo(handle).busId),
                    ]
                if ecc or row[4] is None:
                    row[4] = ask(lambda: nv.nvmlDeviceGetTotalEccErrors(handle, 1, 0))
                if links:
                    row[5:] = self._ask_links(handle)
                answer["g%d" % index] = [  # a GPU of columns.py
                    ask(lambda: round(nv.nvmlDeviceGetPowerUsage(handle) / 1000)),
                    ask(lambda: nv.nvmlDeviceGetUtilizationRates(handle).gpu),
                    ask(lambda: memory_info(nv, handle).used >> 20),
                    ask(lambda: nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)),
                    ask(lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)),
                    ask(lambda: int(nv.nvmlDeviceGetCurrentClocksEventReasons(handle)) & TROUBLE),
                    ask(lambda: nv.nvmlDeviceGetTotalEnergyConsumption(handle) // 1000),  # mJ
                ]
                answer["h%d" % index] = list(row)
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

    def _ask(self, question):
        """The answer, None where the card has none for this; a lost card raises."""
        nv = self._nv
        try:
            return question()
        except nv.NVMLError as error:
            if error.value in (nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_RESET_REQUIRED):
                raise
            return None

    def _ask_links(self, handle):
        """[NVLinks that are up, NVLinks]; nulls for a card without."""
        states = []  # type: list
        while len(states) < NVLINKS:
            state = self._ask(lambda: self._nv.nvmlDeviceGetNvLinkState(handle, len(states)))
            if state is None:
                break
            states.append(int(state))
        return [sum(states), len(states)] if states else [None, None]

    def _ask_processes(self, count):
        """A PROCESS of columns.py for each holder of memory; None if unknown."""
        found, asked, list_of = [], False, self._nv.nvmlDeviceGetComputeRunningProcesses
        for index in range(count):
            try:
                running = self._ask(lambda: list_of(self._handle(index)))
            except self._nv.NVMLError:
                continue
            asked = asked or running is not None
            for one in (running or [])[:PROCESSES]:
                # 32 MiB are the resolution, so that slow growth is not sent each time.
                memory = one.usedGpuMemory and (one.usedGpuMemory >> 25) << 5
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
        uid = owner_of(pid)
        run, _, _, rank = tags(pid)
        user = "?" if uid is None else user_name(uid)
        return user, facts.command, run or "", rank_number(rank), round(age_s(facts.start))
