"""Which processes of this node make a job: by run tag, by GPU, by a pattern; always whole trees.

A pick selects: {"runs": [ids]} by the tag CLUSTERCTL_RUN ([] selects every tagged run), {"match":
regex} by command line, {"gpus": true} holders of a GPU; {"user": name} keeps one owner's ("" is
the login user), {"node": name} excludes another node's tag (nodes that share one machine).
"""

import collections
import os
import queue
import re

from clusterctl.payload.jobs import processes
from clusterctl.payload.jobs.roles import find_roles, program
from clusterctl.payload.proc_files import age_s, owner_of, read_bytes, read_word, user_name
from clusterctl.payload.tools import in_thread

READ_S = 0.5  # for one process's command line: reading it may never return (state D)
# Their command line contains what they run, search or show; a whole session may run below them.
BYSTANDERS = re.compile(
    r"^(ssh|sshd.*|sudo|su|login|tmux.*|screen|mosh-server|vi|vim|nvim|nano|emacs|less|more|tail|"
    r"head|cat|grep|rg|pgrep|pkill|watch|man|scp|rsync|strace|gdb|py-spy|systemd|init)$"
)
# They hold a GPU open, but are not a job.
GPU_DAEMONS = re.compile(
    r"^(nvidia-.*|nv-.*|dcgm.*|nvtop|nvitop|gpustat|Xorg|Xwayland|gnome-shell|kwin.*|gdm.*|"
    r"fabricmanager|systemd.*)$"
)
BOOTSTRAP = b"i=sys.stdin.buffer;v=sys.version_info"  # of remote/payload.py: any head's payload
ADOPTERS = "systemd init tini dumb-init docker-init catatonit conmon containerd-shim".split()
NOTES = []  # type: list  # for the user: how the job was found
JOB_NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")

Seen = collections.namedtuple("Seen", "facts uid environ words")


class Snapshot:
    """All processes now; command lines and environments are read once per process."""

    def __init__(self, before=None):
        self.facts = processes.all_processes()
        known = before.seen if before else {}
        starts = {pid: seen.facts.start for pid, seen in known.items()}
        read = read_patiently(p for p, found in self.facts.items() if starts.get(p) != found.start)
        self.seen = {}
        for pid, found in self.facts.items():
            if pid in read:
                self.seen[pid] = Seen(found, *read[pid])
            elif pid in known:
                self.seen[pid] = known[pid]._replace(facts=found)

    def tree(self, roots):
        return processes.family(self.facts, roots)

    def ours(self):
        """Payloads, clusterctl (the head may be a node), all above them: they quote patterns."""
        own = set()  # type: set
        for pid, one in self.seen.items():
            names = [word.rsplit(b"/", 1)[-1] for word in one.words[:6]]
            # As people type it, or as trainer/runlog/own_modules.py starts it.
            is_command = b"clusterctl" in names[:2] or (b"-m", b"clusterctl") in zip(
                names, names[1:]
            )
            is_command |= b"clusterctl" in names[3:] and b"runpy" in names[2] + names[3]
            if pid == os.getpid() or is_command or any(BOOTSTRAP in w for w in one.words[:6]):
                while pid > 1 and pid in self.facts and pid not in own:
                    own.add(pid)
                    pid = self.facts[pid].ppid
        return own


def read_patiently(pids):
    """{pid: (uid, environ, words)}, b"" and [] where unreadable. A read that hangs is abandoned."""
    todo, done = iter(list(pids)), queue.Queue()  # type: Any, Any
    read = {}  # type: dict
    in_thread(_read_many, todo, done)
    while True:
        try:
            pid, *found = done.get(timeout=READ_S)
        except queue.Empty:
            in_thread(_read_many, todo, done)  # it hangs: another thread reads the rest
            continue
        if pid is None:
            return read
        read[pid] = found


def _read_many(todo, done):
    for pid in todo:
        folder = "/proc/%d/" % pid
        uid = owner_of(pid)
        if uid is None:
            continue  # gone
        done.put((pid, uid, b"", []))  # in case the next lines hang
        environ, line = read_bytes(folder + "environ") or b"", read_bytes(folder + "cmdline")
        done.put((pid, uid, environ, line.rstrip(b"\0").split(b"\0") if line else []))
    done.put((None,))


def find_job(pick, before=None):
    """(snapshot, pids of the job, pids that the pick fits but that belong to others)."""
    shot = Snapshot(before)
    own = shot.ours()
    seeds, strangers = set(), set()  # type: set, set
    owner = login_user() if pick.get("user") == "" else pick.get("user")
    fits = seed_test(pick, shot)
    for pid, one in shot.seen.items():
        if pid in own or not fits(pid, one):
            continue
        node = processes.variable(one, "CLUSTERCTL_NODE")
        if pick.get("node") and node not in (None, pick["node"]):
            continue
        wanted = owner in (None, user_name(one.uid), str(one.uid))
        (seeds if wanted else strangers).add(pid)
    job = shot.tree(seeds)
    if pick.get("match") is not None or pick.get("gpus"):
        job |= shot.tree(_orphans_of(shot, seeds))
    return shot, job - own, shot.tree(strangers) - own - job


def login_user():
    """The user who logged in, also under sudo."""
    return os.environ.get("SUDO_USER") or user_name(os.getuid())


def seed_test(pick, shot):
    """The function (pid, seen) -> bool of a pick."""
    if pick.get("match") is not None:
        pattern = re.compile(pick["match"])

        def fits(pid, one):
            line = b" ".join(one.words).decode("utf-8", "replace")
            return not BYSTANDERS.match(one.facts.command) and pattern.search(line) is not None

        return fits
    if pick.get("gpus"):
        from clusterctl.payload.jobs.gpu_holders import gpu_holders

        holders, notes = gpu_holders()
        NOTES.extend(notes)
        return lambda pid, one: pid in holders and not GPU_DAEMONS.match(one.facts.command)

    def is_tagged(pid, one):
        run = processes.variable(one, "CLUSTERCTL_RUN")
        return run is not None and (not pick["runs"] or run in pick["runs"])

    return is_tagged


def _orphans_of(shot, seeds):
    """Orphans led by a seed or with its rendezvous address: `python -c …` names no train.py."""
    jobs = {signature(shot.seen[pid]) for pid in seeds if pid in shot.seen} - {None}
    for pid, one in shot.seen.items():
        parent = shot.facts.get(one.facts.ppid)
        is_orphan = one.facts.ppid <= 1 or (parent is not None and parent.command in ADOPTERS)
        led = one.facts.pgrp in seeds or one.facts.session in seeds
        if is_orphan and (led or signature(one) in jobs):
            yield pid


def signature(one):
    """What the processes of one torch job have in common; None outside of one."""
    values = tuple(processes.variable(one, name) for name in JOB_NAMES)
    if processes.variable(one, "RANK") is None or values[1] is None:
        return None
    return (one.uid, *values)


def machine():
    """What two names of one machine have in common."""
    boot_id = read_word("/proc/sys/kernel/random/boot_id", "")
    return "%s %s" % (boot_id, os.readlink("/proc/self/ns/pid"))


def take_snapshot(pick):
    """(snapshot, {rows, others, machine}) of a job, as the head gets it."""
    shot, pids, strangers = find_job(pick)
    rows, others = describe_job(shot, pids), describe_job(shot, strangers)
    return shot, {"rows": rows, "others": others, "machine": machine()}


def describe_job(shot, pids):
    """Rows for the head, one per process, in order of their start. Never arguments: secrets."""
    roles = find_roles(shot, pids)
    rows = []
    for pid in sorted(pids & shot.seen.keys(), key=lambda pid: (shot.facts[pid].start, pid)):
        one, found = shot.seen[pid], shot.facts[pid]
        row = {name: getattr(found, name) for name in ("pid", "ppid", "start", "state", "command")}
        row["role"], row["index"], row["rank"] = roles[pid]
        row.update(user=user_name(one.uid), program=program(one.words))
        for name in ("run", "node", "run_dir"):
            row[name] = processes.variable(one, "CLUSTERCTL_" + name.upper())
        row["world"] = processes.rank_number(processes.variable(one, "WORLD_SIZE"))
        row["age_s"] = round(age_s(found.start), 1)
        rows.append(row)
    return rows
