"""Limits of the alerts, each with a default and a reason; those of preflight where it has them."""

from __future__ import annotations

from dataclasses import dataclass

from checks.profile import Profile

_PREFLIGHT = Profile()


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, shares of 1, bytes, degrees Celsius, watts."""

    # A rank that waits draws 100 of 700 W. With fewer peers, or while these are idle (a checkpoint
    # is written), there is nothing to compare with.
    idle_share: float = _PREFLIGHT.power_outlier_share
    idle_peers: int = 4
    busy_share: float = 0.35  # of the power limit
    busy_w: float = 150.0  # where the limit is not known
    used_bytes: float = 2**30  # less memory than this in use: the GPU takes no part
    hot_c: float = 87.0  # H100 and A100 slow themselves down from here on
    gpu_memory_share: float = 0.985  # torch keeps what it once had: 95 % are usual
    memory_share: float = 0.95  # of a node's memory; the kernel starts to kill soon after
    # A round trip of a stream resolves milliseconds, a fault is seconds.
    clock_warn_s: float = _PREFLIGHT.clock_skew_warn_s
    clock_fail_s: float = _PREFLIGHT.clock_skew_fail_s
    step_warn_s: float = _PREFLIGHT.clock_step_warn_s
    step_fail_s: float = _PREFLIGHT.clock_step_fail_s
    link_errors_min: float = 1.0  # a healthy fabric has none in hours
    disk_warn: float = _PREFLIGHT.disk_used_warn
    disk_fail: float = _PREFLIGHT.disk_used_fail
    # 5 % of a 30 TB disk are no reason to stop anybody.
    disk_left_bytes: float = _PREFLIGHT.disk_left_fail_gib * 2**30
    disk_soon_s: float = 7200.0  # full within this time at the pace of the last minutes
    disk_pace_s: float = 1200.0  # that pace is taken over this time: several checkpoints
    disk_least_s: float = 120.0  # and over no less than this
    silent_s: float = 10.0  # a node without a reading for this long
    waiting_s: float = 30.0  # the same for one that never gave one: a thousand log in for 20 s
    # The launcher reports a hang after 5 x the 99th percentile or a minute; steps that save are
    # among the 99 %.
    stalled_s: float = 60.0
    stalled_times: float = 6.0  # of the median step
    stalled_p99_times: float = 3.0
    first_step_s: float = 900.0  # loading, compiling, the first bucket
    decision_s: float = 60.0  # until a launcher says what follows the end of an attempt
    restarted_s: float = 600.0  # a restart is an alert for so long
    forgotten_s: float = 86400.0  # a run that ended this long ago gives no new alert
    spike_sigmas: float = 8.0  # of the last losses, and
    spike_times: float = 1.4  # of their median
    spike_steps: int = 5  # mean over so many: one bad batch is no spike
    spike_known: int = 50  # losses before it that are needed to compare with
    data_share: float = 0.25  # of a step spent on waiting for clips
    straggler_share: float = 0.25  # of a step that the other ranks wait
    straggler_steps: float = 0.6  # of the last steps in which it was the same rank
    window_steps: int = 20
    recent_s: float = 3600.0  # an Xid or another single event counts this long


DEFAULT = Limits()
