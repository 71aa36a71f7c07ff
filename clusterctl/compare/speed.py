"""How fast two runs trained: time of a step by phase and bucket, rates, utilisation. Pure.

Steps are counted without the first one of each start, which compiles and fills caches. Buckets take
different times, so medians are of each bucket, and those of several buckets are weighted by how
often A took them, for both runs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.compare.read import Run
from clusterctl.compare.windows import Middle, middle
from trainer.runlog.telemetry import PHASES

WINDOWS = 20
STEP, OTHER = "step", "other"


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one run, over its steps that count. None: not on record."""

    clips_per_s: float | None
    tokens_per_s: float | None
    idle_share: float | None
    flops_s: float | None  # of one rank
    mfu: float | None
    memory_bytes: float | None  # the largest
    world: int
    ettr: float | None
    restarts: int
    incidents: Mapping[str, int]  # by class, most frequent first


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds in A and in B. None: not on record."""

    a: float | None
    b: float | None

    @property
    def change(self) -> float | None:
        """0.05: B takes 5 % longer."""
        return None if self.a is None or self.b is None or not self.a else self.b / self.a - 1


@dataclass(frozen=True, slots=True)
class Speed:
    """Of two runs. `slowdown` is of rank-seconds per clip, the median of windows; 0.05 is 5 %."""

    phases: Mapping[str, Timing]  # with "step" (without saves) first
    buckets: Mapping[str, Timing]  # of a step without saves
    steps: tuple[int, int]  # counted here
    slowdown: Middle | None
    why: str = ""  # why there is no slowdown


def rates(run: Run) -> Rates:
    """What one run achieved while it trained."""
    columns, chosen = run.columns, _steady(run)
    taken_s = math.fsum(columns["step_s"][i] for i in chosen)
    totals = {name: _total(columns[name], chosen) for name in ("samples", "tokens", "flops")}
    rank_s = math.fsum(columns["step_s"][i] * columns["world"][i] for i in chosen)
    flops_s = totals["flops"] / rank_s if totals["flops"] and rank_s > 0 else None
    idle = [columns["idle_share"][i] for i in chosen if math.isfinite(columns["idle_share"][i])]
    memory = [value for value in columns["memory_bytes"] if math.isfinite(value)]
    worlds = [value for value in columns["world"] if math.isfinite(value)]
    return Rates(
        totals["samples"] / taken_s if totals["samples"] and taken_s else None,
        totals["tokens"] / taken_s if totals["tokens"] and taken_s else None,
        statistics.fmean(idle) if idle else None,
        flops_s,
        flops_s / run.peak_flops if flops_s and run.peak_flops else None,
        max(memory, default=None),
        int(worlds[-1]) if worlds else 0,
        run.ettr,
        run.account.restarts,
        dict(Counter(one.cause for one in run.journal.incidents).most_common()),
    )


def speed(a: Run, b: Run) -> Speed:
    """How B's times compare with A's."""
    own = [_steady(run) for run in (a, b)]
    steps = [_grouped(run, chosen, _step_s) for run, chosen in zip((a, b), own, strict=True)]
    weights = {name: len(values) for name, values in steps[0].items() if name in steps[1]}
    buckets = {
        name or "unknown": Timing(*(_median(group.get(name)) for group in steps))
        for name in sorted({*steps[0], *steps[1]})
    }
    phases = {STEP: Timing(*(_weighted(group, weights) for group in steps))}
    for name in (*PHASES, OTHER):
        groups = [
            _grouped(run, chosen, _phase(name)) for run, chosen in zip((a, b), own, strict=True)
        ]
        timing = Timing(*(_weighted(group, weights) for group in groups))
        if timing.a is not None or timing.b is not None:
            phases[name] = timing
    found, why = _slowdown((a, b), own)
    return Speed(phases, buckets, (len(own[0]), len(own[1])), found, why)


def _steady(run: Run) -> list[int]:
    return [i for i, step in enumerate(run.steps) if step not in run.first_steps]


def _step_s(run: Run, index: int) -> float:
    """Without a save before the step."""
    saving_s = run.columns["checkpoint"][index]
    step_s = run.columns["step_s"][index]
    return max(0.0, step_s - saving_s) if math.isfinite(saving_s) else step_s


def _phase(name: str) -> Callable[[Run, int], float]:
    if name != OTHER:
        return lambda run, index: run.columns[name][index]
    return lambda run, index: (
        run.columns["step_s"][index] - math.fsum(run.columns[one][index] for one in PHASES)
    )


def _per_clip(run: Run, index: int) -> float:
    samples = run.columns["samples"][index]
    ranks = run.columns["world"][index]
    return _step_s(run, index) * ranks / samples if samples > 0 else math.nan


def _grouped(
    run: Run, chosen: Sequence[int], value_of: Callable[[Run, int], float]
) -> dict[str, list[float]]:
    """Finite values by bucket."""
    found: dict[str, list[float]] = {}
    for index in chosen:
        value = value_of(run, index)
        if math.isfinite(value):
            bucket = run.buckets[int(run.columns["bucket"][index])]
            found.setdefault(bucket, []).append(value)
    return found


def _median(values: Sequence[float] | None) -> float | None:
    return statistics.median(values) if values else None


def _weighted(group: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> float | None:
    """The median of each bucket, weighted; None where a bucket has no value."""
    if not weights or not all(group.get(name) for name in weights):
        return None
    total = math.fsum(statistics.median(group[name]) * w for name, w in weights.items())
    return total / math.fsum(weights.values())


def _slowdown(runs: tuple[Run, Run], own: Sequence[Sequence[int]]) -> tuple[Middle | None, str]:
    """The k-th twentieth of A's steps against that of B's, like buckets with like."""
    count = min(WINDOWS, *map(len, own))
    if not count:
        return None, "a run has no step but the first of its starts"
    shares = []
    for k in range(count):
        groups = [
            _grouped(run, part[k * len(part) // count : (k + 1) * len(part) // count], _per_clip)
            for run, part in zip(runs, own, strict=True)
        ]
        common = [name for name in groups[0] if name in groups[1]]
        weights = {name: min(len(group[name]) for group in groups) for name in common}
        one, other = (_weighted(group, weights) for group in groups)
        if one and other is not None:
            shares.append(other / one - 1)
    return (middle(shares), "") if shares else (None, "no bucket of both has a known time per clip")


def _total(values: Sequence[float], chosen: Sequence[int]) -> float:
    """0 where a value is not known: a part of it is no rate."""
    total = math.fsum(values[index] for index in chosen)
    return total if math.isfinite(total) else 0.0
