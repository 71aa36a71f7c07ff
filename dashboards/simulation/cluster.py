"""A simulated cluster and the run on it: readings second by second, with incidents. Pure.

Everything is a function of the time and the seed, so a frozen clock gives the same picture each
time. Times of incidents count from `began_s`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dashboards.model.samples import Clock, EventSample, Feed, Sample, StepSample, Tick
from dashboards.simulation import healthy
from dashboards.simulation.faults import Incident, apply_faults, unsent
from dashboards.simulation.healthy import CHECKPOINT_S, CHECKPOINT_STEPS, GPUS, NODES
from trainer.runlog.telemetry import Event, StepRecord

OF_RUN = ("stalled_steps", "wandb_unsent", "throttle")  # kinds that change the whole run
HISTORY_S = 150  # seconds of readings before the first drain
RUN_S = 12_000  # the run began this long before
# In seconds since the feed was started.
STORY = (
    Incident("throttle", 4, 3, -120, 140, every_s=600),
    Incident("node_dead", 3, 0, -100, math.inf),
    Incident("gpu_lost", 8, 6, -129, math.inf),  # it was there before, so it is known to be missing
    Incident("node_silent", 17, 0, -271, -196, every_s=240),
    Incident("link_errors", 11, 0, -100, 150, size=12, every_s=900),
    Incident("disk_filling", 14, 0, 20, 560, every_s=1500),
    Incident("clock_step", 5, 0, 40, 240, size=2.5, every_s=1200),
    Incident("ecc", 20, 1, 90, 500, size=2, every_s=1300),
    Incident("xid", 13, 5, 150, 600, size=74, every_s=1400),
    Incident("power_drop", 22, 2, 270, 400, every_s=1600),
    Incident("wandb_unsent", begin_s=200, end_s=400, size=240, every_s=1000),
    Incident("stalled_steps", begin_s=420, end_s=495, every_s=1800),
)


class Cluster:
    """`until` is asked with times in growing order, `readings` with any."""

    def __init__(
        self,
        *,
        began_s: float,
        incidents: Sequence[Incident],
        nodes: int = NODES,
        gpus: int = GPUS,
        seed: int = 0,
        first_step: int = 1,
        run_s: float = 0.0,
    ) -> None:
        """The run began `run_s` before the cluster, with `first_step`."""
        self.began_s = began_s
        self.nodes = healthy.names(nodes)
        self._gpus, self._run_s, self._first_step = gpus, run_s, first_step
        self._seed = 100_003 * seed
        self._by_kind: dict[str, list[Incident]] = defaultdict(list)
        self._by_node: dict[int, list[Incident]] = defaultdict(list)
        for incident in incidents:
            self._by_kind[incident.kind].append(incident)
            if incident.kind not in OF_RUN:
                self._by_node[incident.node].append(incident)
        self._records = self._run()
        self._next = next(self._records, None)

    def _draw(self, source: float) -> Callable[[float], float]:
        return functools.partial(noise, self._seed + source)

    def until(self, at_s: float) -> list[Sample]:
        """What the run wrote up to `at_s`, each once."""
        samples = []
        while self._next is not None and self._next[0] <= at_s:
            samples.append(self._next[1])
            self._next = next(self._records, None)
        return samples

    def _there(self, kind: str, at_s: float) -> Incident | None:
        found = (one for one in self._by_kind[kind] if one.since(at_s - self.began_s) is not None)
        return next(found, None)

    def _run(self) -> Iterator[tuple[float, Sample]]:
        """(time, sample) of the run in order of time."""
        at_s = self.began_s - self._run_s
        for sample in healthy.opening(self.nodes, self._gpus, at_s):
            yield at_s, sample
        was_slow, unsent_s = False, -math.inf
        for step in range(self._first_step, healthy.STEPS_TOTAL + 1):
            throttled = self._there("throttle", at_s)
            if throttled and not was_slow:
                where = f"{self.nodes[throttled.node - 1]} GPU {throttled.gpu}"
                mhz = f"from {healthy.SM_MHZ:,.0f} to {healthy.THROTTLED_MHZ:.0f} MHz"
                event = Event(
                    "incident", f"{where}: clocks fell {mhz} (HW slowdown)", step=step, time_s=at_s
                )
                yield at_s, EventSample(event, at_s)
            was_slow = throttled is not None
            record = self._record(step, at_s, throttled)
            stalled = self._there("stalled_steps", record.time_s)
            if stalled:
                # The step that is under way ends when the cause does.
                lasted_s = stalled.since(record.time_s - self.began_s) or 0.0
                step_s = record.step_s + (stalled.end_s - stalled.begin_s - lasted_s)
                record = replace(record, step_s=step_s, time_s=at_s + step_s)
            at_s += record.step_s
            untaken = self._there("wandb_unsent", at_s)
            if untaken and at_s - unsent_s > untaken.end_s - untaken.begin_s:
                unsent_s = at_s
                yield at_s, unsent(int(untaken.size), step, at_s)
            yield at_s, StepSample(record, at_s)
            if step % CHECKPOINT_STEPS == 0:
                at_s += CHECKPOINT_S
                yield at_s, healthy.checkpoint(step, at_s)

    def _record(self, step: int, at_s: float, throttled: Incident | None) -> StepRecord:
        slowest = (throttled.node - 1) * self._gpus + throttled.gpu if throttled else None
        draw, places = self._draw(step), itertools.count(1)
        ranks = len(self.nodes) * self._gpus
        return healthy.step_record(step, at_s, ranks, lambda: draw(next(places)), waits_for=slowest)

    def readings(self, at_s: float) -> Iterator[Sample]:
        """A sample of each node that reports at `at_s`."""
        passed_s = at_s - self.began_s
        throttled = self._there("throttle", at_s)
        dip = self._draw(at_s // 4)(9) if throttled else None
        waits = self._there("stalled_steps", at_s) is not None
        # About once in 100 steps, as the run's own records have it.
        saves = (passed_s + 240) % (CHECKPOINT_STEPS * healthy.STEP_S + CHECKPOINT_S) < CHECKPOINT_S
        for number, name in enumerate(self.nodes, 1):
            slow = throttled.gpu if throttled and throttled.node == number else None
            gpu = functools.partial(healthy.gpu, at_s=at_s, dip=dip, waits=waits, saves=saves)
            gpus = tuple(
                gpu(index, draw=self._draw(number * 64 + index), throttled=index == slow)
                for index in range(self._gpus)
            )
            first_rank = (number - 1) * self._gpus
            sample = healthy.reading(name, at_s, self._draw(number), passed_s, gpus, first_rank)
            since = [(one, one.since(passed_s)) for one in self._by_node[number]]
            faulty = apply_faults(sample, [(one, at) for one, at in since if at is not None])
            if faulty is not None:
                yield faulty


def noise(a: float, b: float) -> float:
    """0 to 1, the same for the same numbers."""
    value = (int(a * 8191) * 2654435761 + int(b * 127) * 40503 + 12345) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 2246822519) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 3266489917) & 0xFFFFFFFF
    return (value ^ (value >> 16)) / 0xFFFFFFFF


class DemoFeed(Feed):
    """24 nodes of 8 GPUs in trouble, for screenshots and tests; `clock` may stand still.

    GPU 3 of node 004 is throttled for some minutes and the whole run waits for it; node 003 does
    not answer, node 008 has lost a GPU, node 017 falls silent every few minutes. Within the first
    minutes follow the other incidents of STORY; each occurs again later.
    """

    source = "demo"

    def __init__(self, *, clock: Clock, nodes: int = NODES, gpus: int = GPUS) -> None:
        self._clock, self._gpus = clock, gpus
        self.nodes = healthy.names(nodes)
        self._now_s = 0.0
        self._second: int | None = None  # of the newest readings

    def start(self) -> None:
        self._cluster = Cluster(
            began_s=self._clock(),
            incidents=STORY,
            nodes=len(self.nodes),
            gpus=self._gpus,
            run_s=RUN_S,
        )

    def now(self) -> float:
        """The time of the last drain: simulating the past takes a while and must not age it."""
        return self._now_s or self._clock()

    def drain(self) -> list[Sample]:
        now = self._now_s = self._clock()
        samples = self._cluster.until(now)
        second, before = math.floor(now), self._second
        for past in range(second - HISTORY_S if before is None else before + 1, second + 1):
            samples += self._cluster.readings(float(past))
            if before is None:
                samples.append(Tick(float(past)))  # the fleet's history needs the time to pass
        self._second = second
        return samples
