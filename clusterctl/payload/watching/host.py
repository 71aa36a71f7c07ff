"""What the watcher reads of the machine: processor, memory, links, disks."""

from __future__ import annotations

import glob
import os
import re
import threading
import time

from clusterctl.payload.prelude import SECTIONS, read_text, section

IB = "/sys/class/infiniband"
NET = "/sys/class/net"
# Bridges and virtual interfaces would count the same bytes again.
NOT_A_CABLE = re.compile(r"lo$|veth|docker|br-|cni|virbr|tun|tap|flannel|cali|kube|nodelocal|dummy")
LINKS = 24
# Reading a counter of a card queries its firmware: what changes slowly is read seldom.
RATES_S, ERRORS_S, STATES_S = 2.0, 10.0, 5.0
ERROR_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
)
MINUTE_S = 60.0
DISKS_S, DISK_TIMEOUT_S, HUNG_AGAIN_S = 30.0, 3.0, 300.0
DISKS = 12
REASON = 120  # characters
REAL_FS = re.compile(
    r"(ext[234]|xfs|btrfs|zfs|f2fs|bcachefs|nfs4?|lustre|gpfs|beegfs|ceph|cifs|wekafs|"
    r"fuse\.(?!portal|gvfs|lxcfs|snapfuse).*|9p|virtiofs)$"
)


class Host:
    """Everything but GPUs and the kernel's log; `read()` never waits for a disk."""

    def __init__(self, paths):
        self.disks = Disks(paths)
        self._links = Links()
        self._cpu = cpu_ticks()
        self._once = {"cpus": os.cpu_count(), "up": uptime_s(), "driver": driver()}

    def read(self):
        now = dict(self._once)
        now["cpu"] = self._cpu_share()
        now["load1"] = load1()
        now["mem"] = memory_mib()
        now.update(self._links.read())
        if self.disks.newest is not None:
            now["disks"] = self.disks.newest
        return now

    def _cpu_share(self):
        before, self._cpu = self._cpu, cpu_ticks()
        if before is None or self._cpu is None or self._cpu[1] <= before[1]:
            return None
        return round((self._cpu[0] - before[0]) / (self._cpu[1] - before[1]), 3)


def cpu_ticks():
    """(busy, all) since boot; waiting for a disk is not busy, guests count in user already."""
    try:
        ticks = [int(word) for word in read_text("/proc/stat", 400).split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    except (OSError, ValueError, IndexError):
        return None


def load1():
    try:
        return float(read_text("/proc/loadavg").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def memory_mib():
    """[in use, total]; in use is what could not be had without swapping."""
    try:
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text("/proc/meminfo", 400), re.M))
        total, free = int(found["MemTotal"]) >> 10, int(found["MemAvailable"]) >> 10
    except (OSError, KeyError):
        return None
    return [total - free, total]


def uptime_s():
    try:
        return float(read_text("/proc/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def driver():
    """Version of the NVIDIA driver, "" where there is none."""
    try:
        found = re.search(
            r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", read_text("/proc/driver/nvidia/version", 400)
        )
    except OSError:
        return ""
    return found.group(1) if found else ""


class Links:
    """Ports of InfiniBand and network cards: rates, states, growing errors."""

    def __init__(self):
        self._ports = infiniband_ports()
        self._due = {"rates": 0.0, "errors": 0.0, "states": 0.0}
        self._at_s = {}  # name -> (monotonic, received, sent)
        self._history = {}  # name -> [(monotonic, errors)], a minute of them
        self._known = {}  # name -> {"kind", "state", "gbps", "downs", "rates", "errors"}
        self._cables = []  # type: list
        self.read()

    def read(self):
        now = time.monotonic()
        due = {what: now >= at_s for what, at_s in self._due.items()}
        for what, every_s in (("rates", RATES_S), ("errors", ERRORS_S), ("states", STATES_S)):
            if due[what]:
                self._due[what] = now + every_s - 0.1
        devices = network_devices()
        if due["states"]:
            self._cables = cables(devices or {})
        devices = devices and {name: devices[name] for name in devices if name in self._cables}
        for port, top in self._ports:
            self._read_port(port, top, due, now)
        if devices is not None:
            for name, (received, sent, errors) in devices.items():
                self._read_device(name, received, sent, errors, due, now)
            for name in [
                n
                for n, k in self._known.items()
                if k["kind"] == "eth" and n not in devices and "/" not in n
            ]:
                del self._known[name]
        return self._lines(devices is not None)

    def _read_port(self, port, top, due, now):
        known = self._known.setdefault(port, new_link("ib"))
        if due["states"]:
            layer = read_word(top + "/link_layer")
            known["kind"] = "eth" if layer == "Ethernet" else "ib"
            known["state"] = (
                (read_word(top + "/state") or "?: ?").split(":")[-1].strip().capitalize()
            )
            known["gbps"] = first_number(read_word(top + "/rate"))
            known["downs"] = counter(top + "/counters/link_downed")
        if due["rates"]:
            # Counted in words of four bytes.
            rates = [
                counter(top + "/counters/" + name) for name in ("port_rcv_data", "port_xmit_data")
            ]
            received, sent = (None if value is None else 4 * value for value in rates)
            self._set_rates(port, known, received, sent, now)
        if due["errors"]:
            errors = [counter(top + "/counters/" + name) for name in ERROR_COUNTERS]
            self._set_errors(port, known, sum(e for e in errors if e is not None), now)

    def _read_device(self, name, received, sent, errors, due, now):
        known = self._known.setdefault(name, new_link("eth"))
        if due["states"]:
            known["state"] = read_word("%s/%s/operstate" % (NET, name)) or "?"
            speed = first_number(read_word("%s/%s/speed" % (NET, name)))
            known["gbps"] = speed / 1000 if speed and speed > 0 else None
            known["downs"] = counter("%s/%s/carrier_down_count" % (NET, name))
        self._set_rates(name, known, received, sent, now)
        if due["errors"]:
            self._set_errors(name, known, errors, now)

    def _set_rates(self, name, known, received, sent, now):
        before = self._at_s.get(name)
        self._at_s[name] = (now, received, sent)
        known["rates"] = [None, None]
        if before is None or now <= before[0]:
            return
        for index, value in ((0, received), (1, sent)):
            old = before[1 + index]
            # A counter that goes back was reset: no rate is better than a wrong one.
            if value is not None and old is not None and value >= old:
                known["rates"][index] = short((value - old) / (now - before[0]) / 1e6)

    def _set_errors(self, name, known, errors, now):
        history = self._history.setdefault(name, [])
        if history and errors < history[-1][1]:
            del history[:]
        history.append((now, errors))
        while now - history[0][0] > MINUTE_S + 1.0:
            del history[0]
        known["errors"] = errors - history[0][1]

    def _lines(self, counted):
        answer = {"links": 0}  # type: dict
        total = 0.0
        for index, name in enumerate(sorted(self._known)[:LINKS]):
            known = self._known[name]
            answer["links"] += 1
            answer["L%d" % index] = [
                name,
                known["kind"],
                known["state"],
                known["gbps"],
                known["downs"],
            ]
            answer["l%d" % index] = known["rates"] + [known["errors"]]
            total += sum(rate for rate in known["rates"] if rate)
        answer["net"] = short(total) if counted or self._ports else None
        return answer


def new_link(kind):
    return {
        "kind": kind,
        "state": "?",
        "gbps": None,
        "downs": None,
        "rates": [None, None],
        "errors": None,
    }


def infiniband_ports():
    """(device/port, its folder) of every port."""
    found = []
    for top in sorted(glob.glob(IB + "/*/ports/*"))[:LINKS]:
        words = top.split("/")
        found.append(("%s/%s" % (words[-3], words[-1]), top))
    return found


def network_devices():
    """{name: (bytes in, bytes out, errors)} of interfaces that may be cards."""
    try:
        lines = read_text("/proc/net/dev").splitlines()[2:]
    except OSError:
        return None
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words, name = rest.split(), name.strip()
        if len(words) < 16 or NOT_A_CABLE.match(name):
            continue
        try:
            found[name] = (int(words[0]), int(words[8]), int(words[2]) + int(words[10]))
        except ValueError:
            continue
    return found


def cables(names):
    """Cards with hardware behind them; in a container, which sees none, what is up."""
    real = [name for name in names if os.path.exists("%s/%s/device" % (NET, name))]
    return real or [name for name in names if read_word("%s/%s/operstate" % (NET, name)) != "down"]


def read_word(path):
    try:
        return read_text(path, 200).strip()
    except (OSError, ValueError):
        return None


def counter(path):
    text = read_word(path)
    return int(text) if text is not None and text.isdigit() else None


def first_number(text):
    found = re.match(r"-?\d+(\.\d+)?", text or "")
    return float(found.group(0)) if found else None


def short(value):
    """Three digits are enough for a rate, and few bytes."""
    return float("%.3g" % value) if value < 1000 else round(value)


class Disks:
    """File systems, each read by its own process: a mount that hangs must not hang this one."""

    def __init__(self, paths):
        self._paths = [path for path in paths if isinstance(path, str) and path.startswith("/")]
        self._hung = {}  # path -> monotonic
        self._asked = []  # type: list  # paths of the last time
        self.newest = None
        self.first_answer = threading.Event()

    def read_forever(self):
        while True:
            self.newest = [self._ask(path) for path in self.of_interest()]
            self.first_answer.set()
            time.sleep(DISKS_S)

    def of_interest(self):
        """/, /dev/shm, what the head names, and every real file system once.

        What was asked before comes first: a path that is not in the list is mounted no more.
        """
        found, seen = [], set()
        mounts = []
        try:
            for line in read_text("/proc/mounts").splitlines():
                words = line.split()
                if len(words) > 2:
                    mounts.append((words[1].replace("\\040", " "), words[0], words[2]))
        except OSError:
            if self._asked:
                return self._asked
        by_path = {path: (device, kind) for path, device, kind in mounts}
        real = [path for path, _, kind in mounts if REAL_FS.match(kind)]
        wanted = ["/", "/dev/shm"] + self._paths
        wanted += [path for path in self._asked if path in real] + real
        for path in wanted:
            device, _ = by_path.get(path, (path, ""))
            # The same device under another name is the same disk (bind mounts, containers).
            key = device if device.startswith(("/dev/", "//")) or ":" in device else path
            if path in found or key in seen or (path == "/dev/shm" and path not in by_path):
                continue
            seen.add(key)
            found.append(path)
        self._asked = found[:DISKS]
        return self._asked

    def _ask(self, path):
        """[path, MiB used, MiB, ""]; what only root may use counts as used.

        Two nulls with "" where it hangs, with a reason where it could not be asked.
        """
        if time.monotonic() - self._hung.get(path, -HUNG_AGAIN_S) < HUNG_AGAIN_S:
            return [path, None, None, ""]
        answer = section("disk", ["stat", "-f", "-c", "%S %b %a", path], DISK_TIMEOUT_S)
        SECTIONS.pop("disk", None)
        if answer["state"] == "timeout":
            self._hung[path] = time.monotonic()
            return [path, None, None, ""]
        words = answer["out"].split()
        if answer["rc"] != 0 or len(words) != 3 or not all(word.isdigit() for word in words):
            reason = answer["err"].strip().rpartition(": ")[2][-REASON:]
            return [path, None, None, reason or "stat: %s" % answer["state"]]
        size, blocks, free = (int(word) for word in words)
        return [path, size * (blocks - free) >> 20, size * blocks >> 20, ""]
