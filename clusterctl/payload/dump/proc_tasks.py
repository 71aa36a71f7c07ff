"""What /proc and logs hold of a process, its threads and files; no ptrace."""

import os
import re
import stat

from clusterctl.payload.jobs.processes import is_frozen
from clusterctl.payload.proc_files import as_text, names_in, or_none, read_stat, read_word
from clusterctl.payload.tools import section

LOG_TAIL = 256 << 10
LOG_LINES = 12  # of one rank
TELLING = re.compile(
    r"Watchdog caught collective|Timeout at NCCL work|last enqueued|NCCL WARN|Some NCCL operations|"
    r"taking the entire process down|\[gloo.{0,400}(timed out|timeout|closed)|"
    r"Timed out waiting \d{1,18}ms|Connection (closed|reset) by peer|DataLoader worker|CUDA error|"
    r"ncclSystemError|ncclRemoteError"
)
KERNEL = re.compile(
    r"NVRM: (Xid|GPU)|Out of memory|oom-kill|blocked for more than|not responding|I/O error|"
    r"lost carrier|EXT4-fs error|XFS .{0,200}error|mce:|Hardware Error"
)
KERNEL_S = 3600.0


def task_facts(pid, deep):
    """{state, wchan, syscall, stack, tasks}; None when gone.

    tasks: {tid: [state, ticks, voluntary switches, wchan, name]}, with user and system time in
    1/SC_CLK_TCK s. `deep` also reads where the main thread sleeps.
    """
    tasks = {}
    for name, (comm, words) in read_tasks(pid).items():
        folder = "/proc/%d/task/%s" % (pid, name)
        status = read_word(folder + "/status", "", 65536)
        at = status.find("\nvoluntary_ctxt_switches:")
        switches = int(status[at:].split(None, 2)[1]) if at >= 0 else 0
        is_shown = words[0] == "D" or name == str(pid)
        wchan = _unless_zero(folder + "/wchan") if is_shown else None
        tasks[name] = [words[0], int(words[11]) + int(words[12]), switches, wchan, comm]
    if str(pid) not in tasks:
        return None
    state, _, _, wchan, _ = tasks[str(pid)]
    facts = {"state": state, "tasks": tasks, "wchan": wchan, "frozen": is_frozen(pid)}
    for name in ("syscall", "stack"):
        facts[name] = _unless_zero("/proc/%d/%s" % (pid, name)) if deep else None
    return facts


def read_tasks(pid):
    """{thread id: (name, words from the state on)}; {} when gone."""
    names = names_in("/proc/%d/task" % pid)
    found = {name: read_stat("%d/task/%s" % (pid, name)) for name in names}
    return {name: stat for name, stat in found.items() if stat is not None}


def stopped_tasks(pid):
    """Threads that are stopped (T) or held by a tracer (t)."""
    return {name for name, (_, words) in read_tasks(pid).items() if words[0] in "Tt"}


def open_files(pid, limit=8):
    """Open regular files of a process, without libraries, logs and devices; reads links only."""
    folder, found = "/proc/%d/fd" % pid, []  # type: str, list
    for name in sorted(names_in(folder), key=int):
        raw = or_none(os.readlink, os.fsencode("%s/%s" % (folder, name)))
        path = as_text(raw or b"")  # a name need not be text
        odd = not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/", "/memfd:"))
        if not odd and not path.endswith((".py", ".so", ".log", " (deleted)")) and int(name) > 2:
            found.append(path)
    return found[:limit]


def _unless_zero(path):
    text = read_word(path, "", 65536)
    return None if text in ("", "0") else text


def read_file(path, limit, at=0):
    """Bytes of a regular file from an offset, or its end for a negative one. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("%s is not a regular file" % path)
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(at if at >= 0 else max(0, found.st_size + at))
            return file.read(limit)
    finally:
        os.close(descriptor)


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
    """(lines of the last hour about devices, memory or mounts, age of a log that is cut off)."""
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
