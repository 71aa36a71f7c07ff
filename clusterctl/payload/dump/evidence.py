"""Lines of rank logs and the kernel's log, beside the stacks."""

import os
import re

from clusterctl.payload.dump.proc_tasks import read_file
from clusterctl.payload.prelude import section

LOG_TAIL = 256 << 10
LOG_LINES = 12  # of one rank
TELLING = re.compile(
    r"Watchdog caught collective|Timeout at NCCL work|last enqueued|NCCL WARN|Some NCCL operations|"
    r"taking the entire process down|\[gloo.*(timed out|timeout|closed)|Timed out waiting \d+ms|"
    r"Connection (closed|reset) by peer|DataLoader worker|CUDA error|ncclSystemError|"
    r"ncclRemoteError"
)
KERNEL = re.compile(
    r"NVRM: (Xid|GPU)|Out of memory|oom-kill|blocked for more than|not responding|I/O error|"
    r"lost carrier|EXT4-fs error|XFS .*error|mce:|Hardware Error"
)
KERNEL_S = 3600.0


def log_lines(pid):
    """The last lines of a rank's log about a collective, worker or device; [] without a file."""
    try:
        path = os.readlink("/proc/%d/fd/2" % pid)
        if not path.startswith("/") or path.startswith(("/dev/", "/proc/")):
            return []
        text = read_file(path, LOG_TAIL, -LOG_TAIL).decode("utf-8", "replace")
    except OSError:
        return []
    return [line[:600] for line in text.splitlines() if TELLING.search(line)][-LOG_LINES:]


def kernel_lines(uptime_s):
    """(lines of the last hour of the kernel's log about devices, memory or mounts, cut_s).

    Of a long log the end is read; `cut_s` is its age where that is less than an hour, else None.
    """
    answer = section("", ["dmesg"], 3.0, newest=True)
    found, ages_s = [], []
    for line in answer["out"].splitlines():
        stamp = re.match(r"\[\s*(\d+\.\d+)\]", line)
        if not stamp:
            continue
        ages_s.append(uptime_s - float(stamp.group(1)))
        if ages_s[-1] < KERNEL_S and KERNEL.search(line):
            found.append([round(ages_s[-1], 1), line[:400]])
    is_cut = answer.get("truncated") and ages_s and ages_s[0] < KERNEL_S
    return found[-20:], round(ages_s[0], 1) if is_cut else None
