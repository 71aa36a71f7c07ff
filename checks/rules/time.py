"""Clocks: near each other, steered by one daemon, never stepping.

A peer's timers run on its own clock: a rendezvous store gives up too early, logs cannot be put in
order, and a run that was lost every 30 minutes had one node whose clock jumped. None of the tools
that we compared checks time.
"""

from __future__ import annotations

import functools
import ipaddress
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from checks import units
from checks.compare import compare, each_node, majority
from checks.facts import NOT_ASKED, Clock, Fleet, NodeFacts, Unknown, known
from checks.finding import Finding, Lacks, fail, need, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import Rule, check

POOL_SERVERS = 3  # of a list that looks like members of a pool


def _need_two(fleet: Fleet) -> None:
    if fleet.one_machine or len(fleet.reached) < 2:
        raise Lacks(skip("one machine: there is no second clock"))


def each_clock(judge: Callable[[NodeFacts, Clock, Profile], Finding]) -> Rule:
    """Turn a judge of one clock into a rule."""

    @functools.wraps(judge)
    def rule(fleet: Fleet, limits: Profile) -> Iterable[Finding]:
        _need_two(fleet)
        return each_node(fleet, "clock", lambda node, clock: judge(node, clock, limits))

    return rule


def middle_clock(offsets_s: Sequence[float]) -> float:
    """The middle of all clocks, the head's among them, in seconds against the head's.

    The majority of clocks decides which is wrong; it may be the head's. Of two middles the one
    nearer to the head: with one node on either side only the head can decide.
    """
    clocks = [0.0, *offsets_s]
    return min(statistics.median_low(clocks), statistics.median_high(clocks), key=abs)


@check("time.skew", "fleet", advisory=True)
def skew(fleet: Fleet, limits: Profile) -> Iterable[Finding]:
    """The nodes' clocks agree.

    Why: Timeouts of the rendezvous and of NCCL's watchdog, order of logs and file times need it.
    Bad: WARN over 10 ms outside the error bound, FAIL over 100 ms
    How: eight round trips over the open ssh channel, the shortest counts; error is half of it
    Fix: sudo chronyc makestep  (no job running)
    """
    _need_two(fleet)
    trips = known(clock.exchange for clock in known(node.clock for node in fleet.reached))
    reference_s = middle_clock([trip.offset_s for trip in trips])
    # The head's own clock is read without a round trip.
    reference_error_s = {trip.offset_s: trip.error_s for trip in trips}.get(reference_s, 0.0)

    def judge(_node: NodeFacts, clock: Clock) -> Finding:
        trip = need(clock.exchange)
        offset_s, error_s = trip.offset_s - reference_s, trip.error_s + reference_error_s
        sure_s, value = abs(offset_s) - error_s, f"{offset_s:+.4f}"
        text = f"{units.offset(offset_s)} from the middle of all clocks, ±{units.measured(error_s)}"
        if sure_s > limits.clock_skew_fail_s:
            return fail(text, value, limits.clock_skew_warn_s)
        if sure_s > limits.clock_skew_warn_s:
            fix = "chronyc tracking; chronyc sources"
            return warn(text, value, limits.clock_skew_warn_s, fix=fix)
        if error_s > limits.clock_skew_fail_s:
            took = units.measured(2 * trip.error_s)
            return unknown(f"a round trip of {took} is too long to measure the offset")
        return passed("within the limit", value)

    return each_node(fleet, "clock", judge)


def clock_moves(node: NodeFacts, clock: Clock) -> list[tuple[float, str]]:
    """(seconds, when) of the steps of a clock, 0 of one that was not stepped.

    Slewing moves wall and boot time alike; only a step moves their difference.
    """
    moves = (
        [] if isinstance(clock.moved_s, Unknown) else [(clock.moved_s, "during the measurement")]
    )
    before, now = node.last_look, clock.wall_minus_boot_s
    then = before.wall_minus_boot_s if before else NOT_ASKED
    if before and not isinstance(now, Unknown) and not isinstance(then, Unknown):
        moves.append((now - then, f"since the previous run, {units.ago(before.age_s)}"))
    return moves


@check("time.step", "fleet", advisory=True)
@each_clock
def step(node: NodeFacts, clock: Clock, limits: Profile) -> Finding:
    """No clock is stepped while it runs.

    Why: A store or a watchdog that waits on a wall clock sees hours pass in a moment, or none.
    Bad: WARN if the clock moved over 10 ms, FAIL if it moved back over 100 ms
    How: wall minus boot time at both ends of the check and in the last record; slewing keeps it
    Fix: sudo chronyc makestep  (no job running), and keep one time daemon
    """
    moves = clock_moves(node, clock)
    if not moves:
        return unknown("the time at the start of the check is not known")
    moved_s, when = max(moves, key=lambda move: abs(move[0]))
    if abs(moved_s) <= limits.clock_step_warn_s and moved_s >= -limits.clock_step_fail_s:
        return passed("no step")
    bad = fail if moved_s < -limits.clock_step_fail_s else warn
    return bad(f"the clock moved {units.offset(moved_s)} {when}", f"{moved_s:+.4f}", 0)


@check("time.log_ahead", "fleet", advisory=True)
@each_clock
def log_ahead(_node: NodeFacts, clock: Clock, limits: Profile) -> Finding:
    """No log was written in the future.

    Why: It proves that the clock was further ahead before: it was set back since.
    Bad: FAIL if a log file is more than 1 s ahead of now
    How: newest modification time of the 5000 nearest files under /var/log against the clock
    Fix: sudo chronyc makestep  (no job running), and keep one time daemon
    """
    ahead_s = clock.log_ahead_s
    if isinstance(ahead_s, Unknown):
        return (skip if ahead_s.is_absence else unknown)(f"no log to read: {ahead_s}")
    if ahead_s > limits.clock_log_ahead_fail_s:
        text = f"a log file is {units.duration(ahead_s)} ahead of now: the clock was set back"
        return fail(text, f"{ahead_s:.1f}", 0)
    return passed("no log from the future")


@check("time.daemons", "fleet", advisory=True)
@each_clock
def daemons(_node: NodeFacts, clock: Clock, _limits: Profile) -> Finding:
    """One daemon steers the clock, not two.

    Why: Two of them pull the clock to and fro, with sudden jumps.
    Bad: FAIL with two or more; not chronyd beside PTP where timemaster runs both, or where chronyd
        follows the PTP clock
    How: names of running processes: chronyd, ntpd, systemd-timesyncd, ptp4l with phc2sys
    Fix: sudo systemctl disable --now systemd-timesyncd  (keep one)
    """
    daemons = need(clock.daemons, lacks=unknown)
    # ptp4l and phc2sys work together and count as one.
    names = {"ptp" if name in ("ptp4l", "phc2sys", "timemaster") else name for name in daemons}
    if "timemaster" in daemons:  # it starts the others, and one of them steers
        names -= {"chronyd", "ntpd", "ntpsec"}
    elif names == {"ptp", "chronyd"} and "phc2sys" not in daemons and _has_refclock(clock):
        names = {"chronyd"}  # ptp4l steers the card's clock, which chronyd reads
    if len(names) > 1:
        return fail(f"{len(names)} time daemons run: {', '.join(sorted(daemons))}", len(names), 1)
    if names:
        return passed(f"{names.pop()} steers the clock")
    return passed("no second daemon; time.sync says whether there is a first")


def _has_refclock(clock: Clock) -> bool:
    """Whether chronyd follows a clock of the machine: `#` in its list, named by no address."""
    listed = () if isinstance(clock.sources, Unknown) else clock.sources
    return any(one.state == "selected" and not _is_address(one.address) for one in listed)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return False
    return True


def _are_of_pool(lists: Sequence[Sequence[str]]) -> bool:
    """Whether nodes follow members of a public pool, of which each gets others.

    No list is that of most nodes, and each has several servers of the internet, as the default
    configuration of a distribution gives them.
    """
    counts = Counter(tuple(sorted(one)) for one in lists)
    is_split = len(counts) > 1 and 2 * max(counts.values()) <= len(lists)
    are_public = all(len(one) >= POOL_SERVERS and all(map(_is_public, one)) for one in lists)
    return is_split and are_public


def _is_public(text: str) -> bool:
    return _is_address(text) and ipaddress.ip_address(text.split("%")[0]).is_global


@check("time.sources", "fleet", advisory=True)
def sources(fleet: Fleet, expected: str | None) -> Iterable[Finding]:
    """All nodes follow the same servers.

    Why: Half of a cluster on another server drifts with that server.
    Bad: WARN if the servers differ from the majority's; not among members of a public pool, of
        which the default configuration gives each node others
    How: addresses of chronyc sources or ntpq
    Fix: compare /etc/chrony/chrony.conf with another node
    """

    _need_two(fleet)

    def read(node: NodeFacts) -> Any:
        if isinstance(node.clock, Unknown):
            return node.clock
        listed = node.clock.sources
        if isinstance(listed, Unknown) and not isinstance(node.clock.tracking, Unknown):
            return listed  # chronyd runs and has them
        if isinstance(listed, Unknown) or not listed:
            return None  # a finding of time.sync
        return " ".join(sorted(one.address for one in listed))

    lists = [str(value).split() for value in map(read, fleet.reached) if isinstance(value, str)]
    if expected is None and _are_of_pool(lists):
        return each_node(fleet, "clock", lambda _node, clock: _of_pool(clock))
    return compare(fleet, read, "time servers", bad=warn, expected=expected)


def _of_pool(clock: Clock) -> Finding:
    listed = need(clock.sources)
    return passed(f"{len(listed)} servers of a public pool; each node has others")


@check("time.clocksource", "fleet", advisory=True)
def clocksource(fleet: Fleet) -> Iterable[Finding]:
    """The kernel reads its time from a fast counter.

    Why: A node that fell from tsc to hpet is slow at every time stamp, and drifts.
    Bad: WARN if it is not the majority's, or hpet, acpi_pm or jiffies
    How: /sys/devices/system/clocksource/clocksource0/current_clocksource
    Fix: dmesg | grep -i clocksource; a BIOS update or a reboot brings tsc back
    """
    clocks = known(node.clock for node in fleet.reached)
    most = majority(known(clock.clocksource for clock in clocks))

    def judge(_node: NodeFacts, clock: Clock) -> Finding:
        value = need(clock.clocksource)
        if value in ("hpet", "acpi_pm", "jiffies") or (most is not None and value != most):
            text = f"clock source {value}, most nodes have {most or 'another'}"
            return warn(text, value, most, source="majority")
        return passed(f"clock source {value}", value)

    return each_node(fleet, "clock", judge)
