"""The machine and its access: ssh, shell, limits, memory, processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from checks import units
from checks.compare import each_node
from checks.facts import (
    NOT_ASKED,
    Fabric,
    Fleet,
    Memory,
    NodeFacts,
    ProcessTable,
    ShellLimits,
    System,
    Unknown,
    known,
    or_none,
)
from checks.finding import SAME_MACHINE, Action, Finding, fail, need, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import check


@check("ssh.reachable")
def reachable(node: NodeFacts) -> Finding:
    """The node answers over ssh without a question.

    Bad: UNKNOWN with the phase it stopped in
    How: connects and logs in without a question
    Fix: ssh -v NODE true
    """
    if (why := node.unreached) is None:
        return passed("answers")
    # Without the seconds, which differ from node to node and would keep equal ones apart.
    return unknown(f"no answer, phase {why.phase}: {why.message}", fix=why.hint)


@check("shell.noise")
def noise(node: NodeFacts) -> Finding:
    """A shell that prints at its start breaks scp, rsync and every parser but ours.

    Bad: WARN if anything is printed
    How: bytes before the payload's marker line
    Fix: guard it in ~/.bashrc: case $- in *i*) ;; *) return;; esac
    """
    if not node.noise:
        return passed("the login shell prints nothing")
    return warn(f"the login shell prints at its start: {node.noise.splitlines()[0][:80]!r}")


@check("host.python")
def payload_python(python: str) -> Finding:
    """The python3 that our scripts run on; one that is missing or too old is no answer at all.

    Bad: UNKNOWN if it is not reported
    How: the interpreter's own version
    Fix: install python3, 3.8 or newer
    """
    return passed(f"python3 is {python}", python)


@check(SAME_MACHINE, "fleet")
def same_machine(fleet: Fleet) -> Iterator[Finding]:
    """Two names for one machine put two ranks on one GPU.

    Bad: WARN for containers of one machine, FAIL for one machine twice
    How: boot id and namespaces
    Fix: keep one of the names in the hostfile
    """
    groups: dict[str, list[NodeFacts]] = {}
    for node in fleet.reached:
        if isinstance(node.boot_id, Unknown):
            yield unknown(node.boot_id, nodes=(node.name,))
        else:
            groups.setdefault(node.boot_id, []).append(node)
    for members in groups.values():
        places: dict[str, list[NodeFacts]] = {}
        for node in members:
            places.setdefault(node.namespaces, []).append(node)
        alone = [nodes[0] for nodes in places.values() if len(nodes) == 1]
        names = tuple(node.name for node in alone)
        if len(members) == 1:
            yield passed("no other name for this machine", nodes=names)
        elif all(node.loopback for node in members):
            every = tuple(node.name for node in members)
            yield skip("loopback addresses: one machine on purpose", nodes=every)
        else:
            for same in (nodes for nodes in places.values() if len(nodes) > 1):
                both = tuple(node.name for node in same)
                text = f"one machine under several names (same boot id): {', '.join(both)}"
                yield fail(text, nodes=both, fix="keep one of the names in the hostfile")
            if alone:
                text = "containers of one machine: they share its GPUs, disks and network"
                yield warn(text, nodes=names, fix="give each machine one line in the hostfile")


@check("ssh.connect_time", advisory=True)
def connect_time(connect_s: float, limits: Profile) -> Finding:
    """The way in is quick: a slow login is a node in trouble, or a name server.

    Bad: WARN over 2 s
    How: from the first packet to the login
    Fix: ssh -v; UseDNS no in its sshd_config; look at the node's load
    """
    if connect_s > limits.ssh_connect_warn_s:
        return warn(
            f"login took {units.duration(connect_s)}", f"{connect_s:.1f}", limits.ssh_connect_warn_s
        )
    return passed("login is quick")


@check("host.limits", advisory=True)
def open_files(shell_limits: ShellLimits, limits: Profile) -> Finding:
    """Enough open files: loaders, sockets to every peer and shared memory take thousands.

    Bad: WARN under 65536 open files
    How: getrlimit in a session without a terminal, which is what ranks get
    Fix: echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/90-training.conf
    """
    have = shell_limits.open_files
    if have is not None and have < limits.open_files_warn:
        return warn(f"{have} open files allowed", have, f"{limits.open_files_warn:g}")
    return passed("enough open files")


@check("host.memlock", advisory=True)
def memlock(shell_limits: ShellLimits, node: NodeFacts) -> Finding:
    """Memory may be pinned: InfiniBand registers its buffers, and fails in NCCL's first call.

    Bad: FAIL if it is under 64 GiB and the node has InfiniBand
    How: getrlimit in a session without a terminal
    Fix: echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-training.conf; new login
    """
    have, fabric = shell_limits.memlock_bytes, node.fabric
    enough = have is None or have >= 64 << 30
    active = [port.is_active for port in fabric.ports] if isinstance(fabric, Fabric) else []
    is_unread = isinstance(fabric, Unknown) and fabric != NOT_ASKED
    if not enough and (is_unread or None in active) and True not in active:
        why = fabric if isinstance(fabric, Unknown) else "a port's state cannot be read"
        return unknown(f"memory may not be locked, and whether there is InfiniBand: {why}")
    if True not in active:
        return skip("no active InfiniBand or RoCE port")
    if have is not None and not enough:
        return fail(f"{units.size(have)} may be locked", have, "unlimited")
    return passed("memory may be locked")


@check("host.shm", advisory=True)
def shm(shell_limits: ShellLimits, node: NodeFacts, limits: Profile) -> Finding:
    """/dev/shm has space for batches of loaders; if it is full, a bus error kills them.

    Bad: WARN under half of the memory
    How: statvfs of /dev/shm against MemTotal
    Fix: sudo mount -o remount,size=50% /dev/shm; in containers --shm-size
    """
    have, share = need(shell_limits.shm_bytes, lacks=unknown), limits.shm_share_warn
    memory = need(node.memory, lacks=unknown)
    if have < share * memory.total_bytes * 0.98:  # tmpfs rounds down
        text = f"/dev/shm has {units.size(have)} of {units.size(memory.total_bytes)} memory"
        return warn(text, have, f"{share:g} of memory")
    return passed("enough space in /dev/shm")


@check("host.swap", advisory=True)
def swap(memory: Memory) -> Finding:
    """Nothing is swapped out: a rank that waits for the disk keeps all others waiting.

    Bad: WARN if over 1 GiB of swap is in use
    How: /proc/meminfo
    Fix: ps aux --sort -rss | head; sudo swapoff -a && sudo swapon -a
    """
    used = memory.swap_total_bytes - memory.swap_free_bytes
    if used > 1 << 30:
        return warn(f"{units.size(used)} of swap in use", used, 0)
    return passed("no swap in use")


@check("host.memory_equal", "fleet", advisory=True)
def memory_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """As much memory as the others: a module that failed is silently left out at boot.

    Bad: WARN over 5 % below the fleet's median
    How: MemTotal
    Fix: sudo dmidecode -t memory | grep -i size: a module is lost
    """
    memories = known(node.memory for node in fleet.reached)
    median = statistics.median_high([one.total_bytes for one in memories]) if memories else 0

    def judge(_node: NodeFacts, memory: Memory) -> Finding:
        size = memory.total_bytes
        if size >= (1 - limits.memory_share_warn) * median:
            return passed("memory as the others")
        text = f"{units.size(size)} memory, the median is {units.size(median)}"
        return warn(text, size, median, source="majority", action=Action.SERVICE)

    return each_node(fleet, "memory", judge)


@check("host.blocked", advisory=True)
def blocked(processes: ProcessTable, limits: Profile) -> Finding:
    """No process hangs in the kernel.

    Why: It cannot be killed, holds its GPU or mount, and the next run meets the same wall.
    Bad: WARN a process that sleeps in the kernel for 30 s or for an unknown time, FAIL for 300 s
    How: /proc, state D twice without a context switch in between; its last run from /proc/N/sched
    Fix: what it waits for (wchan): a dead mount, the driver; usually a reboot
    """
    times = {one: or_none(one.since_s) for one in processes.blocked}
    long = {one: t for one, t in times.items() if t is None or t > limits.blocked_warn_s}
    if not long and processes.hidden:
        return unknown(f"none of those that can be seen hangs: {processes.hidden}")
    if not long:
        return passed("no process hangs in the kernel")
    worst = max(long, key=lambda one: long[one] or 0.0)
    since_s, count = long[worst], len(long)
    since = "" if since_s is None else f" for {units.duration(since_s)}"
    more = f", and {count - 1} more" if count > 1 else ""
    text = f"pid {worst.pid} {worst.name} sleeps in {worst.where}{since}{more}"
    fix = f"sudo cat /proc/{worst.pid}/stack; reboot"
    if since_s is not None and since_s > limits.blocked_fail_s:
        return fail(text, count, 0, fix=fix, action=Action.REBOOT)
    return warn(text, count, 0, fix=fix)


@check("host.zombies", advisory=True)
def zombies(processes: ProcessTable, limits: Profile) -> Finding:
    """Dead processes are collected.

    Bad: WARN over 10
    How: /proc, state Z twice
    Fix: ps -eo ppid,stat,comm | grep Z
    """
    count = len(processes.zombies)
    if count > limits.zombies_warn:
        names = ", ".join(sorted(set(processes.zombies))[:3])
        return warn(f"{count} zombies: {names}", count, limits.zombies_warn)
    if processes.hidden:
        return unknown(f"few of those that can be seen: {processes.hidden}")
    return passed("no zombies")


@check("host.load", advisory=True)
def load(load_1min: float, node: NodeFacts, limits: Profile) -> Finding:
    """Nobody else computes on the node: a loader that shares its CPUs feeds its GPUs late.

    Bad: WARN over 0.5 per CPU
    How: /proc/loadavg over the number of CPUs
    Fix: top -b -n 1 | head -20
    """
    cpus = None if isinstance(node.machine, Unknown) else node.machine.cpus
    if not isinstance(cpus, int) or not cpus:
        return unknown("the number of CPUs is not known")
    most = limits.load_per_cpu_warn * cpus
    if node.loopback:
        return skip("a loopback address: its load is the head's own")
    if load_1min > max(most, 4):
        text = f"load {load_1min:.0f} on {cpus} CPUs: others compute here"
        return warn(text, f"{load_1min:.1f}", most)
    return passed("little load")


@check("host.governor", advisory=True)
def governor(system: System) -> Finding:
    """CPUs run at full clock: NCCL's proxy threads and the loaders wait on single cores.

    Bad: WARN if it is powersave on any CPU of some nodes
    How: cpufreq scaling_governor; virtual machines have none
    Fix: sudo cpupower frequency-set -g performance
    """
    governors = need(system.governors, lacks=skip)
    fast = ("performance", "schedutil", "ondemand")
    if slow := [one for one in governors if one not in fast]:
        return warn(f"governor {', '.join(slow)}", slow[0], "performance")
    return passed(f"governor {', '.join(governors)}")
