"""An invented cluster for looking around, screenshots and tests: 24 nodes of 8 GPUs in trouble.

Everything is a function of the time, so a frozen clock gives the same picture each time. The story:
GPU 3 of node 004 is throttled for some minutes and the whole run waits for it; node 003 does not
answer, node 008 has lost a GPU, node 017 falls silent every few minutes. Within the first minutes
come one after the other: errors of a link, a disk that fills, a clock that jumps, uncorrected memory
errors, an Xid, a GPU that waits, W&B that takes no figures, a run that stalls; each again later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dashboards.feeds import Clock
from dashboards.incidents import Incident, spoil
from dashboards.samples import (
    Disk,
    EventSample,
    Gpu,
    Link,
    NodeDown,
    NodeSample,
    Process,
    RunOpened,
    Sample,
    StepSample,
    Tick,
)
from trainer.telemetry import Event, StepRecord

NODES, GPUS = 24, 8
PREFIX = "ml-64-node-"
HISTORY_S = 150  # seconds of readings before the first look
RUN_S = 12_000  # the run began this long before
STEP_S, SLOW_STEP_S = 4.1, 6.4
STEPS_TOTAL = 7_099
CHECKPOINT_STEPS, CHECKPOINT_S = 100, 14.0
CYCLE_S = 600
LIMIT_W = 700.0
RUN = "015-STDiT3-XL-2"
GIB = 2**30
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
        self.nodes = tuple(f"{PREFIX}{index:03d}" for index in range(1, nodes + 1))
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
        opened = RunOpened(
            f"outputs/{RUN}",
            RUN,
            at_s,
            self.nodes,
            (self._gpus,) * len(self.nodes),
        )
        yield at_s, opened
        ranks = len(self.nodes) * self._gpus
        text = f"{ranks} ranks on {len(self.nodes)} nodes"
        yield at_s, EventSample(Event("start", text, time_s=at_s), at_s, "journal")
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
                text = "W&B was too slow for 240 steps"
                event = Event("tracking", text, {"unsent": 240}, step, at_s)
                yield at_s, EventSample(event, at_s)
            if at_s > self._clock() + 3600:
                at_s = max(at_s, self._clock())  # nobody looks that far ahead
            yield at_s, StepSample(record, at_s)
            if step % CHECKPOINT_STEPS == 0:
                at_s += CHECKPOINT_S
                text = f"epoch1-global_step{step} in {CHECKPOINT_S:.0f} s, 18.4 GiB"
                yield at_s, EventSample(Event("checkpoint", text, step=step, time_s=at_s), at_s)

    def _record(self, step: int, at_s: float, slow: bool, ranks: int) -> StepRecord:
        step_s = (SLOW_STEP_S if slow else STEP_S) * (0.97 + 0.06 * noise(step, 1))
        bucket = ("720p 4 s 9:16", "360p 16 s 9:16", "image 720p")[int(2.6 * noise(step, 2))]
        loss = 0.36 + 0.62 * math.exp(-step / 420) + 0.09 * (noise(step, 3) - 0.5)
        data, encode = 0.21 * (0.6 + noise(step, 4)), 1.10
        optimizer = 0.36
        compute = step_s - data - encode - optimizer - 0.06
        return StepRecord(
            step=step,
            steps_total=STEPS_TOTAL,
            epoch=1,
            samples=1520 + round(40 * noise(step, 5)),
            tokens=9_800_000,
            flops=2.4e17,
            loss=loss,
            grad_norm=0.6 + 0.3 * noise(step, 6) + 2.0 * math.exp(-step / 150),
            lr=2.0e-4 * min(1.0, step / 1000),
            step_s=step_s,
            seconds={
                "data": data,
                "encode": encode,
                "forward": compute * 0.34,
                "backward": compute * 0.66,
                "optimizer": optimizer,
            },
            weight_norm=1204.0 + step / 100,
            idle_share=(0.36 if slow else 0.04) + 0.02 * noise(step, 7),
            slowest_rank=27 if slow else int(noise(step, 8) * ranks),
            bucket=bucket,
            memory_bytes=76_300_000_000,
            world=ranks,
            time_s=at_s + step_s,
        )

    def _readings(self, at_s: float, initial: bool) -> Iterator[Sample]:
        since = self._since_start(at_s)
        for number, name in enumerate(self.nodes, 1):
            if number == 3 and since >= -100:
                message = "the server sent no ssh version line within 7 s"
                yield NodeDown(name, at_s, "banner", message)
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
        rate = (2.4 + 0.4 * noise(number, at_s)) * 1e9
        ports = (
            Link(f"mlx5_{port}/1", "ib", "Active", 400.0, rate, rate, 0.0, 0) for port in range(8)
        )
        return NodeSample(
            node=name,
            at_s=at_s,
            cpu=0.19 + 0.05 * noise(number, at_s),
            cpus=208,
            load1=36 + 9 * noise(number, at_s // 20),
            memory_used_bytes=(600 + 30 * noise(number, 3)) * GIB,
            memory_total_bytes=2048 * GIB,
            network_bytes_s=(21 + 4 * noise(number, at_s)) * 1e9,
            gpus=gpus,
            processes=self._processes(number, at_s),
            links=(*ports, Link("eth0", "eth", "up", 25.0, 2.1e6, 1.3e6, 0.0, 0)),
            disks=(Disk("/", 61 * GIB, 440 * GIB), Disk("/data", 0.71 * 7000 * GIB, 7000.0 * GIB)),
            clock_offset_s=0.0004 * (noise(number, 5) - 0.5),
            clock_bound_s=0.0003,
            clock_step_s=0.0,
            up_s=12.3 * 86_400 + self._since_start(at_s),
            driver="565.57.01",
            xids=(),
        )

    def _processes(self, number: int, at_s: float) -> tuple[Process, ...]:
        first = (number - 1) * self._gpus
        age_s = RUN_S + self._since_start(at_s) // 60 * 60
        return tuple(
            Process(88_120 + first + index, "trainer", "python3", index, 70.2 * GIB, RUN, first + index, age_s)
            for index in range(self._gpus)
        )  # fmt: skip

    def _gpu(self, number: int, index: int, at_s: float) -> Gpu:
        seed = number * 64 + index
        busy = not self._checkpointing(at_s)
        power = 652 + 42 * noise(seed, 0) + 12 * noise(seed, at_s)
        temperature = 55 + 11 * noise(seed, 1) + 2 * noise(seed, at_s // 10)
        util, clock = 1.0 - 0.03 * noise(seed, at_s), 1980.0
        if self._throttled(at_s):
            # The others wait for the slow one a third of the time.
            power -= 150 * (noise(at_s // 4, 9) > 0.7) + 30
        if self._stalled(at_s):
            # Spinning in a collective: busy by their own account, and cold.
            power, util, temperature = 128 + 6 * noise(seed, at_s), 1.0, temperature - 14
        elif not busy:
            power, util = 250 + 40 * noise(seed, at_s), 0.02 + 0.05 * noise(seed, at_s)
        slow = number == 4 and index == 3 and self._throttled(at_s)
        if slow:
            power, temperature, clock = 178 + 6 * noise(seed, at_s), 84.0, 345.0
        return Gpu(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            power_w=min(LIMIT_W + 4, power),
            power_limit_w=LIMIT_W,
            util=util,
            memory_used_bytes=(70.2 + noise(seed, 2)) * GIB,
            memory_total_bytes=79.6 * GIB,
            temperature_c=temperature if busy else temperature - 8,
            sm_mhz=clock,
            throttle="hw thermal slowdown" if slow else "",
            ecc_errors=0,
            nvlinks=(18, 18),
        )

    def _checkpointing(self, at_s: float) -> bool:
        """About once in 100 steps, as the run's own records have it."""
        return (self._since_start(at_s) + 240) % (100 * STEP_S + CHECKPOINT_S) < CHECKPOINT_S


def noise(a: float, b: float) -> float:
    """0 to 1, the same for the same numbers."""
    value = (int(a * 8191) * 2654435761 + int(b * 127) * 40503 + 12345) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 2246822519) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 3266489917) & 0xFFFFFFFF
    return (value ^ (value >> 16)) / 0xFFFFFFFF
