"""The processes of a run on this node: finding, watching and ending them.

A process belongs to a run when its environment has its tags (CLUSTERCTL_RUN, CLUSTERCTL_NODE: every
child inherits them, through double forks and new sessions), or when it descends from the agent,
which is the subreaper of all that it started. Never by a pattern over command lines.
"""

import collections
import os
import signal
import time

from clusterctl.payload import proc_files

TAGS = ("CLUSTERCTL_RUN", "CLUSTERCTL_JOB", "CLUSTERCTL_NODE")
TAG_BYTES = 200  # a run's id, a job's, a node's name are shorter
PATH_BYTES = 4096  # the kernel's limit of a path; no variable that counts here is longer

KILL_S = 5.0  # that processes have to end after SIGKILL
STUCK_S = 1.0  # a process that SIGKILL has not ended in that time may be in the kernel for hours
SIGKILL_BIT = 1 << (signal.SIGKILL - 1)

Process = collections.namedtuple(
    "Process", "pid ppid state start command exit_code pgrp session is_killed"
)

SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


def process(pid):
    """Facts of /proc/PID/stat; None when it is gone. `start` (ticks) differs for a later one."""
    found = proc_files.read_stat(pid)
    if found is None:
        return None
    command, words = found
    # Field 52 holds the wait status of a zombie; it reads 0 without the right to trace it.
    status = int(words[49]) if len(words) > 49 else 0
    ppid, pgrp, session, start = int(words[1]), int(words[2]), int(words[3]), int(words[19])
    # Field 31, pending signals: SIGKILL stays there while it is in the kernel (state D, or frozen).
    is_killed = bool(int(words[28]) & SIGKILL_BIT)
    return Process(pid, ppid, words[0], start, command, status, pgrp, session, is_killed)


def start_of(pid):
    return getattr(process(pid), "start", None)


def is_alive(pid, start):
    """Whether the process with this id and start still runs."""
    facts = process(pid)
    return facts is not None and facts.start == start and facts.state not in "ZX"


def chain_above(pid):
    """A process and those above it."""
    chain = []
    while pid > 1:
        chain.append(pid)
        facts = process(pid)
        pid = facts.ppid if facts else 0
    return chain


def exit_code(wait_status):
    """As subprocess has it: the code, or minus the signal."""
    return -(wait_status & 0x7F) if wait_status & 0x7F else wait_status >> 8


def exit_text(code):
    if code is None:
        return "ended, exit status unknown"
    if code < 0:
        return "killed by %s" % SIGNAL_NAMES.get(-code, "signal %d" % -code)
    return "exit code %d" % code


def tags(pid):
    """(run, job, node, rank) of a process, each None where its environment does not have it."""
    environ = proc_files.read_bytes("/proc/%d/environ" % pid, -1)
    # None: gone, or another user's.
    if environ is None or b"CLUSTERCTL_RUN=" not in environ:
        return (None,) * 4
    return tuple(short_value(environ, name) for name in (*TAGS, "RANK"))


def short_value(environ, name, limit=TAG_BYTES):
    """A variable; None for one too long to be ours: any user can set any environment."""
    value = proc_files.environ_value(environ, name)
    return value if value is not None and len(value) <= limit else None


def rank_number(text):
    """A rank, a world size or a number of a loader; None for what is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 6 else None


def all_processes():
    """{pid: Process} of what runs now."""
    found = {pid: process(pid) for pid in proc_files.all_pids()}
    return {pid: facts for pid, facts in found.items() if facts}


def family(facts, roots):
    """`roots` and all that descends from them, of {pid: Process}."""
    children = collections.defaultdict(list)
    for pid, one in facts.items():
        children[one.ppid].append(pid)
    found, todo = set(), [pid for pid in roots if pid in facts]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children[pid]
    return found


def members(run, node=None, roots=(), without=()):
    """Living processes of a run as {pid: Process}; also all that descends from `roots`."""
    facts = all_processes()
    pids = family(facts, roots)
    for pid in facts:
        tag = tags(pid)
        if tag[0] == run and node in (None, tag[2]) and is_own(pid):
            pids.add(pid)
    pids -= {os.getpid(), *without}
    # A zombie holds only its number, and only its parent can end it.
    return {pid: facts[pid] for pid in pids if facts[pid].state not in "ZX"}


def is_own(pid):
    """Whether it runs as this user: another user's process can have any tag."""
    return proc_files.owner_of(pid) == os.getuid()


def send(pids, number):
    """Signal processes; those that are gone or not ours are left out."""
    for pid in pids:
        proc_files.or_none(os.kill, pid, number)


def describe(facts):
    """A process as it is reported when it should be gone: enough to go and look."""
    waits_in = proc_files.read_word("/proc/%d/wchan" % facts.pid)
    return {
        "pid": facts.pid,
        "ppid": facts.ppid,
        "state": facts.state,  # D: in the kernel, survives SIGKILL; T: stopped
        "command": facts.command,  # never its arguments, they may hold secrets
        "waits_in": waits_in if waits_in not in ("", "0") else None,
        "rank": rank_number(tags(facts.pid)[3]),
        "age_s": round(proc_files.age_s(facts.start), 1),
    }


def end_all(find, grace_s, killed_s=None):
    """TERM, wait, KILL, and look again until nothing is left that can be ended; returns what is.

    `find()` gives {pid: Process}; it is called each time, since what is about to end may fork.
    A stopped process (state T) gets SIGCONT: a pending SIGTERM does not wake it. `killed_s`, kept
    from call to call, has when each was first seen with SIGKILL pending: nobody waits twice.
    """
    signalled = {}  # type: dict
    killed_s = {} if killed_s is None else killed_s
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
        deadline = time.monotonic() + patience_s
        while patience_s > 0:
            left = find()
            if not left:
                return []
            for pid, facts in left.items():
                if signalled.get((pid, facts.start)) != number:
                    signalled[(pid, facts.start)] = number
                    send([pid], number)
                    if facts.state == "T":
                        send([pid], signal.SIGCONT)
            now = time.monotonic()
            for pid, facts in left.items():
                if facts.is_killed:
                    killed_s.setdefault((pid, facts.start), now)
            since_s = [killed_s.get((pid, facts.start), now) for pid, facts in left.items()]
            if now >= deadline or now - max(since_s) > STUCK_S:
                break
            time.sleep(0.1)
    return [describe(facts) for facts in find().values()]


def is_frozen(pid):
    """Whether the cgroup freezer (version 1 or 2) holds it."""
    for line in proc_files.read_word("/proc/%d/cgroup" % pid, "").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if "freezer" in controllers.split(","):
            state = proc_files.read_word("/sys/fs/cgroup/freezer%s/freezer.state" % path)
        else:
            state = proc_files.read_word("/sys/fs/cgroup%s/cgroup.freeze" % path)
        if state in ("FROZEN", "FREEZING", "1"):
            return True
    return False


def variable(seen, name):
    """A variable of a process's environment; None where it is not set, not readable or too long."""
    return short_value(seen.environ, name, TAG_BYTES if name in TAGS else PATH_BYTES)
