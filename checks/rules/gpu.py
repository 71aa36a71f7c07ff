"""GPUs: the driver answers, none is missing, nobody else is on them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from checks import units
from checks.compare import each_node
from checks.facts import (
    NOT_ASKED,
    Fleet,
    GpuFacts,
    GpuProcess,
    KernelModule,
    NodeFacts,
    Unknown,
    known,
)
from checks.finding import Action, Finding, Lacks, fail, need, passed, skip, unknown, warn
from checks.registry import check
from checks.units import counted


def expected_count(nodes: tuple[NodeFacts, ...]) -> int:
    """GPUs that a node of this fleet should have: what most have; of a tie the larger number.

    A GPU can vanish, none appears out of nothing.
    """
    counts = Counter(known(node.gpus.count for node in nodes))
    return max(counts, key=lambda count: (counts[count], count), default=0)


def no_gpu(gpus: GpuFacts) -> Finding | None:
    """SKIP where there is surely no GPU, UNKNOWN where it is not known, None where there is one."""
    if gpus.has_hardware:
        return None
    surely = gpus.state in ("none", "no-tool") and not gpus.is_pci_unread
    if surely or gpus.summary == NOT_ASKED.reason:
        return skip("no GPU")
    return by_driver(f"whether there is a GPU: {gpus.summary}")


by_driver = functools.partial(unknown, because="gpu.driver")


def need_answer(gpus: GpuFacts, what: str = "GPUs") -> None:
    """Ends a rule with SKIP without a GPU, with UNKNOWN where no GPU answers."""
    if not gpus.gpus:
        has_none = gpus.state in ("none", "no-tool")
        raise Lacks(skip("no GPU") if has_none else by_driver(f"{what}: {gpus.summary}"))


def reset_fix(numbers: str = "N") -> str:
    return f"sudo nvidia-smi --gpu-reset -i {numbers}  (idle GPU), else reboot"


def silent_others(gpus: GpuFacts, what: str = "the other GPUs") -> Finding | None:
    """UNKNOWN where some GPUs answer and others do not."""
    return by_driver(f"{what}: {gpus.summary}") if gpus.state == "partial" else None


_POWER_CYCLE = "dmesg | grep -i xid; power cycle the node; service if it comes back"
_BROKEN = (("lost", "is lost", Action.REBOOT), ("reset", "requires a reset", Action.RESET_GPU))


@check("gpu.driver")
def driver(gpus: GpuFacts) -> Finding:
    """The driver answers for every GPU, within its deadline.

    Bad: FAIL if it does not answer for a GPU that PCI shows, or says that a GPU is lost or
        requires a reset;
        WARN on a warning of nvidia-smi, as of a damaged InfoROM; UNKNOWN if it hangs, or says
        of a GPU what cannot be read or be true
    How: NVML in a child, else nvidia-smi, with a deadline
    Fix: dmesg | grep -i nvrm; a driver that was updated under a running kernel needs a reboot
    """
    no_tool, answers = gpus.state == "no-tool", f"{len(gpus.gpus)} GPUs answer"
    if gpus.state in ("ok", "partial"):
        for how, what, action in _BROKEN:
            stuck = [gpu.label(at) for at, gpu in enumerate(gpus.gpus) if gpu.broken == how]
            if stuck:
                text = f"GPU {', '.join(stuck)}: the driver says that it {what}"
                fix = reset_fix(",".join(stuck)) if how == "reset" else _POWER_CYCLE
                return fail(text, len(stuck), 0, fix=fix, action=action)
    if gpus.state == "ok" and gpus.warnings:
        return warn(f"{answers}, and: {gpus.warnings[0]}", fix="nvidia-smi; service")
    if gpus.state == "ok":
        odd = [
            f"{word} of GPU {gpu.label(at)}: {value}"
            for at, gpu in enumerate(gpus.gpus)
            for word, value in gpu.figures.items()
            if isinstance(value, Unknown) and not value.is_absence
        ]
        return unknown(f"{answers}, but the {odd[0]}") if odd else passed(answers)
    if gpus.state in ("hung", "unreadable"):
        return unknown(gpus.summary, fix="dmesg | grep -i -e xid -e nvrm")
    if gpus.state == "failed":
        return fail(gpus.summary, action=Action.REBOOT)
    if gpus.state == "partial":
        text, fix = f"{answers}, and: {gpus.summary}", "dmesg | grep -i xid"
        return fail(text, fix=fix, action=Action.REBOOT)
    if isinstance(gpus.module, KernelModule) and gpus.module.gpus and no_tool:
        text = f"the driver's kernel module has {gpus.module.gpus} GPUs, but there is no nvidia-smi"
        return fail(text, fix="install nvidia-utils of the driver's version, or put it on PATH")
    if isinstance(gpus.on_pci, int) and gpus.on_pci:
        why = "no nvidia-smi" if no_tool else "the driver sees none of them"
        text = f"{gpus.on_pci} NVIDIA devices on PCI, but {why}"
        return fail(text, fix="install or load the driver")
    if gpus.is_pci_unread:
        return unknown(f"{gpus.summary}, and whether PCI shows a GPU: {gpus.on_pci}")
    return skip("no nvidia-smi and no NVIDIA device" if no_tool else "no GPU")


@check("gpu.count_majority", "fleet")
def count_majority(fleet: Fleet, expected: str | None) -> Iterator[Finding]:
    """As many GPUs on each node as on most.

    Bad: WARN more than most nodes, FAIL fewer
    How: GPUs that answer, against most nodes or the profile, and against PCI
    Fix: lspci | grep -i nvidia; reboot; service
    """
    most = int(expected) if expected and expected.isdecimal() else expected_count(fleet.reached)

    def judge(_node: NodeFacts, gpus: GpuFacts) -> Finding:
        count, on_pci = need(gpus.count, "number of GPUs: ", by_driver), gpus.on_pci
        if most == 0:
            return skip("no GPU on most nodes")
        text = f"{count} GPUs, most nodes have {most}"
        if count > most:
            return warn(text, count, most, source="majority", fix="")
        if count < most:
            fix, action = None, Action.REBOOT
            # Containers hide PCI: a list shorter than the driver's has no meaning.
            if isinstance(on_pci, int) and on_pci >= count:
                text += f"; PCI shows {on_pci}"
                if on_pci < most:
                    fix, action = "power cycle; if PCI still shows fewer, service", Action.SERVICE
            return fail(text, count, most, source="majority", fix=fix, action=action)
        others = silent_others(gpus, f"{count} GPUs answer, and")
        return others or passed(f"{count} GPUs", count, source="majority")

    return each_node(fleet, "gpus", judge)


@check("gpu.busy", "fleet")
def busy(fleet: Fleet) -> Iterator[Finding]:
    """No process holds a GPU: a launch on GPUs fails on one, else it is a warning.

    Bad: WARN; FAIL for a launch on GPUs
    How: compute processes of the driver with owner and age from /proc
    Fix: clusterctl kill, or its owner
    """
    bad = fail if fleet.launch is not None and fleet.device == "cuda" else warn

    def judge(_node: NodeFacts, gpus: GpuFacts) -> Finding:
        need_answer(gpus, "processes")
        lacks = by_driver if any(gpu.broken for gpu in gpus.gpus) else unknown
        processes = need(gpus.processes, "processes on the GPUs: ", lacks)
        if not processes:
            others = silent_others(gpus, "processes on the other GPUs")
            return others or passed("no process on the GPUs")
        pids = " ".join(str(pid) for pid in dict.fromkeys(one.pid for one in processes))
        fix = f"ask its owner, or end it there: kill {pids}"
        return bad(describe(processes), len(processes), 0, fix=fix, action=Action.RESTART_APP)

    return each_node(fleet, "gpus", judge)


def describe(processes: tuple[GpuProcess, ...]) -> str:
    """`2 processes: alice python (3 h), bob train (12 min)`."""
    seen: dict[str, None] = {}
    for one in processes:
        user = "somebody" if isinstance(one.user, Unknown) else one.user
        name = one.name.rsplit("/", 1)[-1] or f"pid {one.pid}"
        age = "" if isinstance(one.age_s, Unknown) else f" ({units.duration(one.age_s)})"
        seen[f"{user} {name}{age}"] = None
    count = len(processes)
    names = list(seen)[:3] + (["..."] if len(seen) > 3 else [])
    return f"{counted(count, 'process')} on the GPUs: {', '.join(names)}"
