"""Readings of this node as JSON lines, one an interval, until stdin closes.

ARGS: interval_s; session and node (a new watcher of a session and node ends the old one, which its
head may have lost); ping_s (a head that sends nothing for twelve of those is gone); paths
(directories whose file systems matter).

The first line is {"n": 1, "key": {…}} with everything, each later one {"n": number, "d": {…}} with
changes beyond the resolution below; null means gone. Keys:
  cpus, driver, up: once
  cpu, load1, mem: [used, total] MiB, net: MB/s
  gpus: their number, null where unknown, with gpu_error; csv: nvidia-smi's text
  gN, hN: GPU N's row GPU (or an error's text) and row CARD of watching/columns.py
  links, lN, LN: the number of links, link N's rows RATES and LINK
  disks, procs: lists of rows DISK and PROCESS
  xlog: why the kernel's log cannot be read
Beside them, in the line where they happen: "step" (seconds by which the wall clock jumped against
the monotonic one), "x" (rows XID).
{"ping": id} on stdin is answered at once with {"pong": id, "t": wall clock}.
"""

import os
import signal
import time

from clusterctl.payload.files.locks import take_lock
from clusterctl.payload.files.private import lock_path
from clusterctl.payload.jobs.processes import process, send
from clusterctl.payload.prelude import ARGS, emit, hold_lease, leave
from clusterctl.payload.proc_files import wall_minus_boot
from clusterctl.payload.tools import in_thread
from clusterctl.payload.watching.gpus import Gpus
from clusterctl.payload.watching.host import Host
from clusterctl.payload.watching.kernel_log import KernelLog

SHARE = 0.03  # of the value, for rates, which span powers of ten
SMALLEST = 0.05  # MB/s below which rates do not matter
# A value is sent again when it differs by more than this from what was sent last.
RESOLUTION = {"cpu": (0.01,), "load1": (0.2,), "mem": (256.0, 0.0), "net": (SHARE,)}
RESOLUTION["g"] = (3.0, 2.0, 32.0, 1.0, 15.0, 0.0, 500.0)  # of the columns GPU
RESOLUTION["l"] = (SHARE, SHARE, 0.0)  # of the columns RATES
SETTLE_S = 0.25  # first difference of counters, so that the first line has a cpu share
FIRST_GPUS_S = 2.0  # the first line waits this long for the driver
STEP_S = 0.005  # what counts as a jump of the clock; ntpd and chrony slew by 0.0005 a second
PINGS_MISSED = 12
TAKE_OVER_S = 2.0

HEARD = [time.monotonic()]  # time of the head's last message


def main():
    hold_lease(on_message=answer)
    take_over(ARGS.get("session"), ARGS.get("node"))
    interval_s = min(60.0, max(0.1, float(ARGS.get("interval_s", 1.0))))
    ping_s = ARGS.get("ping_s")
    gpus, host, log = Gpus(interval_s), Host(ARGS.get("paths") or []), KernelLog()
    for reader in (gpus, host.disks, log):
        in_thread(reader.read_forever)
    time.sleep(min(SETTLE_S, interval_s))
    gpus.first_answer.wait(FIRST_GPUS_S)
    host.disks.first_answer.wait(0.2)
    log.first_answer.wait(0.2)
    sent = {}  # type: dict
    clock = ClockSteps()
    due = time.monotonic()
    number = 0
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        # One step from the time it was due, not from now: lines do not drift; after a pause
        # (laptop lid, SIGSTOP) missed lines are not caught up on.
        due = max(due + interval_s, time.monotonic())
        # A head that was cut off never closes stdin.
        if ping_s and time.monotonic() - HEARD[0] > max(30.0, PINGS_MISSED * ping_s):
            leave()
        number += 1
        now = dict(host.read(), **gpus.newest())
        if log.why:
            now["xlog"] = log.why
        line = {"n": number, "key" if number == 1 else "d": changes(sent, now)}
        events = {"step": clock.step(), "x": log.new_lines()}
        line.update({name: value for name, value in events.items() if value})
        emit(line)


def answer(message):
    HEARD[0] = time.monotonic()
    if "ping" in message:
        emit({"pong": message["ping"], "t": time.time()})


def take_over(session, node):
    """End an older watcher of the same head and node, and be the one that a newer one can end.

    The lock's file is in this user's own folder and names its holder; the end of the process frees
    it. Where no such folder can be made two may run: better than none.
    """
    if not session:
        return
    signal.signal(signal.SIGTERM, leave)
    started = time.monotonic()
    sent = {}  # type: dict  # signal -> whom it was sent to
    try:
        path = lock_path("watch", session, node)
        while time.monotonic() - started < TAKE_OVER_S:
            lock, holder = take_lock(path, "%d %d" % (os.getpid(), process(os.getpid()).start))
            if lock is not None:
                return  # its descriptor stays open
            is_frozen = time.monotonic() - started > TAKE_OVER_S / 2
            number = signal.SIGKILL if is_frozen else signal.SIGTERM
            if sent.get(number) != holder:
                sent[number] = holder
                pid, _, start = holder.partition(" ")
                facts = process(int(pid)) if pid.isdigit() else None
                if facts is not None and str(facts.start) == start and facts.pid != os.getpid():
                    send([facts.pid], number)
            time.sleep(0.02)
    except OSError:
        return


def changes(sent, now):
    """What of `now` differs from what was sent; updates `sent`."""
    found = {}
    for key, value in now.items():
        if key not in sent or differs(key, sent[key], value):
            found[key] = sent[key] = value
    for key in [key for key in sent if key not in now]:
        del sent[key]
        found[key] = None
    return found


def differs(key, old, new):
    family = key.rstrip("0123456789") if key != "load1" else key
    olds, news = (value if isinstance(value, list) else [value] for value in (old, new))
    if family not in RESOLUTION or len(olds) != len(news):
        return old != new
    return any(is_far(*three) for three in zip(olds, news, RESOLUTION[family]))


def is_far(old, new, step):
    if not (isinstance(old, (int, float)) and isinstance(new, (int, float))):
        return old != new
    return abs(old - new) > (max(SMALLEST, SHARE * abs(old)) if step == SHARE else step)


class ClockSteps:
    """Jumps of the wall clock against the clock since boot, which counts in sleep, too."""

    def __init__(self):
        self._apart = wall_minus_boot()

    def step(self):
        """Seconds since the last call, 0 where it only drifted."""
        before, self._apart = self._apart, wall_minus_boot()
        step = self._apart - before
        return round(step, 4) if abs(step) > STEP_S else 0
