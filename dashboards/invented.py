"""A cluster that does not exist: its readings second by second and the run on it, from a seed.

The same seed, beginning and incidents give the same samples on every machine. Times of incidents
count from the cluster's beginning.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dashboards.incidents import OF_RUN, Incident, spoil
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
)
from trainer.telemetry import Event, StepRecord

PREFIX = "ml-64-node-"
RUN = "015-STDiT3-XL-2"
STEP_S, SLOW_STEP_S = 4.1, 6.4
STEPS_TOTAL = 7_099
CHECKPOINT_STEPS, CHECKPOINT_S = 100, 14.0
LIMIT_W = 700.0
WAITING_W = 128.0  # a rank that spins in a collective
DOWN_AFTER_S = 10.0  # an alarm follows a silence of this length, as with real nodes
DIALLED_S = 7.0  # a dead node is asked again about this often
DEEP = 256  # random figures a series; one a second, then they begin anew
GIB = 2**30


class Cluster:
    """Ask for seconds in growing order: the run decides when GPUs are busy."""

    def __init__(
        self,
        *,
        began_s: float,
        seed: int = 0,
        nodes: int = 24,
        gpus: int = 8,
        incidents: Sequence[Incident] = (),
        step: int = 1,
    ) -> None:
        """`step` is the one that the run is at when the cluster begins."""
        self.began_s = began_s
        self.nodes = tuple(f"{PREFIX}{index:03d}" for index in range(1, nodes + 1))
        self._gpus = gpus
        self._incidents = tuple(incidents)
        self._first_step = step
        draw = random.Random(seed)
        self._noise = [[draw.random() for _ in range(DEEP)] for _ in range(64)]
        self._own = [[draw.random() for _ in range(4)] for _ in range(nodes * max(1, gpus))]
        self._draw = random.Random(seed + 1)
        self._quiet: list[tuple[float, float, str]] = []  # times when the run does not compute
        self._still = [self._unchanging(number) for number in range(nodes)]
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
        yield at_s, RunOpened(f"outputs/{RUN}", RUN, at_s, self.nodes, (self._gpus,) * len(self.nodes))  # fmt: skip
        text = f"{ranks} ranks on {len(self.nodes)} nodes"
        yield at_s, EventSample(Event("start", text, time_s=at_s), at_s, "journal")
        step, was_slow = self._first_step, False
        unsent_at = -math.inf
        while True:
            passed = at_s - self.began_s
            slow = bool(self._there("throttle", passed))
            if slow and not was_slow:
                yield at_s, EventSample(Event("slow", "steps take 1.6 times as long as before", step=step, time_s=at_s), at_s)  # fmt: skip
            was_slow = slow
            record = self._record(step, at_s, slow, ranks)
            stalled = self._there("stalled_steps", passed + record.step_s)
            if stalled:
                # The step that is under way ends when the cause does.
                wait_s = stalled.end_s - stalled.begin_s - (stalled.since(passed + record.step_s) or 0)  # fmt: skip
                self._quiet.append((at_s + record.step_s / 2, at_s + record.step_s + wait_s, "waits"))  # fmt: skip
                record = replace(record, step_s=record.step_s + wait_s)
            at_s += record.step_s
            record = replace(record, time_s=at_s)
            unsent = self._there("wandb_unsent", at_s - self.began_s)
            if unsent and at_s - unsent_at > unsent.end_s - unsent.begin_s:
                unsent_at = at_s
                count = int(unsent.size)
                event = Event("tracking", f"W&B was too slow for {count} steps", {"unsent": count}, step, at_s)  # fmt: skip
                yield at_s, EventSample(event, at_s)
            yield at_s, StepSample(record, at_s)
            if step % CHECKPOINT_STEPS == 0:
                self._quiet.append((at_s, at_s + CHECKPOINT_S, "saves"))
                at_s += CHECKPOINT_S
                text = f"epoch1-global_step{step} in {CHECKPOINT_S:.0f} s, 18.4 GiB"
                yield at_s, EventSample(Event("checkpoint", text, step=step, time_s=at_s), at_s)
            step += 1

    def _there(self, kind: str, passed: float) -> Incident | None:
        for incident in self._incidents:
            if incident.kind == kind and incident.since(passed) is not None:
                return incident
        return None

    def _record(self, step: int, at_s: float, slow: bool, ranks: int) -> StepRecord:
        noise = self._draw.random
        step_s = (SLOW_STEP_S if slow else STEP_S) * (0.97 + 0.06 * noise())
        bucket = ("720p 4 s 9:16", "360p 16 s 9:16", "image 720p")[int(2.6 * noise())]
        loss = 0.36 + 0.62 * math.exp(-step / 420) + 0.09 * (noise() - 0.5)
        data, encode, optimizer = 0.21 * (0.6 + noise()), 1.10, 0.36
        compute = step_s - data - encode - optimizer - 0.06
        throttled = self._there("throttle", at_s - self.began_s)
        slowest = (throttled.node - 1) * self._gpus + throttled.gpu if throttled else 0
        return StepRecord(
            step=step,
            steps_total=max(STEPS_TOTAL, step),
            epoch=1,
            samples=1520 + round(40 * noise()),
            tokens=9_800_000,
            loss=loss,
            grad_norm=0.6 + 0.3 * noise() + 2.0 * math.exp(-step / 150),
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
            idle_share=(0.36 if slow else 0.04) + 0.02 * noise(),
            slowest_rank=slowest if throttled else int(noise() * ranks),
            bucket=bucket,
            memory_bytes=76_300_000_000,
            world=ranks,
            time_s=at_s + step_s,
        )

    def readings(self, at_s: float, interval_s: float = 1.0) -> list[Sample]:
        """One word of each node that says something at `at_s`; call `until` with the same time first."""
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
                    message = "the server sent no ssh version line within 7 s"
                    samples.append(NodeDown(name, at_s, "banner", message))
        return samples

    def _unchanging(self, number: int) -> tuple[tuple[Process, ...], tuple[Disk, ...]]:
        processes = tuple(
            Process(
                pid=88_120 + index,
                user="trainer",
                name="python3",
                gpu=index,
                memory_bytes=70.2 * GIB,
                run=RUN,
                rank=number * self._gpus + index,
                age_s=6000.0,
            )
            for index in range(self._gpus)
        )
        disks = (Disk("/", 61 * GIB, 440 * GIB), Disk("/data", 0.71 * 7000 * GIB, 7000.0 * GIB))
        return processes, disks

    def _links(self, number: int, at_s: float) -> tuple[Link, ...]:
        drawn = self._noise[number % 64]
        rate = (2.4 + 0.4 * drawn[int(at_s) % DEEP]) * 1e9
        ports = tuple(
            Link(f"mlx5_{port}/1", "ib", "Active", 400.0, rate, rate, 0.0, 0) for port in range(8)
        )
        return (*ports, Link("eth0", "eth", "up", 25.0, 2.1e6, 1.3e6, 0.0, 0))

    def _reading(self, number: int, name: str, at_s: float, quiet: str, slow: bool) -> NodeSample:
        second = int(at_s)
        drawn = self._noise[(7 * number + 3) % 64]
        processes, disks = self._still[number]
        gpus = tuple(self._gpu(number, index, second, quiet, slow) for index in range(self._gpus))
        return NodeSample(
            node=name,
            at_s=at_s,
            cpu=0.19 + 0.05 * drawn[second % DEEP],
            cpus=208,
            load1=36 + 9 * drawn[second // 20 % DEEP],
            memory_used_bytes=(600 + 30 * drawn[3]) * GIB,
            memory_total_bytes=2048 * GIB,
            network_bytes_s=(21 + 4 * drawn[(second + 9) % DEEP]) * 1e9,
            gpus=gpus,
            processes=processes,
            links=self._links(number, at_s),
            disks=disks,
            clock_offset_s=0.0004 * (drawn[5] - 0.5) + 0.0001 * drawn[second // 5 % DEEP],
            clock_bound_s=0.0003,
            clock_step_s=0.0,
            up_s=12.3 * 86400 + at_s - self.began_s,
            driver="565.57.01",
            xids=(),
        )  # fmt: skip

    def _gpu(self, number: int, index: int, second: int, quiet: str, slow: bool) -> Gpu:
        seed = number * self._gpus + index
        own = self._own[seed]
        drawn = self._noise[seed % 64]
        now = drawn[(second + seed) % DEEP]
        power = 652 + 34 * own[0] + 12 * now
        temperature = 55 + 11 * own[1] + 2 * drawn[second // 10 % DEEP]
        util, clock = 1.0 - 0.03 * now, 1980.0
        if quiet == "waits":
            # Spinning in a collective: busy by its own account, and cold.
            power, util, temperature = WAITING_W + 6 * now, 1.0, temperature - 14
        elif quiet == "saves":
            power, util, temperature = 250 + 40 * now, 0.02 + 0.05 * now, temperature - 8
        elif slow:
            # The others wait for the slow one a third of the time.
            power -= 150 * (drawn[second // 4 % DEEP] > 0.7) + 30
        return Gpu(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            power_w=min(LIMIT_W + 4, power),
            power_limit_w=LIMIT_W,
            util=util,
            memory_used_bytes=(70.2 + own[2]) * GIB,
            memory_total_bytes=79.6 * GIB,
            temperature_c=temperature,
            sm_mhz=clock,
            throttle="",
            ecc_errors=0,
            nvlinks=(18, 18),
        )
