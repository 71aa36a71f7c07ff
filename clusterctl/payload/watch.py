"""Figures of this node as JSON lines, one an interval, until stdin closes.

ARGS: interval_s. A line is {"seq", "mono_s", "cpu", "cpus", "load1", "memory": {"used", "total"},
"network_bytes_s", "gpus": [...] | "gpu_csv": text, "gpu_error"}; what could not be read is null.
GPUs come from NVML where its library loads (pynvml's source came along), else as nvidia-smi's text.
They are read in a thread of their own: a driver that hangs must not silence the node.
"""

from __future__ import annotations

import glob
import os
import re
import select
import subprocess
import threading
import time

SMI_QUERY = "index,name,power.draw,enforced.power.limit,utilization.gpu,memory.used,memory.total,temperature.gpu,clocks.sm"
SMI_ROW = re.compile(r"\d+, ")
SMI_AGAIN_S = 30.0  # a driver that refuses is not asked each second
STATIC_EVERY = 60  # names and limits are read again this often
SETTLE_S = 0.25  # first difference of counters, so that the first line has a cpu share
FIRST_GPUS_S = 2.0  # the first line waits this long for the driver, so that one line can tell all


def main():
    hold_lease()
    interval_s = min(60.0, max(0.1, float(ARGS.get("interval_s", 1.0))))
    gpus = Gpus(interval_s)
    threading.Thread(target=gpus.read_forever, name="gpus", daemon=True).start()
    counters = Counters()
    time.sleep(min(SETTLE_S, interval_s))
    gpus.first_answer.wait(FIRST_GPUS_S)
    due = time.monotonic()
    sequence = 0
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        # One step from the time it was due, not from now: lines do not drift; after a pause
        # (laptop lid, SIGSTOP) missed lines are not caught up on.
        due = max(due + interval_s, time.monotonic())
        sequence += 1
        line = {"seq": sequence, "mono_s": round(time.monotonic(), 3), "cpus": os.cpu_count()}
        line.update(counters.read())
        line["load1"] = load1()
        line["memory"] = memory()
        line.update(gpus.newest())
        emit(line)


def load1():
    try:
        return float(read_text("/proc/loadavg").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def memory():
    """Bytes in use (total less what could be had without swapping) and in total."""
    try:
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text("/proc/meminfo"), re.M))
        total, free = int(found["MemTotal"]) << 10, int(found["MemAvailable"]) << 10
    except (OSError, KeyError):
        return None
    return {"used": total - free, "total": total}


class Counters:
    """Shares and rates out of counters that only grow."""

    def __init__(self):
        self._at_s, self._cpu, self._network = time.monotonic(), cpu_ticks(), network_bytes()

    def read(self):
        """Since the last call."""
        at_s, cpu, network = time.monotonic(), cpu_ticks(), network_bytes()
        answer = {"cpu": None, "network_bytes_s": None}
        if cpu and self._cpu and cpu[1] > self._cpu[1]:
            answer["cpu"] = round((cpu[0] - self._cpu[0]) / (cpu[1] - self._cpu[1]), 4)
        seconds = at_s - self._at_s
        if network is not None and self._network is not None and network >= self._network:
            answer["network_bytes_s"] = (
                round((network - self._network) / seconds) if seconds else None
            )
        self._at_s, self._cpu, self._network = at_s, cpu, network
        return answer


def cpu_ticks():
    """(busy, all) since boot; waiting for a disk is not busy, guests count in user already."""
    try:
        ticks = [int(word) for word in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    except (OSError, ValueError, IndexError):
        return None


def network_bytes():
    """Received and sent, physical and Ethernet-like devices and InfiniBand ports."""
    total = 0
    try:
        for line in read_text("/proc/net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            words = rest.split()
            # A bridge or a container's end of a cable would count the same bytes again.
            if len(words) >= 9 and not re.match(
                r"lo$|veth|docker|br-|cni|virbr|tun|tap", name.strip()
            ):
                total += int(words[0]) + int(words[8])
        for name in ("port_rcv_data", "port_xmit_data"):
            for path in glob.glob("/sys/class/infiniband/*/ports/*/counters/" + name):
                total += 4 * int(read_text(path))  # counted in words of four bytes
    except (OSError, ValueError, IndexError):
        return None
    return total


class Gpus:
    """Reads GPUs in its own thread; `newest()` never waits."""

    def __init__(self, interval_s):
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._answer = {"gpus": None, "gpu_error": "the driver has not answered yet"}  # type: dict
        self._at_s = time.monotonic()
        self._waiting_for = "the driver"
        self.first_answer = threading.Event()

    def newest(self):
        with self._lock:
            silent_s = time.monotonic() - self._at_s
            if self._answer.get("gpus") == [] or silent_s <= max(3 * self._interval_s, 5.0):
                return self._answer
            return {
                "gpus": None,
                "gpu_error": "%s: no answer for %d s" % (self._waiting_for, silent_s),
            }

    def _set(self, answer):
        with self._lock:
            self._answer, self._at_s = answer, time.monotonic()
        self.first_answer.set()

    def read_forever(self):
        try:
            why = self._nvml_forever()
        except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
            why = "NVML: %s: %s" % (type(error).__name__, error)
        while True:
            try:
                again_s = self._smi(why)
            except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the answer
                self._set({"gpus": None, "gpu_error": "nvidia-smi: %s" % error})
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
            return "pynvml did not come along"
        self._waiting_for = "NVML"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return "NVML: %s" % error
        round_number = 0
        static = {}  # type: dict
        while True:
            begun = time.monotonic()
            self._set({"gpus": nvml_read(pynvml, static, round_number), "gpu_error": ""})
            round_number += 1
            time.sleep(max(0.05, self._interval_s - (time.monotonic() - begun)))

    def _smi(self, why):
        """Follow `nvidia-smi -l`; returns seconds until the next try, None when there are no GPUs."""
        self._waiting_for = "nvidia-smi"
        argv = ["nvidia-smi", "--query-gpu=" + SMI_QUERY, "--format=csv,noheader,nounits"]
        argv += ["-l", str(max(1, round(self._interval_s)))]
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=tool_env(),
                cwd="/",
            )
        except OSError as error:
            cards = nvidia_cards()
            if cards == 0 and isinstance(error, FileNotFoundError):
                self._set({"gpus": [], "gpu_error": ""})
                return None
            found = "this could not be asked" if cards is None else "%d NVIDIA devices" % cards
            self._set(
                {"gpus": None, "gpu_error": "PCI: %s; nvidia-smi: %s; %s" % (found, error, why)}
            )
            return SMI_AGAIN_S
        with _live_lock:
            _live[child.pid] = child  # so that the end of the lease ends it too
        said = ""
        try:
            for text in bursts(child.stdout):
                said = text.strip()[-600:] or said
                if SMI_ROW.match(said):
                    self._set({"gpu_csv": text.strip(), "gpu_error": ""})
                else:
                    self._set({"gpus": None, "gpu_error": "nvidia-smi: " + said})
            rc = child.wait(5)
        finally:
            with _live_lock:
                _live.pop(child.pid, None)
            child.stdout.close()  # type: ignore[union-attr]
        if rc == 0 and SMI_ROW.match(said):
            return max(1.0, self._interval_s)  # a driver or wrapper that knows no -l: asked again
        self._set({"gpus": None, "gpu_error": "nvidia-smi ended (%s): %s" % (rc, said[-300:])})
        return SMI_AGAIN_S


def bursts(pipe):
    """What a program writes, split where it pauses: `-l` prints all cards at once, then sleeps."""
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN | select.POLLHUP)
    text = b""
    while True:
        if not poller.poll(150 if text else None):
            yield text.decode("utf-8", "backslashreplace")
            text = b""
            continue
        data = os.read(pipe.fileno(), 65536)
        if not data:
            if text:
                yield text.decode("utf-8", "backslashreplace")
            return
        text = (text + data)[-65536:]


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


def nvml_read(pynvml, static, round_number):
    """One row a GPU in NVML's own units; a question that a card does not answer is left out."""
    rows = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        row = {"index": index}  # type: dict
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if round_number % STATIC_EVERY == 0 or index not in static:
                static[index] = nvml_static(pynvml, handle)
            row.update(static[index])
            row["power_mw"] = ask(pynvml, pynvml.nvmlDeviceGetPowerUsage, handle)
            util = ask(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle)
            row["util"] = None if util is None else util.gpu
            used = ask(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
            if used is not None:
                row["used"], row["total"] = used.used, used.total
            row["temperature_c"] = ask(
                pynvml, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
            )
            row["sm_mhz"] = ask(pynvml, pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
        except pynvml.NVMLError as error:
            row = {"index": index, "error": str(error)}
        rows.append(row)
    return rows


def nvml_static(pynvml, handle):
    name = ask(pynvml, pynvml.nvmlDeviceGetName, handle)
    name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return {"name": name, "limit_mw": ask(pynvml, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)}


def ask(pynvml, question, *args):
    """The answer, None where the card has none for this; a lost card raises."""
    try:
        return question(*args)
    except pynvml.NVMLError as error:
        lost = (pynvml.NVML_ERROR_GPU_IS_LOST, getattr(pynvml, "NVML_ERROR_RESET_REQUIRED", -1))
        if error.value in lost:
            raise
        return None
