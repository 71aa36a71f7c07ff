"""A simulated cluster to look around in, for screenshots and tests: 24 nodes of 8 GPUs in trouble.

GPU 3 of node 004 is throttled for some minutes and the whole run waits for it; node 003 does not
answer, node 008 has lost a GPU, node 017 falls silent every few minutes. Within the first minutes
follow errors of a link, a disk that fills, a clock that jumps, uncorrected memory errors, an Xid, a
GPU that waits, W&B that takes no figures, a run that stalls; each occurs again later.
"""

from __future__ import annotations

import math

from dashboards.model.samples import Clock, Sample, Tick
from dashboards.simulation import healthy
from dashboards.simulation.cluster import Cluster
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import GPUS, NODES

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


class DemoFeed:
    """The cluster and its run; `clock` may stand still."""

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

    def settled(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held open."""

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
