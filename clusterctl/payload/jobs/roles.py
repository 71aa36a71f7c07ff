"""What each process of a job is for, by environment, parents and names; the head corrects it."""

import collections
import re

from clusterctl.payload.jobs.processes import rank_number, variable

SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "env", "timeout")
LAUNCHERS = re.compile(
    rb"torch/distributed/(run|launch)|torch\.distributed\.(run|launch)|(^|/)torchrun(\0|$)|"
    rb"-m\0trainer\.starter(\0|$)|"
    rb"(^|/)colossalai\0run|(^|/)(accelerate-launch|deepspeed|mpirun|mpiexec)(\0|$)"
)
OTHERS = (
    ("tracker", re.compile(rb"multiprocessing\.resource_tracker")),
    ("forkserver", re.compile(rb"multiprocessing\.forkserver")),
    ("logger", re.compile(rb"wandb-core|wandb-service|wandb\.sdk|gpu_stats|tensorboard")),
    ("compiler", re.compile(rb"torch/_inductor/compile_worker")),
)
PROGRAM_BYTES = 1000  # of one word of a command line
OUR_ROLE = re.compile(r"^(loader|probe|decode)(?: (?:\d+\.)?(\d+))?$")


def find_roles(shot, pids):
    """{pid: (role, index, rank)}; `index` numbers the loaders of a trainer, None elsewhere."""
    roles = {}  # type: dict
    for pid in sorted(pids, key=lambda pid: _depth(shot, pid)):
        one = shot.seen.get(pid)
        roles[pid] = _role(shot, pid, one, roles) if one else ("unknown", None, None)
    _number_loaders(shot, roles)
    return roles


def _depth(shot, pid):
    depth = 0
    while pid in shot.facts and depth < 1000:
        pid, depth = shot.facts[pid].ppid, depth + 1
    return depth


def _role(shot, pid, one, roles):
    line = b"\0".join(one.words)
    parent_role, _, parent_rank = roles.get(one.facts.ppid, (None, None, None))
    own_rank = rank_number(variable(one, "RANK"))
    rank = own_rank if own_rank is not None else parent_rank
    own_role = OUR_ROLE.match(variable(one, "CLUSTERCTL_ROLE") or "")
    if own_role:
        return (own_role.group(1), rank_number(own_role.group(2)), rank)
    for role, pattern in OTHERS:
        if pattern.search(line):
            return (role, None, rank)
    parent = shot.seen.get(one.facts.ppid)
    is_fork = parent is not None and parent.words == one.words  # it has its parent's command line
    if LAUNCHERS.search(line) and own_rank is None:
        # The starter forks ranks, which could not write a command line of their own.
        return ("trainer" if is_fork else "launcher", None, None)
    if one.facts.command in SHELLS:
        return ("shell", None, rank)
    is_spawned = b"--multiprocessing-fork" in line
    if is_spawned and parent_role is None and own_rank is not None:
        return ("loader", None, rank)  # its trainer has died
    if parent_role in ("trainer", "forkserver"):
        # What is no fork was started for something.
        is_worker = is_spawned or one.facts.command.startswith("pt_data_worker")
        return ("loader" if is_fork or is_worker else "helper", None, rank)
    if is_spawned and parent_role not in ("launcher", None):
        return ("helper", None, rank)
    if parent_role in ("loader", "helper", "tracker", "logger", "compiler"):
        return ("helper", None, rank)
    return ("trainer", None, rank)


def _number_loaders(shot, roles):
    """Loaders in order of their start, as torch numbers them; ours have it in CLUSTERCTL_ROLE."""
    counts = collections.Counter()  # type: Any  # of a trainer's loaders
    loaders = [pid for pid, (role, index, _) in roles.items() if role == "loader" and index is None]
    for pid in sorted(loaders, key=lambda pid: (shot.facts[pid].start, pid)):
        parent = shot.facts[pid].ppid
        roles[pid] = ("loader", counts[parent], roles[pid][2])
        counts[parent] += 1


def program(words):
    """What a process runs, without arguments: `python3 train.py`, `python3 -m trainer.train`."""
    texts = [word[:PROGRAM_BYTES].decode("utf-8", "replace") for word in words[:12]]
    if not texts:
        return ""
    name = texts[0].rsplit("/", 1)[-1]
    for index, text in enumerate(texts[1:], 1):
        if text == "-m" and index + 1 < len(texts):
            return "%s -m %s" % (name, texts[index + 1])
        if text == "-c":
            spawned = "multiprocessing.spawn" in "".join(texts[index + 1 : index + 2])
            return name + (" (spawned)" if spawned else " -c")
        if text.endswith(".py"):
            return "%s %s" % (name, text.rsplit("/", 1)[-1])
    return name
