"""Thresholds and expected values of the checks: one field, one default, one reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.finding import Verdict


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the key."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits where a peer or a vendor states one; between nodes the majority is the baseline."""

    # Ours, as no peer states one: two faults in two weeks may be chance.
    history_days: float = 14.0
    history_faults_warn: float = 3
    # Peers warn at 80 to 95 % of a disk; the bytes that a launch needs are judged apart.
    disk_used_warn: float = 0.90
    disk_used_fail: float = 0.95
    disk_left_fail_gib: float = 10.0  # 5 % of a 30 TB disk are no reason to stop anybody
    inodes_used_warn: float = 0.90
    inodes_used_fail: float = 0.95
    # Above what the shortest of eight round trips resolves, far below the seconds that kill a run.
    clock_skew_warn_s: float = 0.010
    clock_skew_fail_s: float = 0.100
    clock_step_warn_s: float = 0.010
    clock_step_fail_s: float = 0.100
    clock_offset_warn_s: float = 0.010
    clock_root_distance_fail_s: float = 0.100
    clock_log_ahead_fail_s: float = 1.0
    ssh_connect_warn_s: float = 2.0
    # AZ fails at 20 million corrected DRAM errors, GC at 50; SB: more than four SRAM usually RMA.
    ecc_corrected_warn: float = 20e6
    ecc_sram_aggregate_fail: float = 4
    gpu_margin_warn_c: float = 5.0
    gpu_hotter_warn_c: float = 15.0
    gpu_power_limit_fail_share: float = 0.8
    gpu_memory_held_warn_gib: float = 1.0
    xid_fresh_hours: float = 24.0  # an older one that asks for nothing any more is a warning
    ib_rate_share: float = 0.9
    ib_flaps_warn: float = 1
    ib_flaps_fail: float = 3
    shm_share_warn: float = 0.5  # of the memory; a loader's workers pass batches through it
    open_files_warn: float = 65536
    load_per_cpu_warn: float = 0.5
    blocked_warn_s: float = 30.0  # a busy disk keeps its callers for a second
    blocked_fail_s: float = 300.0
    zombies_warn: float = 10
    memory_share_warn: float = 0.05  # AZ: size within 5 %
    token_warn_s: float = 2.0
    # A rank that hangs draws 100 W beside peers at 700 W; the mean of a node hides it.
    power_outlier_share: float = 0.5
    # SuperBench warns at 5 % under its baseline; GPUs of one node differ by 5 % already.
    active_tflops_warn_share: float = 0.95
    active_tflops_fail_share: float = 0.90
    # Cores are shared, and clocks go with the load: on a CPU only half the speed is a sign.
    active_cpu_fail_share: float = 0.5
    # Of the best shape's speed in checks/reference/gpu_throughput.py; the test has one shape.
    active_floor_share: float = 0.65
    active_link_share: float = 0.5  # of the middle pair's bandwidth; less is a bad link or node
    active_cpu_link_share: float = 0.1  # processes of one machine wait for each other, too
    active_token_warn_s: float = 2.0
    active_read_share: float = 0.5  # of the middle node's reading speed
    # trainer needs it; payloads run on 3.8.
    python_min: tuple[int, int] = (3, 10)
    # PyAV 14.0 to 14.2 hang in the slice threads of HEVC.
    av_bad_from: tuple[int, int] = (14, 0)
    av_bad_to: tuple[int, int] = (14, 2)
    av_min: tuple[int, int] = (17, 0)  # streams have an index from there on
    # Checks whose bad verdicts become SKIP, and others that get another verdict, by id.
    silence: tuple[str, ...] = ()
    severity: Mapping[str, Verdict] = field(default_factory=dict)
    # What `--record` wrote on a good day: id -> value that every node should show.
    expected: Mapping[str, str] = field(default_factory=dict)


def profile_from(data: Mapping[str, Any]) -> Profile:
    """A profile from plain data over the defaults. Raises `ProfileError` for a bad key or type."""
    known = {item.name: item for item in dataclasses.fields(Profile)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ProfileError(f"no threshold is called {key!r}; there are: {', '.join(known)}")
        convert = _texts if name == "expected" else _convert
        values[name] = convert(key, value, getattr(Profile(), name))
    return Profile(**values)


def _texts(key: str, value: Any, _default: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ProfileError(f"{key}: not a table of ids")
    return {str(id): str(text) for id, text in value.items()}


def _convert(key: str, value: Any, default: Any) -> Any:
    try:
        if isinstance(default, tuple):
            item_type = type(default[0]) if default else str
            return tuple(item_type(item) for item in value)
        if isinstance(default, Mapping):
            return {str(id): Verdict(str(verdict).upper()) for id, verdict in value.items()}
        number = float(value)
    except (TypeError, ValueError, AttributeError):
        raise ProfileError(f"{key}: cannot use {value!r}") from None
    # Against nan or inf nothing would ever be found wrong.
    if isinstance(value, bool) or not math.isfinite(number) or number < 0:
        raise ProfileError(f"{key}: a threshold is a number from 0, not {value!r}")
    return number
