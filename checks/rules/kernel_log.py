"""Errors of GPUs, links and the machine in the kernel's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf
from textwrap import shorten

from checks import units
from checks.facts import (
    NOT_ASKED,
    Fabric,
    GpuFacts,
    KernelEvent,
    KernelLog,
    NodeFacts,
    Unknown,
    known,
)
from checks.finding import Action, Finding, Verdict, fail, need, passed, skip, unknown, warn
from checks.parsers.gpu_health import bus_key
from checks.profile import Profile
from checks.reference.xid_codes import worst
from checks.registry import check
from checks.rules.gpu import no_gpu


def nothing_logged(log: KernelLog, good: str, window_s: float = inf, within: str = "") -> Finding:
    """The finding of a log without a bad line; before its oldest line nothing is known.

    The kernel's buffer keeps the newest lines only. `window_s` is how far back the check must see;
    inf: to the boot. `within` says it, of a check that looks at no older lines.
    """
    if log.reaches_s is None:
        return passed(good + within)
    reaches_s = need(log.reaches_s, f"{good}, but how far the kernel's log reaches back: ", unknown)
    reach = f"in the {units.duration(max(0.0, reaches_s))} that the kernel's log reaches back"
    if reaches_s >= window_s:
        return passed(good + within if within else f"{good} {reach}")
    return unknown(f"{good} {reach}; what was before is not known", fix="journalctl -k -b")


@check("gpu.xid", advisory=True)
def xid(kernel_log: KernelLog, gpus: GpuFacts, limits: Profile) -> Iterator[Finding]:
    """The driver has logged no error that a run would meet again.

    Why: Meta's 54 days with 16,384 GPUs: 148 of 419 unexpected interruptions were faulty GPUs.
    Bad: by number: WARN for user code and contained errors, FAIL for what wants a reset, reboot or
        service; older than 24 h only WARN unless the GPU still asks for recovery; the worst line
        of a GPU and number counts, of Xid 154 the newest
    How: lines `NVRM: Xid (PCI:…): N` since boot, also with a MIG instance in them
    Fix: what the number wants: restart the program, reset the GPU, reboot, service
    """
    seen: dict[tuple[str, int], list[KernelEvent]] = {}
    for event in kernel_log.events:
        if event.kind == "xid" and event.xid is not None:
            seen.setdefault((event.subject, event.xid), []).append(event)
    if not seen and (without := no_gpu(gpus)):
        yield without
        return
    graded = {key: worst(key[1], [one.line for one in found]) for key, found in seen.items()}
    bad = {key: found for key, found in graded.items() if found[0].verdict is not Verdict.PASS}
    for (gpu, number), (found, at) in bad.items():
        events = seen[gpu, number]
        age_s = events[at].age_s
        count = f", {len(events)} times" if len(events) > 1 else ""
        age = "" if isinstance(age_s, Unknown) else f", {units.ago(age_s)}"
        is_fail = found.verdict is Verdict.FAIL and not _is_past(events[at], gpus, limits)
        text = f"Xid {number} on GPU {gpu}: {found.meaning}{count}{age}"
        fix = _FIXES[found.action].format(gpu=gpu)
        if found.fix:
            fix = f"{found.fix}; {fix}" if found.action is Action.RESET_GPU else found.fix
        yield (fail if is_fail else warn)(text, number, fix=fix, action=found.action)
    if not bad:
        notes = ", ".join(sorted({str(number) for _, number in seen}))
        good = f"no Xid that matters ({notes} seen)" if notes else "no Xid"
        yield nothing_logged(kernel_log, good, limits.xid_fresh_hours * 3600)


def _is_past(event: KernelEvent, gpus: GpuFacts, limits: Profile) -> bool:
    """A day-old failure that no driver asks about any more, which is a warning."""
    asks = known(health.recovery_action for health in known(gpu.health for gpu in gpus.gpus))
    if isinstance(event.age_s, Unknown) or any(action != "None" for action in asks):
        return False
    return event.age_s > limits.xid_fresh_hours * 3600


_FIXES = {
    Action.NONE: "dmesg | grep -i xid",
    Action.RESTART_APP: "check the program that ran then; dmesg | grep -i xid",
    Action.RESET_GPU: "sudo nvidia-smi --gpu-reset -i {gpu}.0  (idle GPU), else reboot",
    Action.REBOOT: "power cycle the node; service if it comes back",
    Action.SERVICE: "service: the card or its power",
}


_DEAD = {
    "fell-off-bus": ("has fallen off the bus", ""),
    "probe-failed": ("has fallen off the bus", ""),
    "init-failed": (
        "was not initialised by the driver",
        "reinstall the driver if it was updated (its firmware has to fit); power cycle the node",
    ),
    "gsp-timeout": (
        "has firmware (GSP) that did not answer",
        "power cycle the node; if it comes back, another driver version or service",
    ),
}


@check("gpu.fell_off", advisory=True)
def fell_off(kernel_log: KernelLog, gpus: GpuFacts) -> Iterator[Finding]:
    """No GPU has fallen off the bus, failed to start, or has firmware that is silent.

    Bad: FAIL on the words, also without a number; older than 24 h, or where every GPU that is
        named answers again, WARN for a failed start or silent firmware
    How: `fallen off the bus`, which may be three lines without any Xid, `RmInitAdapter failed`,
        failed probes, and `heartbeat timed out` or a timeout of GSP in the kernel's log
    Fix: power cycle the node; if it comes back, service
    """
    lost: dict[str, list[KernelEvent]] = {}  # by what is said of them
    for one in kernel_log.events:
        if one.kind in _DEAD:
            lost.setdefault(_DEAD[one.kind][0], []).append(one)
    if not lost:
        yield no_gpu(gpus) or nothing_logged(kernel_log, "no GPU fell off the bus")
    alive = {_slot(bus_id) for bus_id in known(g.bus_id for g in gpus.gpus if not g.broken)}
    for said, events in lost.items():
        # A GPU has the address, and GSP's lines the number, that the driver gives it.
        names = sorted({one.subject.removeprefix("gpu") for one in events if one.subject})
        which = f"GPU {', '.join(names)}" if names else "a GPU"
        kind, age_s = events[-1].kind, events[-1].age_s
        age = "" if isinstance(age_s, Unknown) else f", {units.ago(age_s)}"
        is_back = bool(names) and alive.issuperset(map(_slot, names))
        text, fix = f"{which} {said}", _DEAD[kind][1] or None
        if kind in ("fell-off-bus", "probe-failed"):
            yield fail(text, len(names) or 1, 0, action=Action.REBOOT)
        elif is_back or not events[-1].is_recent:
            text += f"{age}; {'it answers now' if is_back else 'nothing since'}"
            yield warn(text, len(names) or 1, 0, fix=fix, action=Action.REBOOT)
        else:
            yield fail(f"{text}{age}", len(names) or 1, 0, fix=fix, action=Action.REBOOT)


def _slot(address: str) -> str:
    """The address of a GPU without its function: 0000:0a:00."""
    return bus_key(address).partition(".")[0]


@check("gpu.sxid", advisory=True)
def sxid(kernel_log: KernelLog, gpus: GpuFacts) -> Finding:
    """The NVSwitches have logged no error.

    Bad: WARN on a non-fatal NVSwitch error, FAIL on a fatal one
    How: SXid lines of the kernel's log
    Fix: reset all GPUs or reboot; service if it comes back
    """
    found = [one for one in kernel_log.events if one.kind.startswith("sxid")]
    fatal = [one for one in found if one.kind == "sxid-fatal"]
    if not found:
        return no_gpu(gpus) or nothing_logged(kernel_log, "no SXid")
    one = (fatal or found)[-1]
    text = f"NVSwitch {one.subject}: SXid {one.xid}"
    return (fail if fatal else warn)(text, one.xid, action=Action.REBOOT)


@check("ib.flaps", advisory=True)
def flaps(kernel_log: KernelLog, node: NodeFacts, limits: Profile) -> Finding:
    """No link goes down and comes back.

    Why: A port that heals itself still kills the collective that was on it.
    Bad: WARN one lost link in 24 h, FAIL three; of an interface that is no card's of InfiniBand or
        RoCE WARN three
    How: what drivers say of a lost link in the kernel's log, by interface or port
    Fix: cable and transceiver of that port
    """
    ports = node.fabric.ports if isinstance(node.fabric, Fabric) else ()
    names = ("ib", "mlx", *(port.netdev for port in ports if isinstance(port.netdev, str)))
    names += tuple(port.device for port in ports)
    lost = Counter(
        event.subject
        for event in kernel_log.events
        if event.kind == "link-lost" and event.is_recent
    )
    of_cards = [(name, times) for name, times in lost.most_common() if name.startswith(names)]
    for name, times in of_cards[:1]:
        if times >= limits.ib_flaps_warn:
            bad = fail if times >= limits.ib_flaps_fail else warn
            text = f"{name} lost its link {times} times in 24 h"
            fix = f"cable and transceiver of {name}"
            return bad(text, times, 0, fix=fix, action=Action.SERVICE)
    for name, times in lost.most_common(1):
        if times >= limits.ib_flaps_fail:
            text = f"{name} lost its link {times} times in 24 h"
            return warn(text, times, 0, fix=f"cable and transceiver of {name}")
    if isinstance(node.fabric, Unknown) and node.fabric != NOT_ASKED:
        return unknown(f"which interfaces are those of cards: {node.fabric}")
    return _no_card(node) or nothing_logged(kernel_log, "no link was lost", 86400, " in 24 h")


def _no_card(node: NodeFacts) -> Finding | None:
    if isinstance(node.fabric, Fabric) and not node.fabric.ports:
        return skip("no InfiniBand or RoCE card")
    return None


@check("ib.pcie_limited", advisory=True)
def pcie_limited(kernel_log: KernelLog, node: NodeFacts) -> Finding:
    """Network cards have all their PCIe lanes.

    Why: A 400 Gb/s card on eight lanes carries half, and its port still says 400.
    Bad: WARN if the kernel says that a network card's PCIe link is narrower or slower than the card
    How: `available PCIe bandwidth, limited by` of mlx5 in the kernel's log
    Fix: reseat the card, another slot, BIOS; lspci -vv | grep LnkSta; then service
    """
    slow = [one for one in kernel_log.events if one.kind == "pcie-slow" and "mlx" in one.line]
    if not slow:
        good = "the kernel complains of no slow slot"
        return _no_card(node) or nothing_logged(kernel_log, good)
    cards = sorted({event.subject for event in slow})
    text = (
        f"{', '.join(cards)}: {shorten(slow[-1].line.partition(': ')[2], 110, placeholder=' ...')}"
    )
    return warn(text, len(cards), 0, action=Action.SERVICE)


_FAULTS = {
    "mce": (fail, "machine check", Action.SERVICE),
    "memory": (fail, "memory error that was not corrected", Action.SERVICE),
    "pcie-fatal": (fail, "fatal PCIe error", Action.REBOOT),
    "nic-fatal": (fail, "a network card failed", Action.REBOOT),
    "pcie": (warn, "PCIe error that was not corrected", Action.NONE),
    "nic": (warn, "a network card has trouble", Action.NONE),
    "read-only": (fail, "file system went read-only", Action.NONE),
    "disk": (fail, "disk error", Action.SERVICE),
    "oom": (warn, "out of memory", Action.NONE),
    "lockup": (warn, "CPU lockup", Action.NONE),
    "hung-task": (warn, "a task hung", Action.NONE),
    "nfs": (warn, "NFS server does not answer", Action.NONE),
    "nvlink": (warn, "the driver could not set up an NVLink", Action.NONE),
    "nccl-crash": (warn, "NCCL crashed", Action.NONE),
    "driver-mismatch": (
        warn,
        "a program's driver library is not of the kernel module's version (reboot after an update)",
        Action.NONE,
    ),
}


@check("host.kernel_log", advisory=True)
def kernel_log_faults(kernel_log: KernelLog) -> Iterable[Finding]:
    """The kernel has logged no fault of memory, PCIe, network cards, disks or file systems.

    Bad: WARN OOM, lockup, hung task, silent NFS server, trouble of a network card or of NVLink, a
        library of another driver version than the kernel module, PCIe error that is not fatal in
        24 h; FAIL machine check, uncorrected memory error, fatal PCIe error, failed network card,
        read-only, disk
    How: dmesg, else journalctl -k; where this user may not read either, UNKNOWN (--sudo tries)
    Fix: dmesg | tail -50; the line names what: memory, disk, server
    """
    lines: dict[str, list[str]] = {}
    for event in kernel_log.events:
        if event.kind in _FAULTS and event.is_recent:
            lines.setdefault(event.kind, []).append(event.line)
    if not lines:
        yield nothing_logged(kernel_log, "nothing that matters", 86400, " in 24 h")
    for kind, found in lines.items():
        bad, what, action = _FAULTS[kind]
        count = f" {len(found)} times" if len(found) > 1 else ""
        yield bad(
            f"{what}{count}: {shorten(found[-1], 120, placeholder=' ...')}",
            len(found),
            0,
            action=action,
        )
