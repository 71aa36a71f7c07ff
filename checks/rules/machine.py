"""The machine below the GPUs: limits, memory, processes, kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.facts import (
    NOT_ASKED,
    Fabric,
    Fleet,
    KernelLog,
    Machine,
    Memory,
    NodeFacts,
    ProcessTable,
    ShellLimits,
    System,
    Unknown,
)
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.rules.xid import nothing_logged
from checks.runner import check, compare


@check(
    "ssh.connect_time",
    needs=("connect_s",),
    advisory=True,
    bad="WARN over 2 s",
    how="from the first packet to the login",
    fix="UseDNS no in sshd_config; look at the node's load",
)
def connect_time(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """The way in is quick: a slow login is a node in trouble, or a name server."""
    assert isinstance(node.connect_s, float)
    if node.connect_s > limits.ssh_connect_warn_s:
        yield warn(
            f"login took {node.connect_s:.0f} s",
            value=f"{node.connect_s:.1f}",
            expected=f"{limits.ssh_connect_warn_s:g}",
            fix="ssh -v; UseDNS no in its sshd_config",
        )
    else:
        yield passed("login is quick")


@check(
    "host.limits",
    needs=("shell_limits",),
    advisory=True,
    bad="WARN under 65536 open files",
    how="getrlimit in a session without a terminal, which is what ranks get",
    fix="* soft nofile 1048576 (and hard) in /etc/security/limits.d/90-training.conf",
)
def open_files(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """Enough open files: loaders, sockets to every peer and shared memory take thousands."""
    assert isinstance(node.shell_limits, ShellLimits)
    have = node.shell_limits.open_files
    if have is not None and have < limits.open_files_warn:
        yield warn(
            f"{have} open files allowed",
            value=str(have),
            expected=f"{limits.open_files_warn:g}",
            fix="echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/90-training.conf",
        )
    else:
        yield passed("enough open files")


@check(
    "host.memlock",
    needs=("shell_limits",),
    advisory=True,
    bad="FAIL if it is under 64 GiB and the node has InfiniBand",
    how="getrlimit in a session without a terminal",
    fix="* - memlock unlimited in /etc/security/limits.d/90-training.conf",
)
def memlock(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """Memory may be pinned: InfiniBand registers its buffers, and fails in NCCL's first call."""
    assert isinstance(node.shell_limits, ShellLimits)
    have = node.shell_limits.memlock_bytes
    enough = have is None or have >= 64 << 30
    states = (
        [port.is_active for port in node.fabric.ports] if isinstance(node.fabric, Fabric) else []
    )
    blind = isinstance(node.fabric, Unknown) and node.fabric != NOT_ASKED
    if not enough and (blind or None in states) and True not in states:
        why = node.fabric if isinstance(node.fabric, Unknown) else "a port's state cannot be read"
        yield unknown(f"memory may not be locked, and whether there is InfiniBand: {why}")
    elif True not in states:
        yield skip("no active InfiniBand or RoCE port")
    elif have is not None and not enough:
        yield fail(
            f"{have >> 10} KiB may be locked",
            value=str(have),
            expected="unlimited",
            fix=(
                "echo '* - memlock unlimited' | sudo tee "
                "/etc/security/limits.d/90-training.conf; log in again"
            ),
        )
    else:
        yield passed("memory may be locked")


@check(
    "host.shm",
    needs=("shell_limits",),
    advisory=True,
    bad="WARN under half of the memory",
    how="statvfs of /dev/shm against MemTotal",
    fix="mount -o remount,size=50% /dev/shm; docker --shm-size",
)
def shm(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """/dev/shm has space for batches of loaders; if it is full, a bus error kills them."""
    assert isinstance(node.shell_limits, ShellLimits)
    have, memory = node.shell_limits.shm_bytes, node.memory
    if isinstance(have, Unknown):
        yield unknown(have.reason)
    elif isinstance(memory, Unknown):
        yield unknown(memory.reason)
    elif have < limits.shm_share_warn * memory.total_bytes * 0.98:  # tmpfs rounds down
        yield warn(
            f"/dev/shm has {have / 2**30:.1f} GiB of {memory.total_bytes / 2**30:.0f} GiB memory",
            value=str(have),
            expected=f"{limits.shm_share_warn:g} of memory",
            fix="sudo mount -o remount,size=50% /dev/shm; in containers --shm-size",
        )
    else:
        yield passed("room in /dev/shm")


@check(
    "host.swap",
    needs=("memory",),
    advisory=True,
    bad="WARN if over 1 GiB of swap is in use",
    how="/proc/meminfo",
    fix="who holds the memory: ps aux --sort -rss | head",
)
def swap(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """Nothing is swapped out: a rank that waits for the disk keeps all others waiting."""
    assert isinstance(node.memory, Memory)
    used = node.memory.swap_total_bytes - node.memory.swap_free_bytes
    if used > 1 << 30:
        yield warn(
            f"{used / 2**30:.1f} GiB of swap in use",
            value=str(used),
            expected="0",
            fix="ps aux --sort -rss | head; sudo swapoff -a && sudo swapon -a",
        )
    else:
        yield passed("no swap in use")


@check(
    "host.memory_equal",
    scope="fleet",
    advisory=True,
    bad="WARN over 5 % below the fleet's median",
    how="MemTotal",
    fix="dmidecode -t memory: a module is lost",
)
def memory_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """As much memory as the others: a module that failed is silently left out at boot."""
    sizes = sorted(
        node.memory.total_bytes for node in fleet.reached if isinstance(node.memory, Memory)
    )
    middle = sizes[len(sizes) // 2] if sizes else 0
    for node in fleet.reached:
        if isinstance(node.memory, Unknown):
            asked = node.memory != NOT_ASKED
            yield (unknown if asked else skip)(node.memory.reason, nodes=(node.name,))
        elif node.memory.total_bytes < (1 - limits.memory_share_warn) * middle:
            yield warn(
                f"{node.memory.total_bytes / 2**30:.0f} GiB memory, the median is "
                f"{middle / 2**30:.0f}",
                nodes=(node.name,),
                value=str(node.memory.total_bytes),
                expected=str(middle),
                source="majority",
                fix="sudo dmidecode -t memory | grep -i size",
                action=Action.SERVICE,
            )
        else:
            yield passed("memory as the others", nodes=(node.name,))


@check(
    "host.blocked",
    needs=("processes",),
    advisory=True,
    bad=(
        "WARN a process that sleeps in the kernel for 30 s or as long as can be told, FAIL for "
        "300 s"
    ),
    how="/proc, state D twice without a context switch in between; its last run from /proc/N/sched",
    fix="what it waits for (wchan): a dead mount, the driver; usually a reboot",
)
def blocked(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """No process hangs in the kernel.

    It cannot be killed, holds its GPU or mount, and the next run meets the same wall.
    """
    assert isinstance(node.processes, ProcessTable)
    long_ones = [
        one
        for one in node.processes.blocked
        if isinstance(one.since_s, Unknown) or one.since_s > limits.blocked_warn_s
    ]
    if not long_ones and node.processes.hidden:
        yield unknown(f"none of those that can be seen hangs: {node.processes.hidden}")
        return
    if not long_ones:
        yield passed("no process hangs in the kernel")
        return
    worst = max(long_ones, key=lambda one: 0.0 if isinstance(one.since_s, Unknown) else one.since_s)
    long = not isinstance(worst.since_s, Unknown) and worst.since_s > limits.blocked_fail_s
    since = "" if isinstance(worst.since_s, Unknown) else f" for {worst.since_s:.0f} s"
    count = len(long_ones)
    more = f", and {count - 1} more" if count > 1 else ""
    yield (fail if long else warn)(
        f"pid {worst.pid} {worst.name} sleeps in {worst.where}{since}{more}",
        value=str(count),
        expected="0",
        fix=f"sudo cat /proc/{worst.pid}/stack; reboot",
        action=Action.REBOOT if long else Action.NONE,
    )


@check(
    "host.zombies",
    needs=("processes",),
    advisory=True,
    bad="WARN over 10",
    how="/proc, state Z twice",
    fix="end their parent: ps -eo ppid,stat,comm | grep Z",
)
def zombies(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """Dead processes are collected."""
    assert isinstance(node.processes, ProcessTable)
    count = len(node.processes.zombies)
    if count > limits.zombies_warn:
        names = ", ".join(sorted(set(node.processes.zombies))[:3])
        yield warn(
            f"{count} zombies: {names}",
            value=str(count),
            expected=f"{limits.zombies_warn:g}",
            fix="ps -eo ppid,stat,comm | grep Z",
        )
    elif node.processes.hidden:
        yield unknown(f"few of those that can be seen: {node.processes.hidden}")
    else:
        yield passed("no zombies")


@check(
    "host.load",
    advisory=True,
    bad="WARN over 0.5 per CPU",
    how="/proc/loadavg over the number of CPUs",
    fix="top -b -n 1 | head -20",
)
def load(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """Nobody else computes on the node: a loader that shares its CPUs feeds its GPUs late."""
    cpus = None if isinstance(node.machine, Unknown) else node.machine.cpus
    if node.load_1min == NOT_ASKED:
        yield skip(NOT_ASKED.reason)
    elif isinstance(node.load_1min, Unknown):
        yield unknown(node.load_1min.reason)
    elif not isinstance(cpus, int) or not cpus:
        yield unknown("the number of CPUs is not known")
    elif node.loopback:
        yield skip("a loopback address: its load is the head's own")
    elif node.load_1min > max(limits.load_per_cpu_warn * cpus, 4):
        yield warn(
            f"load {node.load_1min:.0f} on {cpus} CPUs: others compute here",
            value=f"{node.load_1min:.1f}",
            expected=f"{limits.load_per_cpu_warn * cpus:g}",
            fix="top -b -n 1 | head -20",
        )
    else:
        yield passed("little load")


@check(
    "host.governor",
    needs=("system",),
    advisory=True,
    bad="WARN if it is powersave on any CPU of some nodes",
    how="cpufreq scaling_governor; virtual machines have none",
    fix="sudo cpupower frequency-set -g performance",
)
def governor(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """CPUs run at full clock: NCCL's proxy threads and the loaders wait on single cores."""
    assert isinstance(node.system, System)
    if isinstance(node.system.governors, Unknown):
        yield skip(node.system.governors.reason)
    elif slow := [
        one for one in node.system.governors if one not in ("performance", "schedutil", "ondemand")
    ]:
        yield warn(
            f"governor {', '.join(slow)}",
            value=slow[0],
            expected="performance",
            fix="sudo cpupower frequency-set -g performance",
        )
    else:
        yield passed(f"governor {', '.join(node.system.governors)}")


@check(
    "host.kernel_equal",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="uname -r",
    fix="the same packages on all nodes, then reboot",
)
def kernel_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same kernel: driver modules and network stacks behave by it."""

    def read(node: NodeFacts) -> Any:
        return node.machine.kernel if isinstance(node.machine, Machine) else node.machine

    yield from compare(
        fleet,
        read,
        "kernel",
        bad=warn,
        fix="the same packages, then reboot",
        expected=limits.expected.get("host.kernel_equal"),
    )


@check(
    "host.os_equal",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="/etc/os-release",
    fix="the same image on all nodes",
)
def os_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same distribution."""

    def read(node: NodeFacts) -> Any:
        return node.system if isinstance(node.system, Unknown) else node.system.distribution

    yield from compare(
        fleet,
        read,
        "distribution",
        bad=warn,
        fix="the same image on all nodes",
        expected=limits.expected.get("host.os_equal"),
    )


@check(
    "host.kernel_log",
    needs=("kernel_log",),
    advisory=True,
    bad=(
        "WARN out of memory, soft lockup, hung task, NFS server silent in 24 h; FAIL machine "
        "check, "
        "read-only remount, disk error"
    ),
    how="dmesg, else journalctl -k; where this user may not read either, UNKNOWN (--sudo tries)",
    fix="the line says what: memory, disk, server",
)
def kernel_log(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The kernel has logged no fault of memory, disk or file systems."""
    assert isinstance(node.kernel_log, KernelLog)
    words = {
        "mce": ("machine check", True),
        "read-only": ("file system went read-only", True),
        "disk": ("disk error", True),
        "oom": ("out of memory", False),
        "lockup": ("CPU lockup", False),
        "hung-task": ("a task hung", False),
        "nfs": ("NFS server does not answer", False),
        "nccl-crash": ("NCCL crashed", False),
    }
    found: dict[str, tuple[int, str]] = {}
    for event in node.kernel_log.events:
        recent = isinstance(event.age_s, Unknown) or event.age_s < 86400
        if event.kind in words and recent:
            found[event.kind] = (found.get(event.kind, (0, ""))[0] + 1, event.line)
    if not found:
        yield nothing_logged(node.kernel_log, "nothing that matters in 24 h", 86400)
    for kind, (times, line) in found.items():
        what, is_bad = words[kind]
        count = f" {times} times" if times > 1 else ""
        yield (fail if is_bad else warn)(
            f"{what}{count}: {line[:100]}",
            value=str(times),
            expected="0",
            fix="dmesg | tail -50",
            action=Action.SERVICE if kind in ("mce", "disk") else Action.NONE,
        )
