"""GPUs: the driver answers, none is missing, nobody else is on them."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import NOT_ASKED, Fleet, GpuFacts, GpuProcess, NodeFacts, Unknown
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check


def expected_count(nodes: tuple[NodeFacts, ...]) -> int:
    """GPUs that a node of this fleet should have: what most have; of a tie the larger number.

    A GPU can vanish, none appears out of nothing.
    """
    counts: dict[int, int] = {}
    for node in nodes:
        count = node.gpus.count
        if not isinstance(count, Unknown):
            counts[count] = counts.get(count, 0) + 1
    return max(counts, key=lambda count: (counts[count], count), default=0)


def no_gpu(gpus: GpuFacts) -> Finding | None:
    """SKIP where there is surely no GPU, UNKNOWN where nobody can tell, None where there is one."""
    if gpus.has_hardware:
        return None
    surely = gpus.state in ("none", "no-tool") and not (
        isinstance(gpus.on_pci, Unknown) and not gpus.on_pci.is_absence
    )
    if surely or gpus.summary == NOT_ASKED.reason:
        return skip("no GPU")
    return unknown(f"whether there is a GPU: {gpus.summary}", because="gpu.driver")


@check(
    "gpu.driver",
    bad="FAIL if it does not answer for a GPU that PCI shows; UNKNOWN if it hangs",
    how="NVML in a child, else nvidia-smi, with a deadline",
    fix="dmesg | grep -i nvrm; reboot",
)
def driver(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The driver answers for every GPU, within its deadline."""
    gpus = node.gpus
    blind = isinstance(gpus.on_pci, Unknown) and not gpus.on_pci.is_absence
    on_pci = 0 if isinstance(gpus.on_pci, Unknown) else gpus.on_pci
    if gpus.state == "ok":
        yield passed(f"{len(gpus.gpus)} GPUs answer")
    elif gpus.state == "hung" or gpus.state == "unreadable":
        yield unknown(gpus.summary, fix="dmesg | grep -i -e xid -e nvrm")
    elif gpus.state == "failed":
        yield fail(
            gpus.summary,
            fix=(
                "dmesg | grep -i nvrm; a driver that was updated under a running kernel needs a "
                "reboot"
            ),
            action=Action.REBOOT,
        )
    elif gpus.state == "partial":
        yield fail(
            f"{len(gpus.gpus)} GPUs answer, and: {gpus.summary}",
            fix="dmesg | grep -i xid",
            action=Action.REBOOT,
        )
    elif on_pci:
        why = "no nvidia-smi" if gpus.state == "no-tool" else "the driver sees none of them"
        yield fail(f"{on_pci} NVIDIA devices on PCI, but {why}", fix="install or load the driver")
    elif blind:
        yield unknown(f"{gpus.summary}, and whether PCI shows a GPU: {gpus.on_pci}")
    else:
        yield skip("no nvidia-smi and no NVIDIA device" if gpus.state == "no-tool" else "no GPU")


@check(
    "gpu.count_majority",
    scope="fleet",
    bad="WARN more than most nodes, FAIL fewer",
    how="GPUs that answer, against most nodes or the profile, and against PCI",
    fix="lspci | grep -i nvidia; reboot; service",
)
def count_majority(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """As many GPUs on each node as on most."""
    recorded = limits.expected.get("gpu.count_majority", "")
    expected = int(recorded) if recorded.isdecimal() else expected_count(fleet.reached)
    for node in fleet.reached:
        count = node.gpus.count
        if isinstance(count, Unknown):
            yield unknown(
                f"number of GPUs: {count.reason}", nodes=(node.name,), because="gpu.driver"
            )
        elif expected == 0:
            yield skip("no GPU on most nodes", nodes=(node.name,))
        elif count < expected:
            yield _missing(node.name, count, expected, node.gpus)
        elif count > expected:
            yield warn(
                f"{count} GPUs, most nodes have {expected}",
                nodes=(node.name,),
                value=str(count),
                expected=str(expected),
                source="majority",
            )
        elif node.gpus.state == "partial":
            why = f"{count} GPUs answer, and: {node.gpus.summary}"
            yield unknown(why, nodes=(node.name,), because="gpu.driver")
        else:
            yield passed(f"{count} GPUs", nodes=(node.name,), value=str(count), source="majority")


def _missing(name: str, count: int, expected: int, gpus: GpuFacts) -> Finding:
    on_pci = gpus.on_pci
    evidence = f"{count} GPUs, most nodes have {expected}"
    fix, action = "lspci | grep -i nvidia; then reboot", Action.REBOOT
    # Containers hide PCI: a list shorter than what the driver shows says nothing.
    if not isinstance(on_pci, Unknown) and on_pci >= count:
        evidence += f"; PCI shows {on_pci}"
        if on_pci < expected:
            fix, action = "power cycle; if PCI still shows fewer, service", Action.SERVICE
    return fail(
        evidence,
        nodes=(name,),
        value=str(count),
        expected=str(expected),
        source="majority",
        fix=fix,
        action=action,
    )


@check(
    "gpu.busy",
    scope="fleet",
    bad="WARN; FAIL for a launch on GPUs",
    how="compute processes of the driver with owner and age from /proc",
    fix="clusterctl kill, or its owner",
)
def busy(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """No process holds a GPU: a launch on GPUs fails on one, else it is a warning."""
    wanted = fleet.launch is not None and fleet.device == "cuda"
    for node in fleet.reached:
        yield _judge_busy(node.gpus, (node.name,), wanted)


def _judge_busy(gpus: GpuFacts, nodes: tuple[str, ...], wanted: bool) -> Finding:
    if gpus.state in ("none", "no-tool"):
        return skip("no GPU", nodes=nodes)
    if not gpus.gpus:
        return unknown(f"processes: {gpus.summary}", nodes=nodes, because="gpu.driver")
    if isinstance(gpus.processes, Unknown):
        return unknown(f"processes on the GPUs: {gpus.processes.reason}", nodes=nodes)
    if not gpus.processes and gpus.state == "partial":
        return unknown(
            f"processes on the other GPUs: {gpus.summary}", nodes=nodes, because="gpu.driver"
        )
    if not gpus.processes:
        return passed("no process on the GPUs", nodes=nodes)
    pids = " ".join(str(pid) for pid in dict.fromkeys(one.pid for one in gpus.processes))
    return (fail if wanted else warn)(
        describe(gpus.processes),
        nodes=nodes,
        value=str(len(gpus.processes)),
        expected="0",
        fix=f"ask its owner, or end it there: kill {pids}",
        action=Action.RESTART_APP,
    )


def describe(processes: tuple[GpuProcess, ...]) -> str:
    """`2 processes: alice python (3 h), bob train (12 min)`."""
    seen: dict[str, None] = {}
    for one in processes:
        user = "somebody" if isinstance(one.user, Unknown) else one.user
        name = one.name.rsplit("/", 1)[-1] or f"pid {one.pid}"
        age = "" if isinstance(one.age_s, Unknown) else f" ({duration(one.age_s)})"
        seen[f"{user} {name}{age}"] = None
    count = len(processes)
    words = list(seen)[:3] + (["..."] if len(seen) > 3 else [])
    return f"{count} process{'es' if count > 1 else ''} on the GPUs: {', '.join(words)}"


def duration(seconds: float) -> str:
    """The largest unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
