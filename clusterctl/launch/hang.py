"""Detects a run that takes no step, and which rank it waits for, before it is stopped."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.jobs.processes import Pick
from clusterctl.launch.plan import LaunchPlan, Timing
from clusterctl.launch.run_dir import next_place
from clusterctl.remote.cluster import Cluster
from clusterctl.stacks.diagnose import Diagnosis, diagnose
from clusterctl.stacks.verdict import VerdictKind
from trainer.runlog import telemetry

RECENT = 100  # steps whose longest one says what is long for this run
PATIENCE = 5.0  # times that: the safety factor of nvidia-resiliency-ext over what it has seen
SAVING = 3.0  # times the limit while a rank saves: the first save has no precedent
HANGS = (VerdictKind.HANG, VerdictKind.DESYNC, VerdictKind.ALL_SAME, VerdictKind.DATA)
SPARE_S = 1.0  # of the limit: to judge and write what has arrived


@dataclass(slots=True)
class StepClock:
    """Time of a run without a sign of a step. Pure; times are monotonic seconds.

    Signs are the records of rank 0: steps, and events such as a checkpoint; and a heartbeat of a
    later step than all before, since rank 0 may be out of reach. Other heartbeats are none: a rank
    that beats while the others wait for it takes no step.
    """

    timing: Timing
    since_s: float  # of the start, later of the newest sign
    step: telemetry.StepRecord | None = None
    beat_step: int = 0  # the latest of all ranks' heartbeats
    is_saving: bool = False  # a rank's heartbeat is in the phase checkpoint
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def heard(self, record: telemetry.Record, now: float) -> None:
        if isinstance(record, telemetry.StepRecord):
            if self.step is not None:
                self.lengths.append(now - self.since_s)
            self.step = record
        if self.step is not None:  # one limit covers all that is before the first step
            self.since_s = now

    def beaten(self, step: int, now: float) -> None:
        if step > self.beat_step:
            self.beat_step = step
            if self.step is not None:
                self.since_s = now

    def slept(self, seconds: float) -> None:
        """The head itself was stopped: messages of that time have not arrived yet."""
        self.since_s += seconds

    @property
    def limit_s(self) -> float:
        """0: none."""
        if self.step is None:
            return self.timing.start_s
        if not self.timing.hang_s:
            return 0.0
        usual_s = max(self.timing.hang_s, PATIENCE * max(self.lengths, default=0.0))
        return usual_s * (SAVING if self.is_saving else 1.0)

    def is_late(self, now: float) -> bool:
        return 0 < self.limit_s < now - self.since_s

    def sentence(self) -> str:
        if self.step is None:
            return f"no step within {units.duration(self.limit_s)} of the start"
        last = f"the last was {self.step.step} of {self.step.steps_total}"
        return f"no step for {units.duration(self.limit_s)}; {last}"

    @property
    def hint(self) -> str:
        option = "--start-timeout" if self.step is None else "--hang-timeout"
        return f"{option} SECONDS allows more"


def why_hung(clock: StepClock, beating: Collection[int], world_size: int) -> str:
    """Since when no step has come, and which ranks never showed a heartbeat."""
    why = clock.sentence()
    silent = [str(rank) for rank in range(world_size) if rank not in beating]
    if not silent or not beating:
        return why
    more = " …" if len(silent) > 8 else ""
    return f"{why}; rank {', '.join(silent[:8])}{more} never showed a heartbeat"


class Inspection:
    """Stacks of all ranks, judged and written, in a separate thread.

    Nobody waits for it longer than `limit_s`: the fault may hang this as well. What is missing when
    `is_over` is None.
    """

    def __init__(self, plan: LaunchPlan, cluster: Cluster) -> None:
        self.limit_s = plan.timing.look_s
        self.diagnosis: Diagnosis | None = None
        self.folder: Path | None = None  # of all stacks
        self.error: str | None = None
        self._started_s = time.monotonic()
        self._done, self._unwanted = threading.Event(), threading.Event()
        # Nodes get half of the time for their dumps, and answer or are silent before its end.
        half_s = min(cluster.limits.command_s, self.limit_s / 2)
        limits = replace(cluster.limits, command_s=half_s, run_s=max(0.5, self.limit_s - SPARE_S))
        args = (plan, replace(cluster, limits=limits))
        threading.Thread(target=self._work, args=args, name="stacks", daemon=True).start()

    def _work(self, plan: LaunchPlan, cluster: Cluster) -> None:
        try:
            self.diagnosis = diagnose(cluster, Pick((plan.run_id,)))
            if not self._unwanted.is_set():
                folder = next_place(plan.run_dir / "stacks", "hang")
                self.diagnosis.write(folder)
                self.folder = folder
        except Exception as error:  # noqa: BLE001 - thread boundary: the stop reports it
            self.error = f"{type(error).__name__}: {error}"
        self._done.set()

    def is_over(self, now: float) -> bool:
        return self._done.is_set() or now - self._started_s >= self.limit_s

    def close(self) -> None:
        """Write no stacks from now on. The thread ends by its own limits."""
        self._unwanted.set()
        if not self._done.is_set() and self.error is None:
            what = "no verdict" if self.diagnosis is None else "stacks not written"
            self.error = f"{what} within {units.duration(self.limit_s)}"

    @property
    def headline(self) -> str:
        """One line: who is waited for, or why that is unknown."""
        if self.diagnosis is None:
            return f"UNKNOWN: the ranks could not be looked at ({self.error})"
        verdict = self.diagnosis.verdict
        return f"{verdict.headline} ({verdict.confidence} confidence)"

    @property
    def culprit(self) -> int | None:
        suspects = self.diagnosis.verdict.suspects if self.diagnosis else []
        return suspects[0].rank if suspects else None

    @property
    def is_sure(self) -> bool:
        """Whether a rank hangs rather than takes long; then a longer limit would not help."""
        return self.diagnosis is not None and self.diagnosis.verdict.kind in HANGS

    def to_json(self, run_dir: Path) -> dict[str, Any]:
        """Its part of a line of incidents.jsonl; paths are relative to the run directory."""
        found = self.diagnosis
        return {
            "headline": self.headline,
            "verdict": found.verdict.to_json() if found else None,
            "clues": [asdict(clue) for clue in found.clues] if found else [],
            "silent": [node.name for node in found.snapshot.silent] if found else [],
            "stacks": str(self.folder.relative_to(run_dir)) if self.folder else None,
            "error": self.error,
            "seconds": round(time.monotonic() - self._started_s, 3),
        }
