"""Census: what steers the clock of a node, and whether its logs are in the future."""

import os
import stat
import time

from clusterctl.payload.proc_files import names_in, or_none, read_text
from clusterctl.payload.tools import call, section

LOG_FILES = 5000  # of /var/log that are read; what is deeper or more is archives and pods
CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def collect_clock(timeout_s):
    call("clocksource", lambda: read_text(CLOCKSOURCE), 2.0)
    kernel = call("adjtimex", read_adjtimex, 2.0)
    call("log_ahead", newest_log, 3.0)
    patience_s = min(3.0, timeout_s)
    if section("chrony_tracking", ["chronyc", "-c", "-n", "tracking"], patience_s)["rc"] == 0:
        section("chrony_sources", ["chronyc", "-c", "-n", "sources"], patience_s)
    else:
        section("ntpq", ["ntpq", "-pn"], patience_s)
        if kernel["state"] != "ended":  # it reads the same bit, by way of two daemons
            section("timedatectl", ["timedatectl", "show", "-p", "NTPSynchronized"], patience_s)


def read_adjtimex():
    """What the kernel thinks of its clock; status bit 0x40 is "not synchronised"."""
    import ctypes
    import struct

    buffer = ctypes.create_string_buffer(512)  # struct timex with modes 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    _, _, _, maxerror, esterror, status = struct.unpack_from("iqqqqi", buffer.raw)
    return "state=%d status=%d maxerror=%d esterror=%d" % (state, status, maxerror, esterror)


def newest_log():
    """Seconds by which the newest log file is ahead of now: the clock was there before."""
    newest = max(log_times("/var/log"), default=None)
    return "none" if newest is None else "%.3f" % (newest - time.time())


def log_times(top):
    """Modification times of the files of a folder and of the two levels below it, nearest first."""
    folders, left = [top], LOG_FILES
    for _ in range(3):
        below = []
        for folder in folders:
            for name in names_in(folder)[: max(0, left)]:
                left -= 1
                path = folder + "/" + name
                facts = or_none(os.lstat, path)
                if facts and stat.S_ISDIR(facts.st_mode):
                    below.append(path)
                elif facts:
                    yield facts.st_mtime
        folders = below
