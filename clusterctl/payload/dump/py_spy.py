"""py-spy on this node: find it, dump one process, leave no process stopped.

It often runs as root on other users' processes, so a program that another user could have made is
never run. Without `blocking` always --nonblocking: a blocking dump stops every thread, fails on
stopped targets and hangs on one that sleeps in a dead mount (benfred/py-spy #872, #565).
"""

import json
import os
import re
import signal
import stat
import time
from functools import partial

from clusterctl.payload.dump.proc_tasks import stopped_tasks
from clusterctl.payload.files.ownership import why_untrusted
from clusterctl.payload.files.private import new_folder
from clusterctl.payload.jobs.processes import variable
from clusterctl.payload.proc_files import read_word
from clusterctl.payload.tools import section, tool_env

REPAIR_S = 1.0

carried = []  # type: list  # functions that remove a py-spy that the head sent
passed_over = []  # type: list[str]  # which py-spy was not run, and why
looking = {}  # type: dict  # process id -> threads that were stopped before the current dump


def find_py_spy(rows, shot, given):
    """A py-spy that can run here: the given one, the job's own, or one of the PATH; else None."""
    if given and is_program(given):
        return given  # the user named it
    candidates = []
    for row in rows:
        one = shot.seen.get(row["pid"])
        if one is None or row["role"] not in ("trainer", "loader") or not one.words:
            continue
        program = one.words[0].decode("utf-8", "replace")
        folders = [os.path.dirname(program)] if program.startswith("/") else []
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            value = variable(one, name)
            folders += [value + "/bin"] if value else []
        folders += (variable(one, "PATH") or "").split(":")
        candidates += [folder + "/py-spy" for folder in folders if folder.startswith("/")]
    candidates += [folder + "/py-spy" for folder in tool_env()["PATH"].split(":")]
    for path in dict.fromkeys(candidates):
        if is_program(path) and is_trusted(path):
            return path
    return None


def is_program(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_trusted(path):
    """Whether only root and this user could have made it; the reason otherwise is noted."""
    try:
        why = why_untrusted(path)
    except OSError as error:
        why = str(error)
    if why:
        passed_over.append("%s is not run: %s" % (path, why))
    return not why


def unpack_py_spy(data, parents=None):
    """Put a py-spy of the head into a private folder, or into memory where all are noexec."""
    import base64
    import shutil
    import zlib

    program = zlib.decompress(base64.b64decode(data))
    own, runtime = os.environ.get("TMPDIR"), os.environ.get("XDG_RUNTIME_DIR")
    if parents is None:
        parents = filter(None, (own, "/tmp", "/dev/shm", runtime, "/var/tmp"))
    for parent in parents:
        try:
            folder = new_folder("py-spy", (parent,))
            carried.append(partial(shutil.rmtree, folder, ignore_errors=True))
            path = folder + "/py-spy"
            with open(path, "wb") as file:
                file.write(program)
            os.chmod(path, stat.S_IRWXU)
            if os.access(path, os.X_OK):  # False on a noexec mount
                return path
        except OSError:
            pass  # it allows none, is full, or over the quota
        remove_py_spy()
    if not hasattr(os, "memfd_create"):
        raise OSError("neither a temporary folder nor memory can hold a program here")
    descriptor = os.memfd_create("py-spy")
    carried.append(partial(os.close, descriptor))
    with open(descriptor, "wb", closefd=False) as file:
        file.write(program)
    return "/proc/%d/fd/%d" % (os.getpid(), descriptor)


def remove_py_spy():
    while carried:
        carried.pop()()


def dump(py_spy, pid, limit_s, blocking=False, native=False):
    """(threads as py-spy prints them or None, error, whether a stopped thread was resumed)."""
    before = looking[pid] = stopped_tasks(pid)
    argv = [py_spy, "dump", "--json", "--pid", str(pid)]
    argv += ["--native"] if native else []
    argv += [] if blocking or native else ["--nonblocking"]
    answer = section("", argv, limit_s, max_bytes=16 << 20, grace_s=0.5)
    repaired = repair(pid, before)
    looking.pop(pid, None)
    if answer["state"] != "ended":
        return None, (answer["err"].strip().splitlines() or [answer["state"]])[-1], repaired
    if answer["rc"] != 0:
        return None, first_sentence(answer["err"]), repaired
    try:
        return json.loads(answer["out"]), "", repaired
    except ValueError:
        return None, "py-spy printed no JSON", repaired


def first_sentence(text):
    """py-spy's error and its causes without its own stack."""
    lines = [line.strip() for line in text.split("Stack backtrace:")[0].splitlines()]
    kept = [line.replace("Error: ", "", 1) for line in lines if line not in ("", "Caused by:")]
    return ": ".join(kept[:3]) or "py-spy failed without a message"


def repair(pid, before):
    """Wake threads that are stopped now and were not before; True if there were any."""
    deadline, found = time.monotonic() + REPAIR_S, False
    while stopped_tasks(pid) - before and time.monotonic() < deadline:
        found = True
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            break
        time.sleep(0.01)
    return found


def repair_all():
    for pid, before in list(looking.items()):
        repair(pid, before)


def rights():
    """What decides whether one process may read another here."""
    scope = read_word("/proc/sys/kernel/yama/ptrace_scope")  # None for a kernel without Yama
    capabilities = re.search(r"CapEff:\s*(\w+)", read_word("/proc/self/status", ""))
    is_capable = bool(capabilities and int(capabilities.group(1), 16) >> 19 & 1)  # CAP_SYS_PTRACE
    return {"uid": os.getuid(), "scope": int(scope) if scope else None, "capable": is_capable}
