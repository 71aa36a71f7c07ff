"""What steers a clock: a source that answers, and not the clock itself."""

from __future__ import annotations

from collections.abc import Sequence

from checks import units
from checks.facts import (
    NOT_ASKED,
    ChronyTracking,
    Clock,
    Maybe,
    NodeFacts,
    TimeSource,
    Unknown,
    known,
)
from checks.finding import Finding, Verdict, fail, passed, unknown, warn
from checks.profile import Profile
from checks.registry import check
from checks.rules.time import each_clock

PANIC_S = 1000.0  # of ntpd: it corrects no more than that, and ends
_PANIC = "stop ntpd, sudo ntpd -gq steps the clock once (no job running), start it again"
# systemd-timesyncd sets the bound to 0 at each answer, at most 2048 s apart; twice that.
OLDEST_ANSWER_S, ERROR_GROWTH = 4096.0, 500e-6


@check("time.sync", "fleet", advisory=True)
@each_clock
def sync(_node: NodeFacts, clock: Clock, limits: Profile) -> Finding:
    """Every clock is steered by a source that answers.

    Why: chronyd with `local stratum` says `Leap status: Normal` while it follows nothing at all.
    Bad: WARN last or RMS offset over 10 ms, reach not 377, a falseticker, synchronised by the
        kernel alone and not steered for over an hour; FAIL not synchronised, own clock as source
        (7F7F0101, LOCAL(0), 127.127.1.x), no selected source, root distance or offset over 100 ms
    How: chronyc -c tracking and sources; without chronyd ntpq -pn, timedatectl, adjtimex
    Fix: sudo systemctl enable --now chrony; chronyc sources; `server HEAD iburst` in chrony.conf
    """
    track = clock.tracking
    if isinstance(track, Unknown):
        return _judge_without_chrony(clock, track, limits)
    listed = () if isinstance(clock.sources, Unknown) else clock.sources
    chosen = [one for one in listed if one.state == "selected"]
    limit_s, offset_s = limits.clock_root_distance_fail_s, track.offset_s
    if track.is_local:
        return fail("chronyd follows its own clock (reference 7F7F0101)")
    if track.ref_id == "00000000" or not track.leap.startswith(("Normal", "Insert", "Delete")):
        why = ", ".join(_told(one, limits) for one in listed) or "it has no source"
        return fail(f"chronyd is not synchronised: {why}", track.leap)
    if isinstance(clock.sources, tuple) and not chosen:
        return fail("chronyd has selected no source")
    if abs(offset_s) > limit_s:
        text = f"{units.offset(offset_s)} from its source {track.ref_name}{_stepped(track)}"
        fix = "sudo chronyc makestep  (no job running)"
        return fail(text, f"{offset_s:+.4f}", limit_s, fix=fix)
    if track.root_distance_s > limit_s:
        text = f"its source may be wrong by {units.measured(track.root_distance_s)} (root distance)"
        return fail(text, f"{track.root_distance_s:.4f}", limit_s, fix="name a nearer server")
    worst_s = max(abs(offset_s), abs(track.last_offset_s), track.rms_offset_s)
    if worst_s > limits.clock_offset_warn_s:
        worst, mean = units.measured(worst_s), units.measured(track.rms_offset_s)
        text = f"offsets up to {worst} lately (RMS {mean})"
        return warn(text, f"{worst_s:.4f}", limits.clock_offset_warn_s)
    if bad := _judge_answers(listed, chosen):
        return bad
    if isinstance(clock.sources, Unknown):
        return unknown(f"follows {track.ref_name}, what its other sources say: {clock.sources}")
    return passed(f"follows {track.ref_name}", f"{offset_s:+.6f}")


def _stepped(track: ChronyTracking) -> str:
    """The mean offset still shows a jump of the clock or its source; the last offset does not."""
    if track.rms_offset_s < 20 * abs(track.last_offset_s) or track.rms_offset_s < 0.01:
        return ""
    return f"; one of them was stepped (RMS offset {units.measured(track.rms_offset_s)})"


def _judge_without_chrony(clock: Clock, track: Unknown, limits: Profile) -> Finding:
    """What other daemons report if chronyd does not; they do not replace a running chronyd."""
    found = _judge_by_others(clock, limits)
    absent = ("not found", "no chronyd answers", NOT_ASKED.reason)
    daemons = () if isinstance(clock.daemons, Unknown) else clock.daemons
    if found.verdict is not Verdict.PASS:
        return found
    if "chronyd" in daemons or not track.reason.startswith(absent):
        return unknown(f"{found.evidence}, but chronyd: {track}")
    if isinstance(clock.sources, Unknown) and {"ntpd", "ntpsec"}.intersection(daemons):
        # It tells the kernel so, too, while it follows its own clock.
        text = f"{found.evidence}, but what ntpd follows is not known: {clock.sources}"
        return unknown(text, fix="ntpq -pn on the node; ntpd may follow its own clock")
    return found


def _judge_by_others(clock: Clock, limits: Profile) -> Finding:
    """ntpd, systemd-timesyncd, or at least what the kernel knows."""
    if isinstance(clock.sources, tuple):
        return _judge_ntpd(clock.sources, limits)
    for value, who in ((clock.ntp_synchronized, "systemd"), (clock.kernel_synced, "the kernel")):
        if value is True:
            return _judge_age(clock.kernel_max_error_s, f"{who} says it is synchronised")
        if value is False:
            return fail(f"{who} says it is not synchronised")
    return unknown(f"status unavailable: {clock.kernel_synced}")


def _judge_ntpd(listed: Sequence[TimeSource], limits: Profile) -> Finding:
    chosen = [one for one in listed if one.state in ("selected", "pps")]
    others = ", ".join(_told(one, limits) for one in listed if one not in chosen)
    if not chosen:
        fix = _PANIC if _is_past_panic(listed) else "ntpq -pn"
        return fail(f"ntpd has selected no source: {others or 'it has none'}", fix=fix)
    if all(one.is_own_clock for one in chosen):
        text = f"ntpd follows its own clock ({chosen[0].address})"
        fix = "take server 127.127.1.x and its fudge out of ntp.conf, restart ntpd"
        return fail(f"{text}; {others}" if others else text, fix=fix)
    offset_s, address = chosen[0].offset_s, chosen[0].address
    if isinstance(offset_s, Unknown):
        return unknown(f"ntpd follows {address}, how far from it: {offset_s}")
    limit_s, text = limits.clock_root_distance_fail_s, f"{units.offset(offset_s)} from {address}"
    if abs(offset_s) > limit_s:
        return fail(text, f"{offset_s:+.4f}", limit_s, fix=_PANIC)
    if abs(offset_s) > limits.clock_offset_warn_s:
        return warn(text, f"{offset_s:+.4f}", limits.clock_offset_warn_s, fix="ntpq -pn")
    return _judge_answers(listed, chosen) or passed(f"ntpd follows {address}", f"{offset_s:+.6f}")


def _judge_answers(listed: Sequence[TimeSource], chosen: Sequence[TimeSource]) -> Finding | None:
    """Sources that disagree or answer now and then; None of good ones."""
    if false := [one.address for one in listed if one.state == "falseticker"]:
        return warn(f"{', '.join(false)} tells another time than the others")
    if thin := [one for one in chosen if one.reach != 0o377]:
        return warn(f"{thin[0].address} answers intermittently (reach {thin[0].reach:o})")
    return None


def _told(one: TimeSource, limits: Profile) -> str:
    """`10.0.0.1 rejected (+3.742 s)`: a source that was not chosen, and how far it is if far."""
    offset_s = 0.0 if isinstance(one.offset_s, Unknown) else one.offset_s
    far = f" ({units.offset(offset_s)})" if abs(offset_s) > limits.clock_offset_warn_s else ""
    return f"{one.address} {one.state}{far}"


def _is_past_panic(listed: Sequence[TimeSource]) -> bool:
    return any(abs(offset_s) > PANIC_S for offset_s in known(one.offset_s for one in listed))


def _judge_age(max_error_s: Maybe[float], good: str) -> Finding:
    """The kernel calls itself synchronised for 9 hours after the last answer of any server."""
    if isinstance(max_error_s, Unknown) or max_error_s <= OLDEST_ANSWER_S * ERROR_GROWTH:
        return passed(good)
    since = units.duration(max_error_s / ERROR_GROWTH)
    text = f"{good}, but nothing has steered it for about {since}"
    fix = "timedatectl timesync-status; systemctl status systemd-timesyncd"
    return warn(text, f"{max_error_s:.3f}", OLDEST_ANSWER_S * ERROR_GROWTH, fix=fix)
