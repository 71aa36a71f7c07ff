"""Clocks: near each other, steered by one daemon that follows a real source, never stepping.

A peer's timers run on its own clock: a rendezvous store gives up too early, logs cannot be put in
order, and a run that was lost every 30 minutes had one node whose clock jumped. None of the tools
that we looked at checks time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from checks.facts import NOT_ASKED, ChronyTracking, Clock, Fleet, NodeFacts, Unknown
from checks.finding import Finding, Verdict, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check, compare, majority

_ONE_DAEMON = "sudo chronyc makestep  (no job running), and keep one time daemon"


def _clocks(fleet: Fleet) -> Iterator[tuple[NodeFacts, Clock] | Finding]:
    """Nodes with their clocks; where there is one machine only, one SKIP for all."""
    if fleet.one_machine or len(fleet.reached) < 2:
        names = tuple(node.name for node in fleet.reached)
        yield skip("one machine: there is no second clock", nodes=names)
        return
    for node in fleet.reached:
        if node.clock == NOT_ASKED:
            yield skip(NOT_ASKED.reason, nodes=(node.name,))
        elif isinstance(node.clock, Unknown):
            yield unknown(node.clock.reason, nodes=(node.name,))
        else:
            yield node, node.clock


def middle_clock(offsets_s: Sequence[float]) -> float:
    """The middle of all clocks, the head's among them, in seconds against the head's.

    The majority of clocks decides which is wrong; it may be the head's. Of two middles the one
    nearer to the head: with one node on either side only the head can decide.
    """
    ordered = sorted([0.0, *offsets_s])
    half = len(ordered) // 2
    two = ordered[half - 1 : half + 1] if len(ordered) % 2 == 0 else [ordered[half]]
    return min(two, key=abs)


@check(
    "time.skew",
    scope="fleet",
    advisory=True,
    bad="WARN over 10 ms outside the error bound, FAIL over 100 ms",
    how="eight round trips over the open ssh channel, the shortest counts; error is half of it",
    fix="sudo chronyc makestep on that node, with no job running",
)
def skew(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The nodes' clocks agree.

    Timeouts of the rendezvous and NCCL's watchdog, the order of logs, and file times depend on it.
    """
    read = list(_clocks(fleet))
    trips = [one[1].exchange for one in read if not isinstance(one, Finding)]
    known = {trip.offset_s: trip.error_s for trip in trips if not isinstance(trip, Unknown)}
    reference_s = middle_clock([trip.offset_s for trip in trips if not isinstance(trip, Unknown)])
    reference_error_s = known.get(reference_s, 0.0)  # the head's own clock is read without a way
    for one in read:
        if isinstance(one, Finding):
            yield one
            continue
        node, clock = one
        trip = clock.exchange
        if isinstance(trip, Unknown):
            asked = trip != NOT_ASKED
            yield (unknown if asked else skip)(trip.reason, nodes=(node.name,))
            continue
        offset_s, error_s = trip.offset_s - reference_s, trip.error_s + reference_error_s
        sure_s = max(0.0, abs(offset_s) - error_s)
        words = f"{offset_s * 1000:+.0f} ms from the middle of all clocks, ±{error_s * 1000:.1f} ms"
        more: dict[str, Any] = {
            "nodes": (node.name,),
            "value": f"{offset_s:+.4f}",
            "expected": f"{limits.clock_skew_warn_s:g}",
        }
        if sure_s > limits.clock_skew_fail_s:
            yield fail(words, fix="sudo chronyc makestep  (no job running)", **more)
        elif sure_s > limits.clock_skew_warn_s:
            yield warn(words, fix="chronyc tracking; chronyc sources", **more)
        elif error_s > limits.clock_skew_fail_s:
            why = f"the way to the node takes {2 * trip.error_s:.3f} s, too long to tell"
            yield unknown(why, nodes=(node.name,))
        else:
            yield passed("within the limit", nodes=(node.name,), value=f"{offset_s:+.4f}")


@check(
    "time.step",
    scope="fleet",
    advisory=True,
    bad="WARN if the clock moved over 10 ms, FAIL if it moved back over 100 ms",
    how="wall minus boot time at the start and end of the look and against the last one's record: "
    "slewing moves both, only a step moves the difference",
    fix="sudo chronyc makestep on that node, and keep one time daemon",
)
def step(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """No clock is stepped while it runs.

    A store or a watchdog that waits on a wall clock sees hours pass in a moment, or none.
    """
    for one in _clocks(fleet):
        if isinstance(one, Finding):
            yield one
            continue
        node, clock = one
        moves = [(clock.moved_s, "while we looked")]
        before, boot = (
            node.previous,
            None if isinstance(node.machine, Unknown) else node.machine.boot_id,
        )
        if not isinstance(before, Unknown) and before.boot_id == boot:
            now, then = clock.wall_minus_boot_s, before.wall_minus_boot_s
            if not isinstance(now, Unknown) and not isinstance(then, Unknown):
                moves.append((now - then, f"since the last look {_ago(before.age_s)} ago"))
        known = [(moved, when) for moved, when in moves if not isinstance(moved, Unknown)]
        if not known:
            yield unknown("the time at the start of the look is not known", nodes=(node.name,))
            continue
        moved, when = max(known, key=lambda item: abs(item[0]))
        words = f"the clock moved {moved:+.3f} s {when}"
        more: dict[str, Any] = {"nodes": (node.name,), "value": f"{moved:+.4f}", "expected": "0"}
        if moved < -limits.clock_step_fail_s:
            yield fail(words, fix=_ONE_DAEMON, **more)
        elif abs(moved) > limits.clock_step_warn_s:
            yield warn(words, fix=_ONE_DAEMON, **more)
        else:
            yield passed("no step", nodes=(node.name,))


def _ago(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


@check(
    "time.log_ahead",
    scope="fleet",
    advisory=True,
    bad="FAIL if a log file is more than 1 s ahead of now",
    how="newest modification time of the 5000 nearest files under /var/log against the clock",
    fix="sudo chronyc makestep on that node, and keep one time daemon",
)
def log_ahead(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """No log was written in the future.

    It proves that the clock stood further ahead before: it was set back since.
    """
    for one in _clocks(fleet):
        if isinstance(one, Finding):
            yield one
            continue
        node, clock = one
        ahead = clock.log_ahead_s
        if isinstance(ahead, Unknown):
            why = f"no log to look at: {ahead.reason}"
            yield (skip if ahead.is_absence else unknown)(why, nodes=(node.name,))
        elif ahead > limits.clock_log_ahead_fail_s:
            yield fail(
                f"a log file is {ahead:.1f} s ahead of now: the clock was set back",
                nodes=(node.name,),
                value=f"{ahead:.1f}",
                expected="0",
                fix=_ONE_DAEMON,
            )
        else:
            yield passed("no log from the future", nodes=(node.name,))


@check(
    "time.sync",
    scope="fleet",
    advisory=True,
    bad="WARN last or RMS offset over 10 ms, reach not 377; FAIL not synchronised, own clock as "
    "source, no selected source, root distance or offset over 100 ms",
    how="chronyc -c tracking and sources; without chronyd ntpq -pn, timedatectl, adjtimex",
    fix="sudo systemctl enable --now chrony; a line `server HEAD iburst` in its configuration",
)
def sync(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every clock is steered by a source that answers.

    chronyd with `local stratum` says `Leap status: Normal` while it follows nothing at all.
    """
    for one in _clocks(fleet):
        if isinstance(one, Finding):
            yield one
        else:
            node, clock = one
            yield from _judge_sync(node.name, clock, limits)


def _judge_sync(name: str, clock: Clock, limits: Profile) -> Iterator[Finding]:
    track, sources = clock.tracking, clock.sources
    nodes, fix = (name,), "sudo systemctl enable --now chrony; chronyc sources"
    if isinstance(track, Unknown):
        yield _judge_without_chrony(nodes, clock, limits)
        return
    listed = () if isinstance(sources, Unknown) else sources
    chosen = [one for one in listed if one.state == "selected"]
    if track.is_local:
        yield fail("chronyd follows its own clock (reference 7F7F0101)", nodes=nodes, fix=fix)
    elif track.ref_id == "00000000" or not track.leap.startswith(("Normal", "Insert", "Delete")):
        why = ", ".join(f"{one.address} {one.state}" for one in listed) or "it has no source"
        yield fail(f"chronyd is not synchronised: {why}", nodes=nodes, value=track.leap, fix=fix)
    elif isinstance(sources, tuple) and not chosen:
        yield fail("chronyd has selected no source", nodes=nodes, fix=fix)
    elif abs(track.offset_s) > limits.clock_root_distance_fail_s:
        yield fail(
            f"{track.offset_s:+.3f} s from its source {track.ref_name}{_stepped(track)}",
            nodes=nodes,
            value=f"{track.offset_s:+.4f}",
            expected=f"{limits.clock_root_distance_fail_s:g}",
            fix="sudo chronyc makestep  (no job running)",
        )
    elif track.root_distance_s > limits.clock_root_distance_fail_s:
        yield fail(
            f"its source may be wrong by {track.root_distance_s:.3f} s (root distance)",
            nodes=nodes,
            value=f"{track.root_distance_s:.4f}",
            expected=f"{limits.clock_root_distance_fail_s:g}",
            fix="name a nearer server",
        )
    else:
        yield from _judge_quality(nodes, clock, limits, fix)


def _stepped(track: ChronyTracking) -> str:
    """The mean offset still shows a jump of the clock or its source; the last offset does not."""
    if track.rms_offset_s < 20 * abs(track.last_offset_s) or track.rms_offset_s < 0.01:
        return ""
    return f"; one of them was stepped (RMS offset {track.rms_offset_s:.3f} s)"


def _judge_quality(
    nodes: tuple[str, ...], clock: Clock, limits: Profile, fix: str
) -> Iterator[Finding]:
    track = clock.tracking
    listed = () if isinstance(clock.sources, Unknown) else clock.sources
    assert not isinstance(track, Unknown)
    worst = max(abs(track.offset_s), abs(track.last_offset_s), track.rms_offset_s)
    false = [one.address for one in listed if one.state == "falseticker"]
    thin = [one for one in listed if one.state == "selected" and one.reach != 0o377]
    if worst > limits.clock_offset_warn_s:
        yield warn(
            f"offsets up to {worst:.3f} s lately (RMS {track.rms_offset_s:.3f} s)",
            nodes=nodes,
            value=f"{worst:.4f}",
            expected=f"{limits.clock_offset_warn_s:g}",
            fix=fix,
        )
    elif false:
        yield warn(f"{', '.join(false)} tells another time than the others", nodes=nodes, fix=fix)
    elif thin:
        yield warn(
            f"{thin[0].address} answers intermittently (reach {thin[0].reach:o})",
            nodes=nodes,
            fix=fix,
        )
    elif isinstance(clock.sources, Unknown):
        why = f"follows {track.ref_name}, what its other sources say: {clock.sources.reason}"
        yield unknown(why, nodes=nodes)
    else:
        yield passed(f"follows {track.ref_name}", nodes=nodes, value=f"{track.offset_s:+.6f}")


def _is_without_chrony(track: Unknown) -> bool:
    return track == NOT_ASKED or track.reason.startswith(("not found", "no chronyd answers"))


def _judge_without_chrony(nodes: tuple[str, ...], clock: Clock, limits: Profile) -> Finding:
    """What other daemons report if chronyd does not; they do not replace a running chronyd."""
    found = _judge_by_others(nodes, clock, limits)
    track = clock.tracking
    assert isinstance(track, Unknown)
    runs = isinstance(clock.daemons, tuple) and "chronyd" in clock.daemons
    if found.verdict is Verdict.PASS and (runs or not _is_without_chrony(track)):
        return unknown(f"{found.evidence}, but chronyd: {track.reason}", nodes=nodes)
    return found


def _judge_by_others(nodes: tuple[str, ...], clock: Clock, limits: Profile) -> Finding:
    """ntpd, systemd-timesyncd, or at least what the kernel knows."""
    fix = "sudo systemctl enable --now chrony"
    if isinstance(clock.sources, tuple) and clock.sources:
        chosen = [one for one in clock.sources if one.state in ("selected", "pps")]
        if not chosen:
            states = ", ".join(f"{one.address} {one.state}" for one in clock.sources)
            return fail(f"ntpd has selected no source: {states}", nodes=nodes, fix="ntpq -pn")
        offset_s = chosen[0].offset_s
        if not isinstance(offset_s, Unknown) and abs(offset_s) > limits.clock_offset_warn_s:
            return warn(f"{offset_s:+.3f} s from {chosen[0].address}", nodes=nodes, fix="ntpq -pn")
        return passed(f"ntpd follows {chosen[0].address}", nodes=nodes)
    for value, who in ((clock.ntp_synchronized, "systemd"), (clock.kernel_synced, "the kernel")):
        if isinstance(value, bool):
            if value:
                return passed(f"{who} says it is synchronised", nodes=nodes)
            return fail(f"{who} says it is not synchronised", nodes=nodes, fix=fix)
    assert isinstance(clock.kernel_synced, Unknown)
    return unknown(f"status unavailable: {clock.kernel_synced.reason}", nodes=nodes)


@check(
    "time.daemons",
    scope="fleet",
    advisory=True,
    bad="FAIL with two or more",
    how="names of running processes: chronyd, ntpd, systemd-timesyncd, ptp4l with phc2sys",
    fix="sudo systemctl disable --now systemd-timesyncd",
)
def daemons(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """One daemon steers the clock, not two.

    Two of them pull the clock to and fro, with sudden jumps.
    """
    for one in _clocks(fleet):
        if isinstance(one, Finding):
            yield one
            continue
        node, clock = one
        if isinstance(clock.daemons, Unknown):
            yield unknown(clock.daemons.reason, nodes=(node.name,))
            continue
        # ptp4l and phc2sys work together and count as one.
        kinds = {
            "ptp" if name in ("ptp4l", "phc2sys", "timemaster") else name for name in clock.daemons
        }
        if len(kinds) > 1:
            yield fail(
                f"{len(kinds)} time daemons run: {', '.join(sorted(clock.daemons))}",
                nodes=(node.name,),
                value=str(len(kinds)),
                expected="1",
                fix="sudo systemctl disable --now systemd-timesyncd  (keep one)",
            )
        elif kinds:
            yield passed(f"{kinds.pop()} steers the clock", nodes=(node.name,))
        else:
            yield passed(
                "no second daemon; time.sync says whether there is a first", nodes=(node.name,)
            )


@check(
    "time.sources",
    scope="fleet",
    advisory=True,
    bad="WARN if the servers differ from the majority's",
    how="addresses of chronyc sources or ntpq",
    fix="the same server lines on all nodes",
)
def sources(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """All nodes follow the same servers.

    Half of a cluster on another server drifts with that server.
    """

    def read(node: NodeFacts) -> Any:
        if isinstance(node.clock, Unknown):
            return node.clock
        listed = node.clock.sources
        if isinstance(listed, Unknown) and not isinstance(node.clock.tracking, Unknown):
            return listed  # chronyd runs and has them
        if isinstance(listed, Unknown) or not listed:
            return None  # time.sync speaks about it
        return " ".join(sorted(one.address for one in listed))

    if fleet.one_machine or len(fleet.reached) < 2:
        yield skip("one machine: there is no second clock")
        return
    expected = limits.expected.get("time.sources")
    yield from compare(
        fleet,
        read,
        "time servers",
        bad=warn,
        expected=expected,
        fix="compare /etc/chrony/chrony.conf with another node",
    )


@check(
    "time.clocksource",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's, or hpet, acpi_pm or jiffies",
    how="/sys/devices/system/clocksource/clocksource0/current_clocksource",
    fix="dmesg | grep -i clocksource; a BIOS update or a reboot brings tsc back",
)
def clocksource(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The kernel reads its time from a fast counter.

    A node that fell from tsc to hpet is slow at everything that takes a time stamp, and drifts.
    """
    values = {
        node.name: node.clock.clocksource
        for node in fleet.reached
        if not isinstance(node.clock, Unknown) and not isinstance(node.clock.clocksource, Unknown)
    }
    most = majority(values).value
    for node in fleet.reached:
        value = values.get(node.name)
        if value is None:
            why = node.clock if isinstance(node.clock, Unknown) else node.clock.clocksource
            yield (skip if why == NOT_ASKED else unknown)(str(why), nodes=(node.name,))
        elif value in ("hpet", "acpi_pm", "jiffies") or (most is not None and value != most):
            yield warn(
                f"clock source {value}, most nodes have {most or 'another'}",
                nodes=(node.name,),
                value=value,
                expected=most,
                source="majority",
                fix="dmesg | grep -i clocksource",
            )
        else:
            yield passed(f"clock source {value}", nodes=(node.name,), value=value)
