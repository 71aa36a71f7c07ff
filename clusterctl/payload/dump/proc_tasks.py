"""Kernel facts of a process, its threads and files: states, ticks, switches, where it sleeps.

All from /proc, without ptrace; what only root may read is left out for others.
"""

import os
import stat

from clusterctl.payload.jobs.processes import is_frozen


def task_facts(pid, deep):
    """{state, wchan, syscall, stack, tasks}; None when gone.

    tasks: {tid: [state, ticks, voluntary switches, wchan, name]}, with user and system time in
    1/SC_CLK_TCK s. `deep` also reads where the main thread sleeps.
    """
    folder = "/proc/%d" % pid
    tasks = {}
    try:
        names = os.listdir(folder + "/task")
    except OSError:
        return None
    for name in names:
        try:
            head, _, tail = _read(folder + "/task/%s/stat" % name).rpartition(")")
            words, comm = tail.split(), head.partition("(")[2]
            switches = _switches(_read(folder + "/task/%s/status" % name))
        except OSError:
            continue  # a thread that has just ended
        tasks[name] = [words[0], int(words[11]) + int(words[12]), switches, None, comm]
    if str(pid) not in tasks:
        return None
    facts = {
        "state": tasks[str(pid)][0],
        "tasks": tasks,
        "wchan": None,
        "syscall": None,
        "stack": None,
    }
    for name, row in tasks.items():
        if row[0] == "D" or name == str(pid):
            row[3] = _quiet(folder + "/task/%s/wchan" % name)
    facts["wchan"] = tasks[str(pid)][3]
    facts["frozen"] = is_frozen(pid)
    if deep:
        facts["syscall"] = _quiet(folder + "/syscall")
        facts["stack"] = _quiet(folder + "/stack")
    return facts


def stopped_tasks(pid):
    """Threads that are stopped (T) or held by a tracer (t)."""
    found = set()
    try:
        for name in os.listdir("/proc/%d/task" % pid):
            state = _read("/proc/%d/task/%s/stat" % (pid, name)).rpartition(")")[2].split()[0]
            if state in "Tt":
                found.add(name)
    except OSError:
        pass  # gone meanwhile
    return found


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


def _switches(status):
    at = status.find("\nvoluntary_ctxt_switches:")
    return int(status[at:].split(None, 2)[1]) if at >= 0 else 0


def _quiet(path):
    try:
        text = _read(path).strip()
    except OSError:
        return None
    return text if text not in ("", "0") else None


def _read(path):
    with open(path, "rb") as file:
        return file.read(65536).decode("utf-8", "replace")


def read_file(path, limit, at=0):
    """Bytes of a regular file from an offset, or its end for a negative one; else OSError.

    For files that a process names: never waits for a pipe in their place.
    """
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
