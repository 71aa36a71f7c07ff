"""Rules about GPUs: idle among busy ones, slowed down, hot, broken, gone, full."""

from __future__ import annotations

from collections.abc import Iterable

from checks.finding import Verdict
from checks.reference.xid_codes import grade
from dashboards.alerts.rules.base import RuleContext, gpu_part, node_has, node_known, part_has
from dashboards.model import units
from dashboards.model.alert_book import FAIL, WARN, Breach, Rule, Unit


def idle(context: RuleContext) -> Iterable[Breach]:
    """A GPU that draws less than half of what the others draw, while the fleet is busy.

    Of the run's nodes any GPU; where no run is known one that computed with the others before: a
    notebook that holds memory is no rank.
    """
    part, middle = context.in_use
    limit_w = context.limits.idle_share * middle
    for unit, _, power in part:
        if power < limit_w and (context.planned or unit in context.memory.were_busy):
            yield Breach(unit, f"{power:.0f} W, the others {middle:.0f} W")


# In the driver's words: hardware slowdown and power brake come from the board, the rest is heat.
_HARD = ("hw", "hardware", "brake")
_USUAL = ("idle", "power cap", "applications clocks", "sync boost", "display")


def throttle(context: RuleContext) -> Iterable[Breach]:
    """Clocks held down for heat or by the power supply; one such GPU slows the whole run."""
    for unit, gpu in context.gpus:
        if not gpu.throttle:
            continue
        reasons = gpu.throttle.split(", ")
        bad = [reason for reason in reasons if not reason.lower().startswith(_USUAL)]
        if bad:
            text = ", ".join(bad)
            text += f": {gpu.sm_mhz:,.0f} MHz" if gpu.sm_mhz else ""
            text += f", {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
            is_hard = any(mark in reason.lower() for reason in bad for mark in _HARD)
            yield Breach(unit, text, FAIL if is_hard else WARN)


def hot(context: RuleContext) -> Iterable[Breach]:
    limit = context.limits.hot_c
    for unit, gpu in context.gpus:
        if gpu.temperature_c is not None and gpu.temperature_c >= limit:
            yield Breach(unit, f"{gpu.temperature_c:.0f} °C (limit {limit:.0f})")


def ecc(context: RuleContext) -> Iterable[Breach]:
    for unit, gpu in context.gpus:
        if gpu.ecc_errors:
            count = f"{gpu.ecc_errors} uncorrected memory error{'s' * (gpu.ecc_errors != 1)}"
            yield Breach(unit, count + " since the driver was loaded")


def xid(context: RuleContext) -> Iterable[Breach]:
    """The worst Xid of the last hour on each GPU; clean-up after another one is left out."""
    for name, node in context.live.items():
        worst: dict[Unit, Breach] = {}
        for line in node.xids or ():
            found = grade(line.code, line.text)
            if found.verdict is Verdict.PASS or context.now_s - line.at_s > context.limits.recent_s:
                continue
            unit = (name, gpu_part(line.gpu) if line.gpu is not None else "")
            severity = FAIL if found.verdict is Verdict.FAIL else WARN
            if severity == FAIL or unit not in worst or worst[unit].severity == WARN:
                worst[unit] = Breach(unit, f"Xid {line.code}: {found.meaning}", severity)
        yield from worst.values()


def missing(context: RuleContext) -> Iterable[Breach]:
    """A GPU that the node had and does not show any more, or that refuses to answer."""
    for name, node in context.live.items():
        if node.gpus is None:
            continue
        errors = {gpu.index: gpu.error for gpu in node.gpus}
        for index in range(context.state.nodes[name].gpus_seen):
            error = errors.get(index, "not there any more")
            if error:
                yield Breach((name, gpu_part(index)), error)


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
    for unit, gpu in context.gpus:
        used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
        if used and total and used >= limit * total:
            yield Breach(unit, f"{units.size(used)} of {units.size(total)} in use")


def nvlink(context: RuleContext) -> Iterable[Breach]:
    equals = [gpu for _, gpu in context.gpus]
    for unit, gpu in context.gpus:
        if gpu.nvlinks is not None and gpu.lacks_nvlinks(equals):
            active, present = gpu.nvlinks
            yield Breach(unit, f"{active} of {present} NVLinks active")


_PREFLIGHT = "clusterctl preflight {hosts} {nodes} --check gpu"
RULES = (
    Rule("gpu.xid", FAIL, "The driver reported an error of a GPU (Xid); its number says what the machine needs.",
         xid, node_has("xids"), 0, 0, _PREFLIGHT, "any of the last hour; fail or warn by checks/reference/xid_codes.py"),
    Rule("gpu.missing", FAIL, "A GPU that was there is gone or refuses to answer; its rank is lost.",
         missing, node_has("gpus"), 5, 10, _PREFLIGHT, "fewer than the node has shown, or an error in place of a reading",
         suppressed_by=("gpu.xid",)),
    Rule("gpu.ecc", FAIL, "Memory of a GPU lost data; a reset maps the row out, more of it is a service case.",
         ecc, part_has("gpus", "ecc_errors"), 3, 30, _PREFLIGHT, "any uncorrected error since the driver was loaded",
         suppressed_by=("gpu.xid",)),
    Rule("gpu.throttle", FAIL, "Clocks are held down by heat or the power supply: all ranks wait for this one.",
         throttle, part_has("gpus", "throttle"), 10, 60, _PREFLIGHT,
         "hardware slowdown, hardware thermal, power brake: fail; software thermal: warn"),
    Rule("gpu.hot", WARN, "The GPU is about to slow itself down.",
         hot, part_has("gpus", "temperature_c"), 30, 60, "clusterctl gpus {hosts} {nodes}", "87 °C", suppressed_by=("gpu.throttle",)),
    Rule("gpu.idle", FAIL, "One GPU is idle while the others compute or wait: its rank hangs, or its data does not come.",
         idle, part_has("gpus", "power_w"), 20, 15, "clusterctl dump-stacks {hosts}",
         "under half of the median power of GPUs in use, while that is over 35 % of the limit; where no run is known, and it computed before",
         suppressed_by=("gpu.throttle", "gpu.xid"), at_once=False),
    Rule("gpu.nvlink", FAIL, "Traffic between the GPUs of a node goes over fewer links, or over PCIe.",
         nvlink, part_has("gpus", "nvlinks"), 10, 30, _PREFLIGHT, "fewer links active than the best GPU of the model; on a board (SXM, HGX) than are present", suppressed_by=("gpu.xid",)),
    Rule("gpu.memory", WARN, "The next larger bucket ends in out of memory.",
         memory, part_has("gpus", "memory"), 60, 60, "clusterctl gpus {hosts} {nodes}",
         "98.5 % in use (torch keeps what it once had: 95 % are usual)"),
    Rule("gpu.unread", WARN, "The driver does not answer: what its GPUs do is not known.",
         unread, node_known, 30, 10, _PREFLIGHT, "no answer of NVML or nvidia-smi", could_not_ask=True),
    Rule("gpu.log_unread", WARN, "The kernel's log cannot be read: whether its GPUs have an Xid is not known.",
         log_unread, node_known, 30, 10, "clusterctl run {remote} {hosts} {nodes}",
         "no line of /dev/kmsg or the journal; root, or the groups adm or systemd-journal, may read it",
         could_not_ask=True, remote="id -nG"),
)  # fmt: skip
