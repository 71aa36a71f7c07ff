"""How often runs failed, how long each failure was not noticed, and how long a restart took."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clusterctl.checkpoints.records import Attempt, RunRecord, Sign

MOST_TEXTS = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that took steps and ended badly."""

    run: str  # name of the run directory
    time_s: float  # unix time when it was noticed; of its last record where nothing says so
    text: str
    detect_s: float | None  # from its last step to that time; None where nothing says so
    restart_s: float | None  # from then to the first step of the next attempt; None without one


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Failures of some runs and the training time in which they happened."""

    failures: tuple[Failure, ...] = ()
    observed_s: float = 0.0  # wall time of all attempts
    rank_s: float = 0.0  # the same times ranks: more machines fail more often
    runs: int = 0
    failed_starts: int = 0  # ended before their first step: not counted, they lose no work
    texts: tuple[str, ...] = field(default=())  # of the newest failures

    @property
    def detect_s(self) -> tuple[float | None, int]:
        """Median, and of how many."""
        return _median(failure.detect_s for failure in self.failures)

    @property
    def restart_s(self) -> tuple[float | None, int]:
        """Median, and of how many."""
        return _median(failure.restart_s for failure in self.failures)


def failures_of(runs: Sequence[RunRecord], now_s: float) -> FailureRecord:
    """What is on record in these runs. `now_s` is unix time: the newest attempt may still run."""
    found: list[Failure] = []
    observed_s = rank_s = 0.0
    starts = 0
    for run in runs:
        for index, attempt in enumerate(run.attempts):
            following = run.attempts[index + 1] if index + 1 < len(run.attempts) else None
            if attempt.steps:
                took_s = max(0.0, attempt.last_s - attempt.began_s)
                observed_s += took_s
                rank_s += took_s * attempt.world
            is_bad, signs = _ended_badly(run, attempt, following, now_s)
            if is_bad and not attempt.steps:
                starts += 1
            elif is_bad:
                found.append(_failure(run, attempt, following, signs))
    found.sort(key=lambda failure: failure.time_s)
    texts = tuple(f"{one.run}: {one.text}" for one in found[-MOST_TEXTS:])
    return FailureRecord(tuple(found), observed_s, rank_s, len(runs), starts, texts)


def _ended_badly(
    run: RunRecord, attempt: Attempt, following: Attempt | None, now_s: float
) -> tuple[bool, list[Sign]]:
    """Whether it did, and what the launcher wrote about it."""
    until_s = following.began_s if following is not None else float("inf")
    signs = [sign for sign in run.signs if attempt.began_s <= sign.time_s < until_s]
    if attempt.ending in ("done", "stopped", "rollback") or any(sign.is_users for sign in signs):
        return False, signs
    if attempt.ending == "failed" or following is not None or signs:
        return True, signs
    return run.state(now_s) == "failed", signs


def _failure(
    run: RunRecord, attempt: Attempt, following: Attempt | None, signs: Sequence[Sign]
) -> Failure:
    noticed = [sign for sign in signs if sign.time_s >= attempt.last_s] or list(signs)
    # The launcher's incident comes with its failure: the first of them is when it was noticed.
    times = [sign.time_s for sign in noticed[:1]]
    times += [attempt.ended_s] if attempt.ended_s is not None else []
    at_s = min(times, default=None)
    text = noticed[0].text if noticed else attempt.text or "it ended without a record"
    detect_s = None if at_s is None else max(0.0, at_s - attempt.last_s)
    restart_s = None
    if following is not None and following.first_step_s is not None:
        since_s = attempt.last_s if at_s is None else max(at_s, attempt.last_s)
        restart_s = max(0.0, following.first_step_s - since_s)
    lines = text.strip().splitlines()
    said = lines[0] if lines else "no reason on record"
    return Failure(run.run_dir.name, at_s or attempt.last_s, said, detect_s, restart_s)


def _median(values: Iterable[float | None]) -> tuple[float | None, int]:
    known = [value for value in values if value is not None]
    return (statistics.median(known), len(known)) if known else (None, 0)
