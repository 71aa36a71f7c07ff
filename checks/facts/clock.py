"""A node's clock and the daemons and servers that steer it."""

from __future__ import annotations

from dataclasses import dataclass

from checks.facts.unknown import NOT_ASKED, Maybe, Unknown


@dataclass(frozen=True, slots=True)
class ChronyTracking:
    """`chronyc tracking`. Offsets are positive where this node's clock is ahead of true time."""

    ref_id: str  # 00000000: none, 7F7F0101: its own clock
    ref_name: str
    stratum: int
    ref_time_s: float
    offset_s: float
    last_offset_s: float
    rms_offset_s: float
    frequency_ppm: float
    skew_ppm: float
    root_delay_s: float
    root_dispersion_s: float
    update_interval_s: float
    leap: str  # Normal, Insert second, Delete second, Not synchronised

    @property
    def root_distance_s(self) -> float:
        """The bound on the error that the chain of servers may have."""
        return self.root_delay_s / 2 + self.root_dispersion_s

    @property
    def is_local(self) -> bool:
        """It serves its own clock: it reports Normal and follows nothing (`local stratum 10`)."""
        return self.ref_id.upper() == "7F7F0101"


@dataclass(frozen=True, slots=True)
class TimeSource:
    """A server that a time daemon listens to."""

    address: str
    state: str  # selected, combined, excluded, falseticker, unreachable, jittery, pps
    stratum: int
    poll_s: float
    reach: int  # eight bits, newest lowest: 255 is all of the last eight answers
    last_rx_s: Maybe[float]
    offset_s: Maybe[float]  # positive: this node is ahead of that server
    error_s: Maybe[float]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The node's clock against the head's, over the open channel; the truth is within `error_s`."""

    offset_s: float  # positive: the node is ahead
    error_s: float  # half of the shortest round trip
    samples: int


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's clock, what steers it, and how it ran during the census."""

    time_s: Maybe[float] = NOT_ASKED
    boottime_s: Maybe[float] = NOT_ASKED
    moved_s: Maybe[float] = NOT_ASKED  # wall against boot time during the payload; below 0: back
    kernel_synced: Maybe[bool] = NOT_ASKED  # adjtimex without STA_UNSYNC
    ntp_synchronized: Maybe[bool] = NOT_ASKED  # timedatectl
    tracking: Maybe[ChronyTracking] = NOT_ASKED
    sources: Maybe[tuple[TimeSource, ...]] = NOT_ASKED  # chronyc's, else ntpq's
    daemons: Maybe[tuple[str, ...]] = NOT_ASKED  # programs that steer a clock and run now
    clocksource: Maybe[str] = NOT_ASKED
    log_ahead_s: Maybe[float] = NOT_ASKED  # newest file in /var/log against now; above 0: future
    exchange: Maybe[Exchange] = NOT_ASKED

    @property
    def wall_minus_boot_s(self) -> Maybe[float]:
        """Changes only when the clock is stepped: slewing moves both."""
        wall_s, boot_s = self.time_s, self.boottime_s
        if isinstance(wall_s, Unknown):
            return wall_s
        return boot_s if isinstance(boot_s, Unknown) else wall_s - boot_s
