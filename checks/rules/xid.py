"""GPU errors in the kernel's log."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import GpuFacts, KernelEvent, KernelLog, Unknown
from checks.finding import Action, Finding, Verdict, fail, passed, unknown, warn
from checks.profile import Profile
from checks.reference.xid_codes import grade
from checks.registry import check
from checks.rules.gpu import duration, no_gpu


def nothing_logged(log: KernelLog, good: str, window_s: float | None = None) -> Finding:
    """The finding of a log without a bad line; before its oldest line nothing is known.

    The kernel's buffer keeps the newest lines only. `window_s` is how far back the check must see;
    None: to the boot.
    """
    if log.reaches_s is None:
        return passed(good)
    if isinstance(log.reaches_s, Unknown):
        return unknown(f"{good}, but how far the kernel's log reaches back: {log.reaches_s}")
    reach = f"in the {duration(max(0.0, log.reaches_s))} that the kernel's log reaches back"
    if window_s is not None and log.reaches_s >= window_s:
        return passed(f"{good} {reach}")
    return unknown(f"{good} {reach}; what was before is not known", fix="journalctl -k -b")


@check("gpu.xid", advisory=True)
def xid(kernel_log: KernelLog, gpus: GpuFacts, limits: Profile) -> Iterator[Finding]:
    """The driver has logged no error that a run would meet again.

    Meta's 54 days with 16,384 GPUs: 148 of 419 unexpected interruptions were faulty GPUs.

    Bad: by number: WARN for user code and contained errors, FAIL for what wants a reset, reboot or
        service; older than 24 h only WARN unless the GPU still asks for recovery
    How: lines `NVRM: Xid (PCI:…): N` since boot, also with a MIG instance in them
    Fix: what the number wants: restart the program, reset the GPU, reboot, service
    """
    if (without := no_gpu(gpus)) and not kernel_log.events:
        yield without
        return
    seen: dict[tuple[str, int], list[KernelEvent]] = {}
    for event in kernel_log.events:
        if event.kind == "xid" and event.xid is not None:
            seen.setdefault((event.subject, event.xid), []).append(event)
    bad = False
    for (gpu, number), events in seen.items():
        event = events[-1]
        found = grade(number, event.line)
        if found.verdict is Verdict.PASS:
            continue
        bad = True
        count = f", {len(events)} times" if len(events) > 1 else ""
        age = "" if isinstance(event.age_s, Unknown) else f", {duration(max(0.0, event.age_s))} ago"
        is_past = _is_past(event, gpus, limits)
        yield (fail if found.verdict is Verdict.FAIL and not is_past else warn)(
            f"Xid {number} on GPU {gpu}: {found.meaning}{count}{age}",
            number,
            fix=_fix(found.action, gpu),
            action=found.action,
        )
    if not bad:
        notes = ", ".join(sorted({str(number) for _, number in seen}))
        good = f"no Xid that matters ({notes} seen)" if notes else "no Xid"
        yield nothing_logged(kernel_log, good, limits.xid_fresh_hours * 3600)


def _is_past(event: KernelEvent, gpus: GpuFacts, limits: Profile) -> bool:
    """A day-old failure that no driver asks about any more, which is a warning."""
    healths = [gpu.health for gpu in gpus.gpus if not isinstance(gpu.health, Unknown)]
    asks = [one.recovery_action for one in healths if isinstance(one.recovery_action, str)]
    if isinstance(event.age_s, Unknown) or any(action != "None" for action in asks):
        return False
    return event.age_s > limits.xid_fresh_hours * 3600


def _fix(action: Action, gpu: str) -> str:
    return {
        Action.RESTART_APP: "check the program that ran then; dmesg | grep -i xid",
        Action.RESET_GPU: f"sudo nvidia-smi --gpu-reset -i {gpu}.0  (idle GPU), else reboot",
        Action.REBOOT: "power cycle the node; service if it comes back",
        Action.SERVICE: "service: the card or its power",
    }.get(action, "dmesg | grep -i xid")


@check("gpu.fell_off", advisory=True)
def fell_off(kernel_log: KernelLog, gpus: GpuFacts) -> Finding:
    """No GPU has fallen off the bus.

    Bad: FAIL on the words, also without a number
    How: `fallen off the bus` in the kernel's log, which may be three lines without any Xid
    Fix: power cycle the node; if it comes back, service
    """
    lost = [one for one in kernel_log.events if one.kind in ("fell-off-bus", "probe-failed")]
    if not lost:
        return no_gpu(gpus) or nothing_logged(kernel_log, "no GPU fell off the bus")
    names = sorted({one.subject for one in lost if one.subject})
    which = f"GPU {', '.join(names)} has" if names else "a GPU has"
    return fail(f"{which} fallen off the bus", len(names) or 1, 0, action=Action.REBOOT)


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
