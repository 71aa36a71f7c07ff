"""Rules about nodes: silent, clock, links, disks, memory."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable

from dashboards.alerts.rules.base import (
    UNKNOWN,
    UP,
    RuleContext,
    always_known,
    is_down,
    is_up,
    node_has,
    part_has,
)
from dashboards.model import units
from dashboards.model.alert_book import FAIL, WARN, Breach, Rule, Unit
from dashboards.model.samples import Disk

HEAD = "this machine"
NOT_OURS = frozenset(["Permission denied", "Operation not permitted"])  # another user's mount


def down(context: RuleContext) -> Iterable[Breach]:
    """Nodes that give no readings: unreachable, silent, or not yet connected."""
    limits, state = context.limits, context.state
    if not state.watches:
        return
    # Stale after three intervals, seen at the next tick: an alert 10 s after the last reading.
    after_s = limits.silent_s - 4 * state.interval_s
    for name, node in state.nodes.items():
        if name in context.live:
            continue
        if node.down is None and node.sample is None:
            yield Breach((name, ""), "no answer yet", after_s=limits.waiting_s)
        else:
            error = node.down and f"{node.down.phase}: {node.down.message}"
            yield Breach((name, ""), error or "connected, but no readings", after_s=after_s)


def clock_step(context: RuleContext) -> Iterable[Breach]:
    """Wall time moved against the time since boot: timers, leases and the order of logs break."""
    limits = context.limits
    for name, node in context.live.items():
        step_s = node.clock_step_s
        if step_s is not None and abs(step_s) > limits.step_warn_s:
            severity = FAIL if abs(step_s) > limits.step_fail_s else WARN
            yield Breach((name, ""), f"jumped by {units.offset(step_s)}", severity)


def clock_offset(context: RuleContext) -> Iterable[Breach]:
    """Against the median of all, because the head's own clock may be the one that is wrong."""
    known = [
        (name, node.clock_offset_s, node.clock_bound_s or 0.0)
        for name, node in context.live.items()
        if node.clock_offset_s is not None
    ]
    if not known:
        return
    warn_s, fail_s = context.limits.clock_warn_s, context.limits.clock_fail_s
    whom = "the others" if len(known) > 2 else HEAD
    middle = statistics.median(offset for _, offset, _ in known) if len(known) > 2 else 0.0
    bound = statistics.median(bound for _, _, bound in known)
    for name, offset, error in known:
        away = abs(offset - middle) - error
        if away > warn_s:
            text = (
                f"{units.offset(offset - middle)} against {whom} (limit {units.measured(warn_s)})"
            )
            yield Breach((name, ""), text, FAIL if away > fail_s else WARN)
    away = abs(middle) - bound
    if away > warn_s:
        text = f"{units.offset(-middle)} against the nodes"
        yield Breach(("", HEAD), text, FAIL if away > fail_s else WARN)


def _offset_known(context: RuleContext, unit: Unit) -> bool:
    names = context.live if unit[1] == HEAD else [unit[0]]
    return any(node_has("clock_offset_s")(context, (name, "")) for name in names)


def link_down(context: RuleContext) -> Iterable[Breach]:
    """A port that was up before, is up on most other nodes, or was lost and came back."""
    earlier = context.memory
    ups: Counter[str] | None = None
    for name, node in context.live.items():
        for link in node.links or ():
            unit = (name, link.name)
            if link.state not in UP and is_down(link):
                if ups is None:
                    links = (one for other in context.live.values() for one in other.links or ())
                    ups = Counter(one.name for one in links if is_up(one))
                if unit in earlier.were_up:
                    yield Breach(unit, f"{link.state}, it was up")
                elif ups[link.name] > max(2, len(context.live) / 2):
                    yield Breach(unit, f"{link.state}, up on {ups[link.name]} other nodes")
            elif link.downs and link.downs > earlier.links.get(unit, link.downs):
                times = link.downs - earlier.links[unit]
                text = f"was lost {times} time{'s' * (times != 1)}, is {link.state} again"
                yield Breach(unit, text, WARN, after_s=0, clear_s=600)


def _link_known(context: RuleContext, unit: Unit) -> bool:
    link = context.part(unit, "links")
    return link is not None and link.state.lower() not in UNKNOWN


def link_errors(context: RuleContext) -> Iterable[Breach]:
    limit = context.limits.link_errors_min
    for name, node in context.live.items():
        for link in node.links or ():
            if link.errors_min is not None and link.errors_min >= limit:
                yield Breach((name, link.name), f"{link.errors_min:,.0f} errors a minute")


def disk(context: RuleContext) -> Iterable[Breach]:
    """Full, or full soon at the pace of the last minutes; or a mount that hangs or gives an error.

    One that this user may not read is unknown, neither good nor bad.
    """
    limits = context.limits
    for name, node in context.live.items():
        for one in node.disks or ():
            unit = (name, one.path)
            if one.full is None or one.used_bytes is None or one.total_bytes is None:
                if one.hangs:
                    yield Breach(unit, "does not answer: a mount that hangs", FAIL)
                elif one.error and one.error not in NOT_OURS:
                    yield Breach(unit, f"could not be read: {one.error}", WARN)
                continue
            left = one.total_bytes - one.used_bytes
            soon_s = time_to_full_s(context, unit, one)
            text = f"{100 * one.full:.0f} % full, {units.size(left)} left"
            if soon_s is not None and soon_s < limits.disk_soon_s:
                text += f", full in {units.duration(soon_s)} at this pace"
                yield Breach(unit, text, FAIL if soon_s < limits.disk_soon_s / 4 else WARN)
            elif one.full >= limits.disk_fail and left < limits.disk_left_bytes:
                yield Breach(unit, text, FAIL)
            elif one.full >= limits.disk_warn:
                yield Breach(unit, text, WARN)


def time_to_full_s(context: RuleContext, unit: Unit, one: Disk) -> float | None:
    """Seconds; None when it does not fill or too little is known of its past."""
    past = context.memory.disks.get(unit)
    if not past or one.used_bytes is None or one.total_bytes is None:
        return None
    at_s, used = past[0]
    seconds = context.now_s - at_s
    if seconds < context.limits.disk_least_s or one.used_bytes <= used:
        return None
    return (one.total_bytes - one.used_bytes) * seconds / (one.used_bytes - used)


def _disk_known(context: RuleContext, unit: Unit) -> bool:
    """Also where it is not mounted any more: nothing is left that could hang or fill up."""
    node = context.live.get(unit[0])
    if node is None or node.disks is None:
        return False
    one = context.part(unit, "disks")
    return one is None or one.full is not None


def memory(context: RuleContext) -> Iterable[Breach]:
    limit = context.limits.memory_share
    for name, node in context.live.items():
        used, total = node.memory_used_bytes, node.memory_total_bytes
        if used and total and used >= limit * total:
            yield Breach((name, ""), f"{units.size(used)} of {units.size(total)} in use")


RULES = (
    Rule("node.down", FAIL, "A node gives no readings: what it does is not known.",
         down, always_known, 6, 3, "clusterctl run {remote} {hosts} {nodes} -vv",
         "10 s after its last reading; 30 s when it never gave one", could_not_ask=True, remote="uptime"),
    Rule("node.memory", WARN, "The kernel starts to kill processes soon; loader workers grow with the clips.",
         memory, node_has("memory"), 30, 60, "clusterctl run {remote} {hosts} {nodes}", "95 % in use", remote="ps aux --sort=-rss | head -15"),
    Rule("clock.step", FAIL, "Wall time jumped: a rendezvous gives up, and one such node ended runs every half hour.",
         clock_step, node_has("clock_step_s"), 0, 600, "clusterctl clock {hosts}",
         "wall time against boot time between two readings: 10 ms warn, 100 ms fail; shown for 10 min"),
    Rule("clock.offset", FAIL, "A clock differs from the others: time-outs and the order of logs depend on it.",
         clock_offset, _offset_known, 30, 60, "clusterctl clock {hosts}",
         "10 ms beyond the error bound warn, 100 ms fail, against the median", suppressed_by=("clock.step",)),
    Rule("link.down", FAIL, "A port of the network between the nodes is lost: collectives hang or crawl.",
         link_down, _link_known, 3, 30, "clusterctl fabric {hosts}",
         "down, and it was up before or is up on most nodes; a loss that healed: warn"),
    Rule("link.errors", WARN, "A cable or a connector that goes bad: it costs bandwidth before it fails.",
         link_errors, part_has("links", "errors_min"), 10, 120, "clusterctl fabric {hosts} {nodes} -v",
         "1 error a minute", suppressed_by=("link.down",)),
    Rule("disk.full", FAIL, "The next checkpoint does not fit, or a mount hangs with each process that touches it.",
         disk, _disk_known, 15, 60, "clusterctl run {remote} {hosts} {nodes}",
         "full in 2 h at the pace of the last 20 min, 90 %, an error: warn; in 30 min, 95 % and under 10 GiB, no answer: fail",
         remote="du -xh --max-depth=1 {part} | sort -h | tail"),
)  # fmt: skip
