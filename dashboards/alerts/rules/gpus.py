"""Rules about GPUs: idle among busy ones, slowed down, hot, broken, gone, full."""

from __future__ import annotations

import math
from collections.abc import Iterable

from checks.finding import Verdict
from checks.idle import working_power_w
from checks.reference.xid_codes import grade
from dashboards.alerts.rules.base import Drawing, RuleContext, gpu_known, gpu_part, node_known, read
from dashboards.model import units
from dashboards.model.alert_book import FAIL, WARN, Breach, Rule, Unit
from dashboards.model.samples import NodeSample, Xid


def _in_use(context: RuleContext) -> tuple[Drawing, float]:
    """GPUs with a process on them, and the median power; that is NaN while they are not busy.

    A GPU without memory in use is idle by right; a rank that hangs keeps its memory.
    """
    if context.in_use is None:
        context.in_use = _find_in_use(context)
    return context.in_use


def _find_in_use(context: RuleContext) -> tuple[Drawing, float]:
    limits = context.limits
    part = [
        (name, gpu, gpu.power_w)
        for name, gpu in context.gpus
        if gpu.power_w is not None
        and not gpu.error
        and (gpu.memory_used_bytes is None or gpu.memory_used_bytes > limits.used_bytes)
    ]
    run = context.run
    if run is not None and run.planned and not run.ended:
        planned = frozenset(run.planned)
        part = [one for one in part if one[0] in planned]
    middle = working_power_w(
        [power for _, _, power in part],
        part[0][1].power_limit_w if part else None,
        fewest=limits.idle_peers,
        share=limits.busy_share,
        else_w=limits.busy_w,
    )
    return part, math.nan if middle is None else middle


def idle(context: RuleContext) -> Iterable[Breach]:
    """A GPU that draws less than half of what the others draw, while the fleet is busy.

    Of the run's nodes any GPU; where no run is known one that computed with the others before: a
    notebook that holds memory is no rank.
    """
    part, middle = _in_use(context)
    run = context.run
    is_ours = run is not None and bool(run.planned) and not run.ended
    limit_w = context.limits.idle_share * middle
    for name, gpu, power in part:
        if power < limit_w:
            unit = (name, gpu_part(gpu.index))
            if is_ours or unit in context.memory.were_busy:
                yield Breach(unit, f"{power:.0f} W, the others {middle:.0f} W")


def newly_busy(context: RuleContext) -> set[Unit]:
    """GPUs that compute with the others now and were not known to do so."""
    part, middle = _in_use(context)
    limit_w, known = context.limits.idle_share * middle, context.memory.were_busy
    return {
        unit
        for name, gpu, power in part
        if power >= limit_w and (unit := (name, gpu_part(gpu.index))) not in known
    }


def newly_free(context: RuleContext) -> set[Unit]:
    """GPUs that computed with the others and that nobody uses any more."""
    least, known = context.limits.used_bytes, context.memory.were_busy
    return {
        unit
        for name, gpu in context.gpus
        if gpu.memory_used_bytes is not None
        and gpu.memory_used_bytes <= least
        and (unit := (name, gpu_part(gpu.index))) in known
    }


# What the driver calls it: hardware slowdown and power brake come from the board, the rest is warm.
_HARD = ("hw", "hardware", "brake")
_USUAL = ("idle", "power cap", "applications clocks", "sync boost", "display")


def throttle(context: RuleContext) -> Iterable[Breach]:
    """Clocks held down for heat or by the power supply; one such GPU slows the whole run."""
    for name, gpu in context.gpus:
        words = gpu.throttle
        if not words:
            continue
        bad = [word for word in words.split(", ") if not word.lower().startswith(_USUAL)]
        if not bad:
            continue
        text = f"{', '.join(bad)}: {gpu.sm_mhz:,.0f} MHz" if gpu.sm_mhz else ", ".join(bad)
        text += f", {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
        hard = any(mark in word.lower() for word in bad for mark in _HARD)
        yield Breach((name, gpu_part(gpu.index)), text, FAIL if hard else WARN)


def hot(context: RuleContext) -> Iterable[Breach]:
    limit = context.limits.hot_c
    for name, gpu in context.gpus:
        if gpu.temperature_c is not None and gpu.temperature_c >= limit:
            yield Breach(
                (name, gpu_part(gpu.index)), f"{gpu.temperature_c:.0f} °C (limit {limit:.0f})"
            )


def ecc(context: RuleContext) -> Iterable[Breach]:
    for name, gpu in context.gpus:
        if gpu.ecc_errors:
            count = f"{gpu.ecc_errors} uncorrected memory error{'s' * (gpu.ecc_errors != 1)}"
            yield Breach((name, gpu_part(gpu.index)), count + " since the driver was loaded")


def xid(context: RuleContext) -> Iterable[Breach]:
    """The worst Xid of the last hour on each GPU; clean-up after another one is left out."""
    for name, node in context.live.items():
        worst: dict[Unit, tuple[int, Xid, str]] = {}
        for line in node.xids or ():
            age_s = context.now_s - line.at_s
            found = grade(line.code, line.text)
            if found.verdict is Verdict.PASS or age_s > context.limits.recent_s:
                continue
            unit = (name, gpu_part(line.gpu) if line.gpu is not None else "")
            rank = 2 if found.verdict is Verdict.FAIL else 1
            if unit not in worst or rank >= worst[unit][0]:
                worst[unit] = (rank, line, found.meaning)
        for unit, (rank, line, meaning) in worst.items():
            yield Breach(unit, f"Xid {line.code}: {meaning}", FAIL if rank == 2 else WARN)


def missing(context: RuleContext) -> Iterable[Breach]:
    """A GPU that the node had and does not show any more, or that refuses to answer."""
    for name, node in context.live.items():
        if node.gpus is None:
            continue
        there = {gpu.index: gpu.error for gpu in node.gpus}
        for index in range(context.state.nodes[name].gpus_seen):
            error = there.get(index, "not there any more")
            if error:
                yield Breach((name, gpu_part(index)), error)


def _missing_known(context: RuleContext, unit: Unit) -> bool:
    node = context.live.get(unit[0])
    return node is not None and node.gpus is not None


def unread(context: RuleContext) -> Iterable[Breach]:
    """The node answers, its driver does not: nothing is known of its GPUs."""
    for name, node in context.live.items():
        if node.gpus is None:
            yield Breach((name, ""), node.gpu_error or "nothing is known of its GPUs")


def log_unread(context: RuleContext) -> Iterable[Breach]:
    """Without the kernel's log a node with GPUs may have any Xid: that is unknown, not good."""
    for name, node in context.live.items():
        if node.gpus and node.log_error:
            yield Breach((name, ""), node.log_error)


def memory(context: RuleContext) -> Iterable[Breach]:
    limit = context.limits.gpu_memory_share
    for name, gpu in context.gpus:
        if gpu.memory_used_bytes and gpu.memory_used_bytes >= limit * read(gpu.memory_total_bytes):
            used, total = units.gib(gpu.memory_used_bytes), units.gib(gpu.memory_total_bytes)
            yield Breach((name, gpu_part(gpu.index)), f"{used} of {total} GiB in use")


def nvlink(context: RuleContext) -> Iterable[Breach]:
    for name, gpu in context.gpus:
        if gpu.nvlinks is not None and gpu.nvlinks[0] < gpu.nvlinks[1]:
            active, present = gpu.nvlinks
            yield Breach((name, gpu_part(gpu.index)), f"{active} of {present} NVLinks active")


def _xid_known(context: RuleContext, unit: Unit) -> bool:
    node: NodeSample | None = context.live.get(unit[0])
    return node is not None and node.xids is not None


RULES = (
    Rule(
        "gpu.xid", FAIL, "The driver reported an error of a GPU (Xid); its number says what the machine needs.",
        xid, _xid_known, 0, 0, "clusterctl preflight {hosts} {nodes} --check gpu",
        "any of the last hour; fail or warn by checks/reference/xid_codes.py",
    ),
    Rule(
        "gpu.missing", FAIL, "A GPU that was there is gone or refuses to answer; its rank is lost.",
        missing, _missing_known, 5, 10, "clusterctl preflight {hosts} {nodes} --check gpu",
        "fewer than the node has shown, or an error in place of a reading", suppressed_by=("gpu.xid",),
    ),
    Rule(
        "gpu.ecc", FAIL, "Memory of a GPU lost data; a reset maps the row out, more of it is a service case.",
        ecc, gpu_known("ecc_errors"), 3, 30, "clusterctl preflight {hosts} {nodes} --check gpu",
        "any uncorrected error since the driver was loaded", suppressed_by=("gpu.xid",),
    ),
    Rule(
        "gpu.throttle", FAIL, "Clocks are held down by heat or the power supply: all ranks wait for this one.",
        throttle, gpu_known("throttle"), 10, 60, "clusterctl preflight {hosts} {nodes} --check gpu",
        "hardware slowdown, hardware thermal, power brake: fail; software thermal: warn",
    ),
    Rule(
        "gpu.hot", WARN, "About to slow itself down.",
        hot, gpu_known("temperature_c"), 30, 60, "clusterctl gpus {hosts} {nodes}",
        "87 °C", suppressed_by=("gpu.throttle",),
    ),
    Rule(
        "gpu.idle", FAIL, "One GPU rests while the others compute or wait: its rank hangs, or its data does not come.",
        idle, gpu_known("power_w"), 20, 15, "clusterctl dump-stacks {hosts}",
        "under half of the median power of GPUs in use, while that is over 35 % of the limit; where no run is known, and it computed before",
        suppressed_by=("gpu.throttle", "gpu.xid"), at_once=False,
    ),
    Rule(
        "gpu.nvlink", FAIL, "Traffic between the GPUs of a node goes over fewer links, or over PCIe.",
        nvlink, gpu_known("nvlinks"), 10, 30, "clusterctl preflight {hosts} {nodes} --check gpu",
        "fewer links active than present", suppressed_by=("gpu.xid",),
    ),
    Rule(
        "gpu.memory", WARN, "The next larger bucket ends in out of memory.",
        memory, gpu_known("memory"), 60, 60, "clusterctl gpus {hosts} {nodes}",
        "98.5 % in use (torch keeps what it once had: 95 % are usual)",
    ),
    Rule(
        "gpu.unread", WARN, "The driver does not answer: what its GPUs do is not known.",
        unread, node_known, 30, 10, "clusterctl preflight {hosts} {nodes} --check gpu",
        "no answer of NVML or nvidia-smi", could_not_ask=True,
    ),
    Rule(
        "gpu.log_unread", WARN, "The kernel's log cannot be read: whether its GPUs have an Xid is not known.",
        log_unread, node_known, 30, 10, "clusterctl run {remote} {hosts} {nodes}",
        "no line of /dev/kmsg or the journal; root, or the groups adm or systemd-journal, may read it",
        could_not_ask=True, remote="id -nG",
    ),
)  # fmt: skip
