"""Census: processes that hang in the kernel, zombies, and daemons that steer the clock."""

import re
import time

from clusterctl.payload.proc_files import age_s, all_pids, read_stat, read_word

DAEMONS = "chronyd ntpd ntpsec-ntpd systemd-timesyn openntpd ptp4l phc2sys timemaster".split()
YOUNG_S = 10.0  # too young to hang


def list_processes(growth_s):
    """Lines `daemon NAME PID`, `zombie NAME`, `blocked PID NAME SINCE WHERE`, `count N`…"""
    before = {pid: found for pid, found in ((pid, scan_one(pid)) for pid in all_pids()) if found}
    time.sleep(growth_s)
    lines = ["count\t%d" % len(before)]
    if 1 not in before:  # /proc is mounted with hidepid
        lines.append("hidden\tother users' processes cannot be seen here")
    for pid, (name, state, switches) in sorted(before.items()):
        if name in DAEMONS:
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


def scan_one(pid):
    """(name, state letter, context switches where it sleeps in the kernel); None once ended."""
    found = read_stat(pid)
    if found is None:
        return None
    name, state = " ".join(found[0].split()), found[1][0]
    status = read_word("/proc/%d/status" % pid, "", 8192) if state == "D" else ""
    return name, state, "".join(re.findall(r"ctxt_switches:\s*(\d+)", status))


def blocked_since(pid):
    """(seconds since it last ran or "?", kernel function)."""
    last, now, stat = last_run(pid), last_run("self"), read_stat(pid)
    since = "?"
    if last and now:
        since = "%.0f" % max(0.0, now - last)
    elif stat and age_s(stat[1][19]) < YOUNG_S:
        # The kernel forgets when it last ran as it moves to another CPU.
        since = "%.0f" % age_s(stat[1][19])
    return since, read_word("/proc/%d/wchan" % pid) or "?"


def last_run(pid):
    """When a process last had a CPU; 0 after a move to another CPU on which it has not run yet."""
    text = read_word("/proc/%s/sched" % pid, "")  # a kernel without CONFIG_SCHED_DEBUG has none
    match = re.search(r"se\.exec_start\s*:\s*([\d.]+)", text)
    return float(match.group(1)) / 1000 if match else None
