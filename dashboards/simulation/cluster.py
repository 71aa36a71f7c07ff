"""A cluster that does not exist: its readings second by second and the run on it, from a seed.

The same seed, beginning and incidents give the same samples on every machine. Times of incidents
count from the cluster's beginning.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dashboards.model.samples import EventSample, Gpu, NodeSample, Sample, StepSample
from dashboards.simulation import healthy
from dashboards.simulation.faults import OF_RUN, Incident, no_banner, spoil, unsent
from dashboards.simulation.healthy import CHECKPOINT_S, CHECKPOINT_STEPS
from trainer.runlog.telemetry import Event, StepRecord

DOWN_AFTER_S = 10.0  # an alarm follows a silence of this length, as with real nodes
DIALLED_S = 7.0  # a dead node is asked again about this often
DEEP = 256  # random figures a series; one a second, then they begin anew


class Cluster:
    """Ask for seconds in growing order: the run decides when GPUs are busy."""

    def __init__(
        self,
        *,
        began_s: float,
        seed: int = 0,
        nodes: int = healthy.NODES,
        gpus: int = healthy.GPUS,
        incidents: Sequence[Incident] = (),
        step: int = 1,
    ) -> None:
        """`step` is the one that the run is at when the cluster begins."""
        self.began_s = began_s
        self.nodes = healthy.names(nodes)
        self._gpus = gpus
        self._incidents = tuple(incidents)
        self._first_step = step
        draw = random.Random(seed)
        self._noise = [[draw.random() for _ in range(DEEP)] for _ in range(64)]
        self._own = [[draw.random() for _ in range(4)] for _ in range(nodes * max(1, gpus))]
        self._draw = random.Random(seed + 1)
        self._quiet: list[tuple[float, float, str]] = []  # times when the run does not compute
        self._processes = [
            healthy.processes(gpus, first_rank=number * gpus, first_pid=88_120, age_s=6000.0)
            for number in range(nodes)
        ]
        self._records = self.run()
        self._held = next(self._records)

    def until(self, at_s: float) -> list[Sample]:
        """What the run wrote up to `at_s`, each once."""
        samples: list[Sample] = []
        while self._held[0] <= at_s:
            samples.append(self._held[1])
            self._held = next(self._records)
        return samples

    def run(self) -> Iterator[tuple[float, Sample]]:
        """(time, sample) of the run, without end."""
        at_s = self.began_s
        ranks = len(self.nodes) * self._gpus
        for sample in healthy.opening(self.nodes, self._gpus, at_s):
            yield at_s, sample
        step, was_slow = self._first_step, False
        unsent_at = -math.inf
        while True:
            passed = at_s - self.began_s
            throttled = self._there("throttle", passed)
            slow = throttled is not None
            if slow and not was_slow:
                yield (
                    at_s,
                    EventSample(
                        Event(
                            "slow", "steps take 1.6 times as long as before", step=step, time_s=at_s
                        ),
                        at_s,
                    ),
                )
            was_slow = slow
            record = self._record(step, at_s, throttled, ranks)
            stalled = self._there("stalled_steps", passed + record.step_s)
            if stalled:
                # The step that is under way ends when the cause does.
                wait_s = (
                    stalled.end_s - stalled.begin_s - (stalled.since(passed + record.step_s) or 0)
                )
                self._quiet.append(
                    (at_s + record.step_s / 2, at_s + record.step_s + wait_s, "waits")
                )
                record = replace(record, step_s=record.step_s + wait_s)
            at_s += record.step_s
            record = replace(record, time_s=at_s)
            deaf = self._there("wandb_unsent", at_s - self.began_s)
            if deaf and at_s - unsent_at > deaf.end_s - deaf.begin_s:
                unsent_at = at_s
                yield at_s, unsent(int(deaf.size), step, at_s)
            yield at_s, StepSample(record, at_s)
            if step % CHECKPOINT_STEPS == 0:
                self._quiet.append((at_s, at_s + CHECKPOINT_S, "saves"))
                at_s += CHECKPOINT_S
                yield at_s, healthy.checkpoint(step, at_s)
            step += 1

    def _there(self, kind: str, passed: float) -> Incident | None:
        for incident in self._incidents:
            if incident.kind == kind and incident.since(passed) is not None:
                return incident
        return None

    def _record(self, step: int, at_s: float, throttled: Incident | None, ranks: int) -> StepRecord:
        slowest = (throttled.node - 1) * self._gpus + throttled.gpu if throttled else None
        return healthy.step_record(step, at_s, ranks, self._draw.random, waits_for=slowest)

    def readings(self, at_s: float, interval_s: float = 1.0) -> list[Sample]:
        """A sample of each node that reports at `at_s`; call `until` with the same time first."""
        passed = at_s - self.began_s
        found: dict[int, list[tuple[Incident, float]]] = {}
        for incident in self._incidents:
            since = incident.since(passed)
            if since is not None and incident.kind not in OF_RUN:
                found.setdefault(incident.node, []).append((incident, since))
        while self._quiet and self._quiet[0][1] <= at_s:
            del self._quiet[0]
        quiet = self._quiet[0][2] if self._quiet and self._quiet[0][0] <= at_s else ""
        slow = bool(self._there("throttle", passed))
        samples: list[Sample] = []
        for number, name in enumerate(self.nodes):
            sample = self._reading(number, name, at_s, quiet, slow)
            troubles = found.get(number + 1)
            if troubles is None:
                samples.append(sample)
                continue
            spoilt = spoil(sample, troubles, interval_s)
            if spoilt is not None:
                samples.append(spoilt)
                continue
            for incident, since in troubles:
                asked = since >= DOWN_AFTER_S and (since - DOWN_AFTER_S) % DIALLED_S < interval_s
                if incident.kind == "node_dead" and asked:
                    samples.append(no_banner(name, at_s))
        return samples

    def _reading(self, number: int, name: str, at_s: float, quiet: str, slow: bool) -> NodeSample:
        second = int(at_s)
        drawn = self._noise[(7 * number + 3) % 64]
        return healthy.reading(
            name,
            at_s,
            cpu=drawn[second % DEEP],
            load=drawn[second // 20 % DEEP],
            memory=drawn[3],
            network=drawn[(second + 9) % DEEP],
            clock=drawn[5],
            drift=drawn[second // 5 % DEEP],
            link=self._noise[number % 64][second % DEEP],
            passed_s=at_s - self.began_s,
            gpus=tuple(self._gpu(number, i, second, quiet, slow) for i in range(self._gpus)),
            processes=self._processes[number],
        )

    def _gpu(self, number: int, index: int, second: int, quiet: str, slow: bool) -> Gpu:
        seed = number * self._gpus + index
        own = self._own[seed]
        drawn = self._noise[seed % 64]
        return healthy.gpu(
            index,
            own_w=34 * own[0],
            warmth=own[1],
            memory=own[2],
            now=drawn[(second + seed) % DEEP],
            air=drawn[second // 10 % DEEP],
            dip=drawn[second // 4 % DEEP] if slow else None,
            waits=quiet == "waits",
            saves=quiet == "saves",
        )
