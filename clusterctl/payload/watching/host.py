"""What the watcher reads of the machine: processor, memory, links, disks."""

import glob
import os
import re
import threading
import time

from clusterctl.payload.proc_files import read_word
from clusterctl.payload.tools import section

IB = "/sys/class/infiniband"
NET = "/sys/class/net/"
# Bridges and virtual interfaces would count the same bytes again.
NOT_A_CABLE = re.compile(r"lo$|veth|docker|br-|cni|virbr|tun|tap|flannel|cali|kube|nodelocal|dummy")
LINKS = 24
# Reading a counter of a card queries its firmware: what changes slowly is read seldom.
EVERY_S = {"rates": 2.0, "errors": 10.0, "states": 5.0}
ERROR_COUNTERS = """symbol_error link_error_recovery port_rcv_errors port_xmit_discards
local_link_integrity_errors excessive_buffer_overrun_errors""".split()
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
        version = r"\s(\d{3,}\.\d+(?:\.\d+)?)\s"
        found = re.search(version, read_word("/proc/driver/nvidia/version", "", 400))
        driver = found.group(1) if found else ""  # "" where there is none
        self._once = {"cpus": os.cpu_count(), "up": first_number("/proc/uptime"), "driver": driver}

    def read(self):
        now = dict(self._once, load1=first_number("/proc/loadavg"), mem=memory_mib())
        before, self._cpu = self._cpu, cpu_ticks()
        now["cpu"] = None
        if before and self._cpu and self._cpu[1] > before[1]:
            now["cpu"] = round((self._cpu[0] - before[0]) / (self._cpu[1] - before[1]), 3)
        now.update(self._links.read())
        if self.disks.newest is not None:
            now["disks"] = self.disks.newest
        return now


def cpu_ticks():
    """(busy, all) since boot; waiting for a disk is not busy, guests count in user already."""
    ticks = [int(word) for word in read_word("/proc/stat", "", 400).split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if ticks else None


def memory_mib():
    """[in use, total]; in use is what could not be had without swapping."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_word("/proc/meminfo", "", 400), re.M))
    if "MemAvailable" not in found:
        return None
    total, free = int(found["MemTotal"]) >> 10, int(found["MemAvailable"]) >> 10
    return [total - free, total]


class Link:
    def __init__(self, kind, top):
        self.top, self.kind = top, kind
        self.facts = ["?", None, None]  # the columns of a LINK from its state on
        self.rates, self.errors = [None, None], None
        self._before = (0.0, [None, None])  # monotonic, bytes received and sent
        self._counts = []  # (monotonic, errors) of the last minute

    def set_rates(self, counts, now):
        before, self._before = self._before, (now, counts)
        seconds = now - before[0]
        self.rates = [None, None]
        for index, (old, value) in enumerate(zip(before[1], counts)):
            # A counter that goes back was reset: no rate is better than a wrong one.
            if None not in (old, value) and value >= old and seconds > 0:
                self.rates[index] = short((value - old) / seconds / 1e6)

    def set_errors(self, errors, now):
        if self._counts and errors < self._counts[-1][1]:
            del self._counts[:]
        self._counts.append((now, errors))
        while now - self._counts[0][0] > MINUTE_S + 1.0:
            del self._counts[0]
        self.errors = errors - self._counts[0][1]

    def read_port(self, due, now):
        counters = self.top + "/counters/"
        if due["states"]:
            self.kind = "eth" if read_word(self.top + "/link_layer") == "Ethernet" else "ib"
            state = (read_word(self.top + "/state") or "?").split(":")[-1].strip().capitalize()
            losses = counter(counters + "link_downed")
            self.facts = [state, first_number(self.top + "/rate"), losses]
        if due["rates"]:
            # Counted in words of four bytes.
            counts = [counter(counters + name) for name in ("port_rcv_data", "port_xmit_data")]
            self.set_rates([None if count is None else 4 * count for count in counts], now)
        if due["errors"]:
            self.set_errors(sum(counter(counters + name) or 0 for name in ERROR_COUNTERS), now)

    def read_card(self, received, sent, errors, due, now):
        if due["states"]:
            speed = first_number(self.top + "/speed")
            gbps = speed / 1000 if speed and speed > 0 else None
            losses = counter(self.top + "/carrier_down_count")
            self.facts = [read_word(self.top + "/operstate") or "?", gbps, losses]
        self.set_rates([received, sent], now)
        if due["errors"]:
            self.set_errors(errors, now)


class Links:
    """Ports of InfiniBand and network cards: rates, states, growing errors."""

    def __init__(self):
        self._ports = {}  # device/port -> Link
        for top in sorted(glob.glob(IB + "/*/ports/*"))[:LINKS]:
            device, _, port = top.split("/")[-3:]
            self._ports["%s/%s" % (device, port)] = Link("ib", top)
        self._due = dict.fromkeys(EVERY_S, 0.0)
        self._cards = {}  # name -> Link
        self._cables = []  # type: list
        self.read()

    def read(self):
        now = time.monotonic()
        due = {what: now >= at_s for what, at_s in self._due.items()}
        self._due.update({what: now + EVERY_S[what] - 0.1 for what in due if due[what]})
        counts = network_counts()
        if due["states"]:
            self._cables = cables(counts or {})
        for link in self._ports.values():
            link.read_port(due, now)
        if counts is not None:
            known = self._cards
            names = [name for name in counts if name in self._cables]
            self._cards = {name: known.get(name) or Link("eth", NET + name) for name in names}
            for name, link in self._cards.items():
                link.read_card(*counts[name], due, now)
        links = sorted({**self._ports, **self._cards}.items())[:LINKS]
        answer = {"links": len(links)}  # type: dict
        for index, (name, link) in enumerate(links):
            answer["L%d" % index] = [name, link.kind, *link.facts]
            answer["l%d" % index] = link.rates + [link.errors]
        total = sum(rate for _, link in links for rate in link.rates if rate)
        answer["net"] = short(total) if counts is not None or self._ports else None
        return answer


def network_counts():
    """{name: (bytes in, bytes out, errors)} of interfaces that may be cards."""
    text = read_word("/proc/net/dev")
    if text is None:
        return None
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.strip().partition(":")
        words = [int(word) for word in rest.split()]
        if len(words) >= 16 and not NOT_A_CABLE.match(name):
            found[name] = (words[0], words[8], words[2] + words[10])
    return found


def cables(names):
    """Cards with hardware behind them; in a container, which sees none, what is up."""
    real = [name for name in names if os.path.exists(NET + name + "/device")]
    return real or [name for name in names if read_word(NET + name + "/operstate") != "down"]


def counter(path):
    text = read_word(path, "", 200)
    return int(text) if text.isdigit() else None


def first_number(path):
    found = re.match(r"-?\d+(\.\d+)?", read_word(path, "", 200))
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
        """/, /dev/shm, what the head names, and every real file system once; known ones first."""
        text = read_word("/proc/mounts")
        if text is None and self._asked:
            return self._asked
        rows = [line.split()[:3] for line in (text or "").splitlines()]
        devices = {path.replace("\\040", " "): device for device, path, _ in rows}
        real = [path.replace("\\040", " ") for _, path, kind in rows if REAL_FS.match(kind)]
        wanted = ["/", "/dev/shm"] + self._paths
        wanted += [path for path in self._asked if path in real] + real
        chosen = {}  # type: dict
        for path in wanted:
            device = devices.get(path, path)
            # The same device under another name is the same disk (bind mounts, containers).
            key = device if device.startswith(("/dev/", "//")) or ":" in device else path
            if path != "/dev/shm" or path in devices:
                chosen.setdefault(key, path)
        self._asked = list(chosen.values())[:DISKS]
        return self._asked

    def _ask(self, path):
        """A DISK of columns.py; what only root may use counts as used."""
        if time.monotonic() - self._hung.get(path, -HUNG_AGAIN_S) < HUNG_AGAIN_S:
            return [path, None, None, ""]
        answer = section("", ["stat", "-f", "-c", "%S %b %a", path], DISK_TIMEOUT_S)
        if answer["state"] == "timeout":
            self._hung[path] = time.monotonic()
            return [path, None, None, ""]
        words = answer["out"].split()
        if answer["rc"] != 0 or len(words) != 3 or not all(word.isdigit() for word in words):
            reason = answer["err"].strip().rpartition(": ")[2][-REASON:]
            return [path, None, None, reason or "stat: %s" % answer["state"]]
        size, blocks, free = map(int, words)
        return [path, size * (blocks - free) >> 20, size * blocks >> 20, ""]
