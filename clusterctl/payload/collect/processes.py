"""Census: processes that hang in the kernel, zombies, and daemons that steer the clock."""

from __future__ import annotations

import os
import re
import time

from clusterctl.payload.prelude import call, read_text

TIME_DAEMONS = (
    "chronyd",
    "ntpd",
    "ntpsec-ntpd",
    "systemd-timesyn",
    "openntpd",
    "ptp4l",
    "phc2sys",
    "timemaster",
)
YOUNG_S = 10.0  # too young to hang


def look_at_processes(growth_s):
    call("processes", lambda: list_processes(growth_s), growth_s + 5.0)


def list_processes(growth_s):
    """Lines `daemon NAME PID`, `zombie NAME`, `blocked PID NAME SINCE WHERE`, `count N`…"""
    before = scan_processes()
    time.sleep(growth_s)
    lines = ["count\t%d" % len(before)]
    if 1 not in before:  # /proc is mounted with hidepid
        lines.append("hidden\tother users' processes cannot be seen here")
    for pid, (name, state, switches) in sorted(before.items()):
        if name in TIME_DAEMONS:
            lines.append("daemon\t%s\t%d" % (name, pid))
        if state not in "DZ":
            continue
        now = scan_one(pid)
        if now is None or now[1] != state:
            continue
        if state == "Z":
            lines.append("zombie\t%s" % name)
        elif now[2] == switches:  # it has not run in between
            since = blocked_since(pid)
            if scan_one(pid) == now:  # nor ended meanwhile
                lines.append("blocked\t%d\t%s\t%s\t%s" % ((pid, name) + since))
    return "\n".join(lines)


def scan_processes():
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            seen = scan_one(int(name))
            if seen is not None:
                found[int(name)] = seen
    return found


def scan_one(pid):
    """(name, state letter, context switches where it sleeps in the kernel) of a process."""
    try:
        head, _, tail = read_text("/proc/%d/stat" % pid, 512).rpartition(")")
        name, state = " ".join(head.partition("(")[2].split()), tail.split()[0]
        if state != "D":
            return name, state, ""
        status = read_text("/proc/%d/status" % pid, 8192)
        return name, state, "".join(re.findall(r"ctxt_switches:\s*(\d+)", status))
    except (OSError, IndexError):
        return None  # it has ended


def blocked_since(pid):
    """(seconds since it last ran or "?", kernel function)."""
    last, now, age = last_run(pid), last_run("self"), age_of(pid)
    since = "?"
    if last and now:
        since = "%.0f" % max(0.0, now - last)
    elif age is not None and age < YOUNG_S:
        since = "%.0f" % age  # the kernel forgets when it last ran as it moves to another CPU
    try:
        return since, read_text("/proc/%d/wchan" % pid, 80).strip() or "?"
    except OSError:
        return since, "?"


def age_of(pid):
    """Seconds since a process was started."""
    try:
        started = read_text("/proc/%d/stat" % pid, 512).rpartition(")")[2].split()[19]
        uptime = float(read_text("/proc/uptime", 80).split()[0])
        return uptime - int(started) / float(os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return None


def last_run(pid):
    """When a process last had a CPU, by the scheduler's own clock.

    0 after a move to another CPU on which it has not run yet.
    """
    try:
        match = re.search(r"se\.exec_start\s*:\s*([\d.]+)", read_text("/proc/%s/sched" % pid, 2048))
    except OSError:
        return None  # a kernel without CONFIG_SCHED_DEBUG
    return float(match.group(1)) / 1000 if match else None
