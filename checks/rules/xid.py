"""GPU errors in the kernel's log."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import GpuFacts, KernelEvent, KernelLog, NodeFacts, Unknown
from checks.finding import Action, Finding, Verdict, fail, passed, unknown, warn
from checks.profile import Profile
from checks.reference.xid_codes import Grade, grade
from checks.rules.gpu import duration, no_gpu
from checks.runner import check


def nothing_logged(log: KernelLog, good: str, window_s: float | None = None) -> Finding:
    """What a log without a bad line says: nothing about the time before its oldest line.

    The kernel's buffer keeps the newest lines only. `window_s` is how far back the check must see;
    None: to the boot.
    """
    if log.reaches_s is None:
        return passed(good)
    if isinstance(log.reaches_s, Unknown):
        return unknown(f"{good}, but how far the kernel's log reaches back: {log.reaches_s.reason}")
    reach = f"in the {duration(max(0.0, log.reaches_s))} that the kernel's log reaches back"
    if window_s is not None and log.reaches_s >= window_s:
        return passed(f"{good} {reach}")
    return unknown(f"{good} {reach}; what was before is not known", fix="journalctl -k -b")


@check(
    "gpu.xid",
    needs=("kernel_log",),
    advisory=True,
    bad=(
        "by number: WARN for user code and contained errors, FAIL for what wants a reset, "
        "reboot or "
        "service; older than 24 h only WARN unless the GPU still asks for recovery"
    ),
    how="lines `NVRM: Xid (PCI:…): N` since boot, also with a MIG instance in them",
    fix="what the number wants: restart the program, reset the GPU, reboot, service",
)
def xid(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """The driver has logged no error that a run would meet again.

    Meta's 54 days with 16,384 GPUs: 148 of 419 unexpected interruptions were faulty GPUs.
    """
    assert isinstance(node.kernel_log, KernelLog)
    if (without := no_gpu(node.gpus)) and not node.kernel_log.events:
        yield without
        return
    worst: dict[tuple[str, int], tuple[Verdict, Grade, KernelEvent, int]] = {}
    for event in node.kernel_log.events:
        if event.kind != "xid" or event.xid is None:
            continue
        found = grade(event.xid, event.line)
        verdict = _aged(found.verdict, event, node.gpus, limits)
        before = worst.get((event.subject, event.xid))
        worst[event.subject, event.xid] = (verdict, found, event, (before[3] if before else 0) + 1)
    said = False
    for (gpu, number), (verdict, found, event, times) in worst.items():
        if verdict is Verdict.PASS:
            continue
        said = True
        count = f", {times} times" if times > 1 else ""
        age = "" if isinstance(event.age_s, Unknown) else f", {duration(max(0.0, event.age_s))} ago"
        yield (fail if verdict is Verdict.FAIL else warn)(
            f"Xid {number} on GPU {gpu}: {found.meaning}{count}{age}",
            value=str(number),
            fix=_fix(found.action, gpu),
            action=found.action,
        )
    if not said:
        notes = ", ".join(sorted({str(number) for _, number in worst}))
        yield nothing_logged(
            node.kernel_log,
            f"no Xid that matters ({notes} seen)" if notes else "no Xid",
            limits.xid_fresh_hours * 3600,
        )


def _aged(verdict: Verdict, event: KernelEvent, gpus: GpuFacts, limits: Profile) -> Verdict:
    """A day-old failure that the driver no longer asks about is a warning."""
    if verdict is not Verdict.FAIL or isinstance(event.age_s, Unknown):
        return verdict
    asks = any(
        not isinstance(gpu.health, Unknown)
        and gpu.health.recovery_action not in ("None",)
        and isinstance(gpu.health.recovery_action, str)
        for gpu in gpus.gpus
    )
    is_old = event.age_s > limits.xid_fresh_hours * 3600
    return Verdict.WARN if is_old and not asks else verdict


def _fix(action: Action, gpu: str) -> str:
    return {
        Action.RESTART_APP: "look at the program that ran then; dmesg | grep -i xid",
        Action.RESET_GPU: f"sudo nvidia-smi --gpu-reset -i {gpu}.0  (idle GPU), else reboot",
        Action.REBOOT: "power cycle the node; service if it comes back",
        Action.SERVICE: "service: the card or its power",
    }.get(action, "dmesg | grep -i xid")


@check(
    "gpu.fell_off",
    needs=("kernel_log",),
    advisory=True,
    bad="FAIL on the words, also without a number",
    how=(
        "`fallen off the bus` in the kernel's log, which may stand over three lines without any Xid"
    ),
    fix="power cycle; if it comes back, service",
)
def fell_off(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """No GPU has fallen off the bus."""
    assert isinstance(node.kernel_log, KernelLog)
    lost = [one for one in node.kernel_log.events if one.kind in ("fell-off-bus", "probe-failed")]
    if not lost:
        yield no_gpu(node.gpus) or nothing_logged(node.kernel_log, "no GPU fell off the bus")
        return
    names = sorted({one.subject for one in lost if one.subject})
    which = f"GPU {', '.join(names)} has" if names else "a GPU has"
    yield fail(
        f"{which} fallen off the bus",
        value=str(len(names) or 1),
        expected="0",
        fix="power cycle the node; if it comes back, service",
        action=Action.REBOOT,
    )


@check(
    "gpu.sxid",
    needs=("kernel_log",),
    advisory=True,
    bad="WARN on a non-fatal NVSwitch error, FAIL on a fatal one",
    how="SXid lines of the kernel's log",
    fix="reset all GPUs or reboot; service if it comes back",
)
def sxid(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The NVSwitches have logged no error."""
    assert isinstance(node.kernel_log, KernelLog)
    found = [one for one in node.kernel_log.events if one.kind.startswith("sxid")]
    fatal = [one for one in found if one.kind == "sxid-fatal"]
    if not found:
        yield no_gpu(node.gpus) or nothing_logged(node.kernel_log, "no SXid")
    else:
        one = (fatal or found)[-1]
        yield (fail if fatal else warn)(
            f"NVSwitch {one.subject}: SXid {one.xid}",
            value=str(one.xid),
            fix="reboot; service if it comes back",
            action=Action.REBOOT,
        )
