"""An hour of a cluster second by second, healthy or with planted incidents, to test alerts on.

A function makes it, so nothing large is in the repository; `recording.writer` makes a file of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.model.samples import Sample, Tick
from dashboards.simulation.cluster import Cluster
from dashboards.simulation.faults import TEN, Incident
from dashboards.simulation.healthy import GPUS, NODES

BEGIN_S = 1795270000.0


def hour(
    incidents: Sequence[Incident] = (),
    *,
    seed: int = 0,
    nodes: int = NODES,
    gpus: int = GPUS,
    begin_s: float = BEGIN_S,
    seconds: int = 3600,
) -> Iterator[list[Sample]]:
    """One list a second: records of the run, a word of each node, the time last."""
    cluster = Cluster(
        began_s=begin_s, seed=seed, nodes=nodes, gpus=gpus, incidents=incidents, step=2500
    )
    for second in range(seconds):
        at_s = begin_s + second
        yield [*cluster.until(at_s), *cluster.readings(at_s), Tick(at_s)]


def planted_hour(*, seed: int = 0) -> Iterator[list[Sample]]:
    """The hour in which one incident of each kind happens (`incidents.TEN`)."""
    return hour(TEN, seed=seed)
