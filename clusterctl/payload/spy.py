"""py-spy on this node: where it is, one dump, and nothing left stopped behind it. Part of stacks.

Always --nonblocking unless asked: a blocking dump stops every thread, fails on stopped targets and
hangs on one that sleeps in a dead mount (benfred/py-spy #872, #565).
"""

import json
import os
import signal
import stat
import tempfile
import time

REPAIR_S = 1.0

carried = []  # type: list[str]  # the folder of a py-spy that came over the wire
looking = {}  # type: dict  # process id -> threads that were stopped before the dump that runs now


def find_py_spy(rows, shot, given):
    """A py-spy that can be run here: the one given, the job's own, or one of the PATH; None without."""
    candidates = [given] if given else []
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
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def unpack_py_spy(data):
    """Put a py-spy that the head sent into a private folder; `remove_py_spy` takes it away."""
    import base64
    import zlib

    folder = tempfile.mkdtemp(prefix="clusterctl-")
    carried.append(folder)
    path = folder + "/py-spy"
    with open(path, "wb") as file:
        file.write(zlib.decompress(base64.b64decode(data)))
    os.chmod(path, stat.S_IRWXU)
    return path


def remove_py_spy():
    import shutil

    while carried:
        shutil.rmtree(carried.pop(), ignore_errors=True)


def dump(py_spy, pid, limit_s, blocking=False, native=False):
    """(threads or None, error, whether something had to be set going again).

    Threads are py-spy's: [{os_thread_id, thread_name, active, owns_gil, frames}].
    """
    before = looking[pid] = stopped_tasks(pid)
    argv = [py_spy, "dump", "--json", "--pid", str(pid)]
    argv += ["--native"] if native else []
    argv += [] if blocking or native else ["--nonblocking"]
    answer = section("py-spy %d" % pid, argv, limit_s, max_bytes=16 << 20, grace_s=0.5)
    SECTIONS.pop("py-spy %d" % pid, None)
    repaired = repair(pid, before)
    looking.pop(pid, None)
    if answer["state"] != "ended":
        return None, answer["err"].strip().splitlines()[-1] if answer["err"].strip() else answer["state"], repaired  # fmt: skip
    if answer["rc"] != 0:
        return None, first_sentence(answer["err"]), repaired
    try:
        return json.loads(answer["out"]), "", repaired
    except ValueError:
        return None, "py-spy printed no JSON", repaired


def first_sentence(text):
    """py-spy's error and its causes without the stack of its own."""
    kept = []
    for line in text.split("Stack backtrace:")[0].splitlines():
        line = line.strip()
        if line and line != "Caused by:":
            kept.append(line.replace("Error: ", "", 1))
    return ": ".join(kept[:3]) or "py-spy failed without a word"


def repair(pid, before):
    """Wake threads that are stopped now and were not before; True if there were any."""
    fresh = stopped_tasks(pid) - before
    if not fresh:
        return False
    deadline = time.monotonic() + REPAIR_S
    while fresh and time.monotonic() < deadline:
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            break
        time.sleep(0.01)
        fresh = stopped_tasks(pid) - before
    return True


def repair_all():
    """After dumps were cut off: their targets go on."""
    for pid, before in list(looking.items()):
        repair(pid, before)


def rights():
    """What decides whether one process may look into another here."""
    found = {"uid": os.getuid(), "scope": None, "capable": False}
    try:
        found["scope"] = int(read_text("/proc/sys/kernel/yama/ptrace_scope"))
    except (OSError, ValueError):
        pass  # a kernel without Yama
    for line in read_text("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            found["capable"] = bool(int(line.split()[1], 16) >> 19 & 1)  # CAP_SYS_PTRACE
    return found
