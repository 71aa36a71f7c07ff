"""Kernel facts of a process, its threads and files, from /proc without ptrace."""

import os
import stat

from clusterctl.payload.jobs.processes import is_frozen
from clusterctl.payload.prelude import read_stat, read_word


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
        tells = words[0] == "D" or name == str(pid)
        wchan = _unless_zero(folder + "/wchan") if tells else None
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
    try:
        names = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return {}
    found = {name: read_stat("%d/task/%s" % (pid, name)) for name in names}
    return {name: stat for name, stat in found.items() if stat is not None}


def stopped_tasks(pid):
    """Threads that are stopped (T) or held by a tracer (t)."""
    return {name for name, (_, words) in read_tasks(pid).items() if words[0] in "Tt"}


def open_files(pid, limit=8):
    """Open regular files of a process, without libraries, logs and devices; reads links only."""
    folder, found = "/proc/%d/fd" % pid, []  # type: str, list
    try:
        names = sorted(os.listdir(folder), key=int)
    except OSError:
        return found
    for name in names:
        try:
            raw = os.readlink(os.fsencode("%s/%s" % (folder, name)))
        except OSError:
            continue
        path = raw.decode("utf-8", "backslashreplace")  # a name need not be text
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
