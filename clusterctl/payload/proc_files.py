"""What a payload reads of /proc, /sys and other small files."""

import os
import sys
import time

MAX_BYTES = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # a head may be a Mac


def as_text(data):
    return data.decode("utf-8", "backslashreplace")


def or_none(function, *args):
    """What `function` returns; None where it raises OSError: gone, or not for this user."""
    try:
        return function(*args)
    except OSError:
        return None


def read_text(path, limit=MAX_BYTES):
    with open(path, "rb") as file:
        return as_text(file.read(limit))


def read_word(path, default=None, limit=MAX_BYTES):  # type: (str, Any, int) -> Any
    """As `read_text`, without white space at the ends; `default` where it cannot be read."""
    text = or_none(read_text, path, limit)
    return default if text is None else text.strip()


def read_bytes(path, limit=MAX_BYTES):
    """Contents of a file; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def names_in(folder):
    """Names in a folder, sorted; [] where it cannot be read."""
    return sorted(or_none(os.listdir, folder) or ())


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def owner_of(pid):
    """User id of a process; None when it is gone."""
    found = or_none(os.stat, "/proc/%d" % pid)
    return found.st_uid if found else None


def open_links(pid):
    """What a process has open; [] for another user's, or where it has ended."""
    folder = "/proc/%d/fd" % pid
    links = [or_none(os.readlink, "%s/%s" % (folder, name)) for name in names_in(folder)]
    return list(filter(None, links))


def environ_value(environ, name):
    """A variable in the bytes of /proc/PID/environ; None where it is not set."""
    _, found, rest = (b"\0" + environ).partition(b"\0" + name.encode() + b"=")
    return rest.split(b"\0", 1)[0].decode("utf-8", "replace") if found else None


def read_stat(task):  # type: (Any) -> Any
    """(name, words from the state on) of /proc/TASK/stat; None when the process is gone."""
    try:
        with open("/proc/%s/stat" % task, "rb", buffering=0) as file:
            head, _, tail = as_text(file.read(4096)).rpartition(")")
    except OSError:
        return None
    return head.partition("(")[2], tail.split()


def age_s(start):
    """Seconds since a process was started; `start` in ticks, as in its stat."""
    return time.clock_gettime(BOOTTIME) - int(start) / TICKS


def read_times():  # type: () -> dict[str, float]
    """Wall clock and seconds since boot, read with the shortest gap of three tries."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(3):
        before = time.clock_gettime(BOOTTIME)
        wall_s = time.time()
        after = time.clock_gettime(BOOTTIME)
        best = min(best, (after - before, wall_s, (before + after) / 2))
    return {"time_s": best[1], "boottime_s": best[2]}


def wall_minus_boot():  # type: () -> float
    """Changes when the wall clock is stepped, not in sleep: the clock since boot counts on."""
    now = read_times()
    return now["time_s"] - now["boottime_s"]


def user_name(uid):
    """Login name of a user id; the number itself where it has none."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def node_facts():
    return dict(
        read_times(),
        hostname=os.uname().nodename,
        boot_id=read_word("/proc/sys/kernel/random/boot_id"),
        python="%d.%d.%d" % sys.version_info[:3],
        user=user_name(os.getuid()),
    )
