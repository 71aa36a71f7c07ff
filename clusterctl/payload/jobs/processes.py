"""The processes of a run on this node: finding, watching and ending them.

A process belongs to a run when its environment says so (CLUSTERCTL_RUN, CLUSTERCTL_NODE: every
child inherits them, through double forks and new sessions), or when it descends from the agent,
which is the subreaper of all that it started. Never by a pattern over command lines.
"""

import collections
import os
import signal
import time

from clusterctl.payload.prelude import read_text

TICKS = os.sysconf("SC_CLK_TCK")
TAGS = ("CLUSTERCTL_RUN", "CLUSTERCTL_JOB", "CLUSTERCTL_NODE")
TAG_BYTES = 200  # a run's id, a job's, a node's name are shorter
PATH_BYTES = 4096  # the kernel's limit of a path; no variable that counts here is longer

Process = collections.namedtuple("Process", "pid ppid state start command exit_code pgrp session")

SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


def process(pid):
    """Facts of /proc/PID/stat; None when it is gone. `start` (ticks) tells it from a later one."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    words = tail.split()
    try:
        # Field 52 holds the wait status of a zombie; it reads 0 without the right to trace it.
        status = int(words[49]) if len(words) > 49 else 0
        command = head.split("(", 1)[1]
        ppid, pgrp, session, start = int(words[1]), int(words[2]), int(words[3]), int(words[19])
        return Process(pid, ppid, words[0], start, command, status, pgrp, session)
    except (IndexError, ValueError):
        return None


def exit_code(wait_status):
    """As subprocess has it: the code, or minus the signal."""
    return -(wait_status & 0x7F) if wait_status & 0x7F else wait_status >> 8


def say_exit(code):
    """An exit code for people."""
    if code is None:
        return "ended, exit status unknown"
    if code < 0:
        return "killed by %s" % SIGNAL_NAMES.get(-code, "signal %d" % -code)
    return "exit code %d" % code


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def tags(pid):
    """(run, job, node, rank) of a process, each None where its environment does not say."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            text = b"\0" + file.read()
    except OSError:
        return (None,) * 4  # gone, or of another user
    if b"\0CLUSTERCTL_RUN=" not in text:
        return (None,) * 4
    return tuple(
        _value(text, name)
        for name in (b"CLUSTERCTL_RUN", b"CLUSTERCTL_JOB", b"CLUSTERCTL_NODE", b"RANK")
    )


def _value(text, name):
    _, found, rest = text.partition(b"\0" + name + b"=")
    return tag_text(rest.split(b"\0", 1)[0]) if found else None


def tag_text(value):
    """A tag as text; None for one too long to be ours: any user can set any environment."""
    return value.decode("utf-8", "replace") if len(value) <= TAG_BYTES else None


def rank_number(text):
    """A rank, a world size or a number of a loader; None for what is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 6 else None


def descendants(root):
    """Process ids below `root`, without it."""
    children = collections.defaultdict(list)
    for pid in all_pids():
        found = process(pid)
        if found:
            children[found.ppid].append(pid)
    below, todo = [], [root]
    while todo:
        todo_next = children.get(todo.pop(), [])
        below += todo_next
        todo += todo_next
    return below


def members(run, node=None, root=None, without=()):
    """Living processes of a run as {pid: Process}; with `root` also all that descends from it."""
    pids = {pid for pid in all_pids() if _is_member(pid, run, node)}
    if root is not None:
        pids.update(descendants(root))
    pids.difference_update(without)
    pids.discard(os.getpid())
    found = {pid: process(pid) for pid in pids}
    # A zombie holds nothing but its number; nobody but its parent can end it.
    return {pid: facts for pid, facts in found.items() if facts and facts.state not in "ZX"}


def _is_member(pid, run, node):
    tag = tags(pid)
    return tag[0] == run and (node is None or tag[2] == node) and is_own(pid)


def is_own(pid):
    """Whether it runs as this user: another user's process can have any tag."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False  # gone


def send(pids, number):
    """Signal processes; those that are gone or not ours are left out."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def describe(facts):
    """A process as it is reported when it should be gone: enough to go and look."""
    try:
        with open("/proc/%d/wchan" % facts.pid) as file:
            waits_in = file.read()
    except OSError:
        waits_in = ""
    rank = tags(facts.pid)[3]
    return {
        "pid": facts.pid,
        "ppid": facts.ppid,
        "state": facts.state,  # D: in the kernel, survives SIGKILL; T: stopped
        "command": facts.command,  # never its arguments, they may hold secrets
        "waits_in": waits_in if waits_in not in ("", "0") else None,
        "rank": rank_number(rank),
        "age_s": round(time.clock_gettime(time.CLOCK_BOOTTIME) - facts.start / TICKS, 1),
    }


def end_all(find, grace_s, kill_s=5.0, pause_s=0.1):
    """TERM, wait, KILL, and look again until nothing is left; returns what is.

    `find()` gives {pid: Process}. It is asked anew each time, since what is about to end may fork.
    A stopped process (state T) gets SIGCONT: a pending SIGTERM does not wake it.
    """
    signalled = {}  # type: dict
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + patience_s
        while patience_s > 0:
            left = find()
            if not left:
                return []
            fresh = [
                pid for pid, facts in left.items() if signalled.get((pid, facts.start)) != number
            ]
            send(fresh, number)
            send((pid for pid in fresh if left[pid].state == "T"), signal.SIGCONT)
            signalled.update({(pid, left[pid].start): number for pid in fresh})
            if time.monotonic() >= deadline:
                break
            time.sleep(pause_s)
    return [describe(facts) for facts in find().values()]


def is_frozen(pid):
    """Whether the cgroup freezer (version 1 or 2) holds it."""
    try:
        lines = read_text("/proc/%d/cgroup" % pid).splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        for root, name, frozen in (
            ("/sys/fs/cgroup/freezer", "freezer.state", ("FROZEN", "FREEZING")),
            ("/sys/fs/cgroup", "cgroup.freeze", ("1",)),
        ):
            if (name == "freezer.state") != ("freezer" in controllers.split(",")):
                continue
            try:
                if read_text("%s%s/%s" % (root, path, name)).strip() in frozen:
                    return True
            except OSError:
                continue
    return False


def variable(seen, name):
    """A variable of a process's environment; None where it is not set, not readable or odd."""
    _, found, rest = (b"\0" + seen.environ).partition(b"\0" + name.encode() + b"=")
    value = rest.split(b"\0", 1)[0]
    if not found or len(value) > PATH_BYTES:
        return None
    return tag_text(value) if name in TAGS else value.decode("utf-8", "replace")
