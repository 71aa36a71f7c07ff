"""An hour of a simulated cluster to test alerts with, and one incident of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.model.samples import Sample, Tick
from dashboards.simulation.cluster import GPUS, NODES, Cluster
from dashboards.simulation.faults import Incident

BEGIN_S = 1795270000.0  # of every recording and state that tests make

TEN = (
    Incident("power_drop", 4, 3, 300, 480),
    Incident("clock_step", 5, 0, 600, 900, size=2.5),
    Incident("link_errors", 11, 0, 960, 1200, size=12),
    Incident("throttle", 9, 6, 1260, 1500),
    Incident("ecc", 20, 1, 1560, 3600, size=2),
    Incident("xid", 13, 5, 1860, 3600, size=74),
    Incident("disk_filling", 14, 0, 2100, 2500),
    Incident("stalled_steps", 1, 0, 2580, 2760),
    Incident("wandb_unsent", 1, 0, 2880, 3060, size=240),
    Incident("node_dead", 17, 0, 3180, 3420, size=10),
)
"""One of each kind that an alert exists for, apart from each other, within an hour."""


def hour(
    incidents: Sequence[Incident] = (),
    *,
    seed: int = 0,
    nodes: int = NODES,
    gpus: int = GPUS,
    begin_s: float = BEGIN_S,
    seconds: int = 3600,
) -> Iterator[list[Sample]]:
    """One list a second to test alerts with: records of the run, readings of nodes, the time."""
    cluster = Cluster(
        began_s=begin_s, incidents=incidents, nodes=nodes, gpus=gpus, seed=seed, first_step=2500
    )
    for second in range(seconds):
        at_s = begin_s + second
        yield [*cluster.until(at_s), *cluster.readings(at_s), Tick(at_s)]
