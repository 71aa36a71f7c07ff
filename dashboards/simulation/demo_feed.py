"""An invented cluster for looking around, screenshots and tests: 24 nodes of 8 GPUs in trouble.

Everything is a function of the time, so a frozen clock gives the same picture each time. The story:
GPU 3 of node 004 is throttled for some minutes and the whole run waits for it; node 003 does not
answer, node 008 has lost a GPU, node 017 falls silent every few minutes. Within the first minutes
come one after the other: errors of a link, a disk that fills, a clock that jumps, uncorrected
memory errors, an Xid, a GPU that waits, W&B that takes no figures, a run that stalls; each again
later.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from dashboards.model.samples import Clock, EventSample, Gpu, NodeSample, Sample, StepSample, Tick
from dashboards.simulation import healthy
from dashboards.simulation.faults import Incident, no_banner, spoil, unsent
from dashboards.simulation.healthy import (
    CHECKPOINT_S,
    CHECKPOINT_STEPS,
    GPUS,
    NODES,
    STEP_S,
    STEPS_TOTAL,
)
from trainer.runlog.telemetry import Event, StepRecord

HISTORY_S = 150  # seconds of readings before the first look
RUN_S = 12_000  # the run began this long before
CYCLE_S = 600
FLOPS = 2.4e17  # of a step
SLOW_RANK = 27  # GPU 3 of node 004
# In seconds since the first look; what comes again does so in its own rhythm.
STORY = (
    Incident("link_errors", 11, 0, -100, 150, size=12, every_s=900),
    Incident("disk_filling", 14, 0, 20, 560, every_s=1500),
    Incident("clock_step", 5, 0, 40, 240, size=2.5, every_s=1200),
    Incident("ecc", 20, 1, 90, 500, size=2, every_s=1300),
    Incident("xid", 13, 5, 150, 600, size=74, every_s=1400),
    Incident("power_drop", 22, 2, 270, 400, every_s=1600),
)
UNSENT_S, UNSENT_EVERY_S = 200, 1000
STALL_S, STALLED_FOR_S, STALL_EVERY_S = 420, 75, 1800


class DemoFeed:
    """A cluster and its run; `clock` may stand still."""

    def __init__(self, *, clock: Clock, nodes: int = NODES, gpus: int = GPUS) -> None:
        self._clock = clock
        self._gpus = gpus
        self.nodes = healthy.names(nodes)
        self.source = "demo"
        self._began_s = 0.0
        self._now_s = 0.0
        self._read_s: int | None = None  # last second that was given out
        self._steps: Iterator[tuple[float, Sample]] = iter(())
        self._held: tuple[float, Sample] | None = None

    def start(self) -> None:
        self._began_s = self._clock()
        self._steps = self._run()

    def now(self) -> float:
        """The time of the last drain: inventing the past takes a while and must not age it."""
        return self._now_s or self._clock()

    def settled(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held open."""

    def drain(self) -> list[Sample]:
        now = self._now_s = self._clock()
        samples = list(self._steps_until(now))
        first = self._read_s is None
        begin = math.floor(now) - HISTORY_S if self._read_s is None else self._read_s + 1
        for second in range(begin, math.floor(now) + 1):
            samples += self._readings(float(second), initial=first)
            if first:  # the fleet's history needs the time to pass
                samples.append(Tick(float(second)))
            self._read_s = second
        return samples

    def _steps_until(self, now: float) -> Iterator[Sample]:
        while True:
            if self._held is None:
                self._held = next(self._steps, None)
            if self._held is None or self._held[0] > now:
                return
            yield self._held[1]
            self._held = None

    def _since_start(self, at_s: float) -> float:
        return at_s - self._began_s

    def _throttled(self, at_s: float) -> bool:
        """Node 004's GPU 3 is slow from two minutes before the first look, then off and on."""
        return (self._since_start(at_s) + 120) % CYCLE_S < 260

    def _silent(self, at_s: float) -> bool:
        return (self._since_start(at_s) + 31) % 240 < 75

    def _stalled(self, at_s: float) -> float:
        """Seconds that the run still waits; 0 while it does not."""
        since = self._since_start(at_s) - STALL_S
        return max(0.0, STALLED_FOR_S - since % STALL_EVERY_S) if since >= 0 else 0.0

    def _run(self) -> Iterator[tuple[float, Sample]]:
        at_s = self._began_s - RUN_S
        for sample in healthy.opening(self.nodes, self._gpus, at_s):
            yield at_s, sample
        ranks = len(self.nodes) * self._gpus
        was_slow, unsent_s = False, UNSENT_S
        for step in range(1, STEPS_TOTAL + 1):
            slow = self._throttled(at_s) and at_s > self._began_s - HISTORY_S
            if slow and not was_slow:
                text = "ml-64-node-004 GPU 3: clocks fell from 1,980 to 345 MHz (HW slowdown)"
                yield at_s, EventSample(Event("incident", text, step=step, time_s=at_s), at_s)
            was_slow = slow
            record = self._record(step, at_s, slow, ranks)
            left_s = self._stalled(at_s + record.step_s)
            if left_s:
                record = replace(
                    record, step_s=record.step_s + left_s, time_s=record.time_s + left_s
                )
            at_s += record.step_s
            if self._since_start(at_s) >= unsent_s:
                unsent_s += UNSENT_EVERY_S
                yield at_s, unsent(240, step, at_s)
            if at_s > self._clock() + 3600:
                at_s = max(at_s, self._clock())  # nobody looks that far ahead
            yield at_s, StepSample(record, at_s)
            if step % CHECKPOINT_STEPS == 0:
                at_s += CHECKPOINT_S
                yield at_s, healthy.checkpoint(step, at_s)

    def _record(self, step: int, at_s: float, slow: bool, ranks: int) -> StepRecord:
        waits_for = SLOW_RANK if slow else None
        record = healthy.step_record(step, at_s, ranks, _draws(step), waits_for=waits_for)
        return replace(record, flops=FLOPS)

    def _readings(self, at_s: float, initial: bool) -> Iterator[Sample]:
        since = self._since_start(at_s)
        for number, name in enumerate(self.nodes, 1):
            if number == 3 and since >= -100:
                yield no_banner(name, at_s)
                continue
            if number == 17 and self._silent(at_s):
                continue
            gpus = tuple(
                self._gpu(number, index, at_s)
                for index in range(self._gpus)
                # it was there in the beginning, so it is known to be missing
                if not (number == 8 and index == 6 and since > -130)
            )
            sample = self._reading(number, name, at_s, gpus)
            found = ((one, one.since(since)) for one in STORY if one.node == number)
            troubles = [(one, lasted) for one, lasted in found if lasted is not None]
            spoilt = spoil(sample, troubles, 1.0) if troubles else sample
            if spoilt is not None:
                yield spoilt

    def _reading(self, number: int, name: str, at_s: float, gpus: tuple[Gpu, ...]) -> NodeSample:
        now = noise(number, at_s)
        first = (number - 1) * self._gpus
        since = self._since_start(at_s)
        return healthy.reading(
            name,
            at_s,
            cpu=now,
            load=noise(number, at_s // 20),
            memory=noise(number, 3),
            network=now,
            clock=noise(number, 5),
            link=now,
            passed_s=since,
            gpus=gpus,
            processes=healthy.processes(
                self._gpus,
                first_rank=first,
                first_pid=88_120 + first,
                age_s=RUN_S + since // 60 * 60,
            ),
        )

    def _gpu(self, number: int, index: int, at_s: float) -> Gpu:
        seed = number * 64 + index
        throttled = self._throttled(at_s)
        saves = self._checkpointing(at_s)
        gpu = healthy.gpu(
            index,
            own_w=42 * noise(seed, 0),
            warmth=noise(seed, 1),
            memory=noise(seed, 2),
            now=noise(seed, at_s),
            air=noise(seed, at_s // 10),
            dip=noise(at_s // 4, 9) if throttled else None,
            waits=self._stalled(at_s) > 0,
            saves=saves,
        )
        if throttled and number == 4 and index == 3:
            return replace(
                gpu,
                power_w=178 + 6 * noise(seed, at_s),
                temperature_c=76.0 if saves else 84.0,
                sm_mhz=345.0,
                throttle="hw thermal slowdown",
            )
        return gpu

    def _checkpointing(self, at_s: float) -> bool:
        """About once in 100 steps, as the run's own records have it."""
        return (self._since_start(at_s) + 240) % (100 * STEP_S + CHECKPOINT_S) < CHECKPOINT_S


def _draws(step: int) -> Callable[[], float]:
    """One figure after the other, the same for the same step."""
    places = itertools.count(1)
    return lambda: noise(step, next(places))


def noise(a: float, b: float) -> float:
    """0 to 1, the same for the same numbers."""
    value = (int(a * 8191) * 2654435761 + int(b * 127) * 40503 + 12345) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 2246822519) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 3266489917) & 0xFFFFFFFF
    return (value ^ (value >> 16)) / 0xFFFFFFFF
