"""The numbers that a plan is made of, each with its source; nothing is assumed silently."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from checks import units
from checks.units import counted
from clusterctl.checkpoints.failures import FailureRecord
from clusterctl.checkpoints.records import RunRecord, Save
from clusterctl.checkpoints.settings_of_run import RunSettings, Size

ENOUGH = 3  # failures from which their rate is taken as it is
MTBF_S = 24 * 3600.0
# Meta's research clusters: a failure every 7.9 h at 1,024 GPUs (Kokolis et al., "Revisiting
# Reliability in Large-Scale Machine Learning Research Clusters", 2024).
MTBF_RANK_S = 7.9 * 1024 * 3600.0
DETECT_S, RESTART_S = 120.0, 300.0  # with a launcher that stops a run that hangs, and a person
STALL_S = 1.0  # of a save beside training; measured ones are 0.01 s to 0.5 s
BYTES_S = 1e9  # that a shared file system writes
WRITE_S = 60.0  # of a save whose size is unknown


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in seconds, its source (measured, assumed, option or unknown), and a reason."""

    value: float | None
    source: str
    why: str

    @property
    def text(self) -> str:
        return f"{self.source}: {self.why}" if self.why else self.source


def by_option(value: float, option: str) -> Figure:
    return Figure(value, "option", option)


def save_stall(record: RunRecord | None, settings: RunSettings, size: Size | None) -> Figure:
    """Seconds that training waits for a save."""
    found = typical_saves(record, settings)
    if found:
        stall_s = statistics.median(save.stall_s for save in found)
        return Figure(stall_s, "measured", f"median of {counted(len(found), 'save')}")
    if settings.async_io:
        return Figure(STALL_S, "assumed", "no save on record; saves are written beside training")
    return Figure(_written_s(size), "assumed", f"no save on record; {_speed(size)}")


def save_write(record: RunRecord | None, settings: RunSettings, size: Size | None) -> Figure:
    """Seconds from the end of that wait until the checkpoint is complete."""
    found = typical_saves(record, settings)
    if found:
        write_s = statistics.median(save.seconds - save.stall_s for save in found)
        return Figure(write_s, "measured", f"median of {counted(len(found), 'save')}")
    if not settings.async_io:
        return Figure(0.0, "assumed", "async_io = False: training waits for all of it")
    return Figure(_written_s(size), "assumed", f"no save on record; {_speed(size)}")


def typical_saves(record: RunRecord | None, settings: RunSettings) -> list[Save]:
    """Without those at the end of an attempt, which nothing has to wait for."""
    if record is None or not settings.async_io:
        return record.saves if record else []
    ends = {attempt.last_step for attempt in record.attempts if attempt.ending}
    return [save for save in record.saves if save.step not in ends]


def _written_s(size: Size | None) -> float:
    return WRITE_S if size is None else max(0.1, size.total_bytes / BYTES_S)


def _speed(size: Size | None) -> str:
    return "its size is unknown" if size is None else units.rate(BYTES_S)


def step_time(record: RunRecord | None) -> Figure:
    """Seconds of a step without saves."""
    if record is None or record.step_s is None:
        return Figure(None, "unknown", "no step on record; --step-time SECONDS states it")
    return Figure(record.step_s, "measured", f"mean of the last {len(record.recent):,} steps")


def failure_interval(record: FailureRecord, world: int | None) -> Figure:
    """Mean seconds between failures of a run on `world` ranks.

    Times of runs on other numbers of ranks count by rank. With fewer failures than ENOUGH the
    assumption counts as one failure beside them: (time on record + assumed) / (failures + 1).
    """
    count = len(record.failures)
    seen_s = record.rank_s / world if world else record.observed_s
    seen = (
        f"{counted(count, 'failure')} in {units.duration(seen_s)} of {counted(record.runs, 'run')}"
    )
    if count >= ENOUGH:
        return Figure(seen_s / count, "measured", seen)
    own_s = min(MTBF_S, MTBF_RANK_S / world) if world else MTBF_S
    if not seen_s:
        return Figure(own_s, "assumed", "no training on record; --mtbf HOURS states it")
    both_s = (seen_s + own_s) / (count + 1)
    return Figure(both_s, "assumed", f"{seen}: too few, so 1 in {units.duration(own_s)} is added")


def detection(record: FailureRecord) -> Figure:
    """Seconds from a run's last step until its failure is noticed."""
    found_s, count = record.detect_s
    if found_s is not None:
        return Figure(found_s, "measured", f"median of {counted(count, 'failure')}")
    return Figure(DETECT_S, "assumed", "no failure on record that was noticed")


def restart(record: FailureRecord) -> Figure:
    """Seconds from then until the first new step."""
    found_s, count = record.restart_s
    if found_s is not None:
        return Figure(found_s, "measured", f"median of {counted(count, 'restart')}")
    return Figure(RESTART_S, "assumed", "no restart on record")
