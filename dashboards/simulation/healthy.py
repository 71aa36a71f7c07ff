"""Readings of a healthy cluster of H100 nodes and records of the training on it. Pure.

`cluster` draws the random figures, each 0 to 1, and `faults` changes the readings.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

from dashboards.model import units
from dashboards.model.samples import Disk, EventSample, Gpu, Link, NodeSample, Process, RunOpened
from trainer.runlog.checkpoint_name import checkpoint_name
from trainer.runlog.telemetry import Event, StepRecord

NODES, GPUS = 24, 8
PREFIX = "ml-64-node-"
RUN = "015-STDiT3-XL-2"
STEP_S, SLOW_STEP_S = 4.1, 6.4  # the second while all wait for one rank
STEPS_TOTAL = 7_099
FLOPS = 2.4e17  # of a step
CHECKPOINT_STEPS, CHECKPOINT_S = 100, 14.0
LIMIT_W = 700.0
WAITING_W = 128.0  # a rank that spins in a collective
SM_MHZ, THROTTLED_MHZ = 1980.0, 345.0
GIB = 2**30
DISKS = (Disk("/", 61 * GIB, 440 * GIB), Disk("/data", 0.71 * 7000 * GIB, 7000.0 * GIB))


def names(nodes: int = NODES) -> tuple[str, ...]:
    """The nodes, in the hostfile's order."""
    return tuple(f"{PREFIX}{number:03d}" for number in range(1, nodes + 1))


def opening(nodes: tuple[str, ...], gpus: int, at_s: float) -> Iterator[RunOpened | EventSample]:
    yield RunOpened(f"outputs/{RUN}", RUN, at_s, nodes, (gpus,) * len(nodes))
    text = f"{len(nodes) * gpus} ranks on {len(nodes)} nodes"
    yield EventSample(Event("start", text, time_s=at_s), at_s, "journal")


def step_record(
    step: int, at_s: float, ranks: int, draw: Callable[[], float], *, waits_for: int | None = None
) -> StepRecord:
    """A step that begins at `at_s`; `waits_for` is the rank that slows all others down."""
    slow = waits_for is not None
    step_s = (SLOW_STEP_S if slow else STEP_S) * (0.97 + 0.06 * draw())
    bucket = ("720p 4 s 9:16", "360p 16 s 9:16", "image 720p")[int(2.6 * draw())]
    loss = 0.36 + 0.62 * math.exp(-step / 420) + 0.09 * (draw() - 0.5)
    data, encode, optimizer = 0.21 * (0.6 + draw()), 1.10, 0.36
    compute = step_s - data - encode - optimizer - 0.06
    seconds = {"data": data, "encode": encode, "forward": compute * 0.34}
    seconds |= {"backward": compute * 0.66, "optimizer": optimizer}
    return StepRecord(
        step=step,
        steps_total=max(STEPS_TOTAL, step),
        epoch=1,
        samples=1520 + round(40 * draw()),
        tokens=9_800_000,
        loss=loss,
        grad_norm=0.6 + 0.3 * draw() + 2.0 * math.exp(-step / 150),
        lr=2.0e-4 * min(1.0, step / 1000),
        step_s=step_s,
        seconds=seconds,
        weight_norm=1204.0 + step / 100,
        idle_share=(0.36 if slow else 0.04) + 0.02 * draw(),
        slowest_rank=int(draw() * ranks) if waits_for is None else waits_for,
        bucket=bucket,
        flops=FLOPS,
        memory_bytes=76_300_000_000,
        world=ranks,
        time_s=at_s + step_s,
    )


def checkpoint(step: int, at_s: float) -> EventSample:
    """A checkpoint that is written at `at_s`, CHECKPOINT_S after its step."""
    text = f"{checkpoint_name(1, step)} in {units.duration(CHECKPOINT_S)}, 18.4 GiB"
    return EventSample(Event("checkpoint", text, step=step, time_s=at_s), at_s)


Draw = Callable[[float], float]
"""A random figure, 0 to 1: the same for the same number. 0 to 9 are drawn once, a time at it."""


def reading(
    name: str, at_s: float, draw: Draw, passed_s: float, gpus: tuple[Gpu, ...], first_rank: int
) -> NodeSample:
    """A node's reading `passed_s` after the cluster began."""
    now = draw(at_s)
    rate = (2.4 + 0.4 * now) * 1e9
    ports = (Link(f"mlx5_{port}/1", "ib", "Active", 400.0, rate, rate, 0.0, 0) for port in range(8))
    return NodeSample(
        node=name,
        at_s=at_s,
        cpu=0.19 + 0.05 * now,
        cpus=208,
        load1=36 + 9 * draw(at_s // 20),
        memory_used_bytes=(600 + 30 * draw(3)) * GIB,
        memory_total_bytes=2048 * GIB,
        network_bytes_s=(21 + 4 * now) * 1e9,
        gpus=gpus,
        processes=processes(len(gpus), first_rank, 12_000 + passed_s // 60 * 60),
        links=(*ports, Link("eth0", "eth", "up", 25.0, 2.1e6, 1.3e6, 0.0, 0)),
        disks=DISKS,
        clock_offset_s=0.0004 * (draw(5) - 0.5),
        clock_bound_s=0.0003,
        clock_step_s=0.0,
        up_s=12.3 * 86_400 + passed_s,
        driver="565.57.01",
        xids=(),
    )


@functools.lru_cache(maxsize=2048)
def processes(gpus: int, first_rank: int, age_s: float) -> tuple[Process, ...]:
    """A rank on each GPU of a node; the same objects while nothing changes, as from real nodes."""
    used = 70.2 * GIB
    return tuple(
        Process(88_120 + rank, "trainer", "python3", index, used, RUN, rank, age_s)
        for index, rank in enumerate(range(first_rank, first_rank + gpus))
    )


def gpu(
    index: int,
    at_s: float,
    draw: Draw,
    *,
    dip: float | None,
    waits: bool,
    saves: bool,
    throttled: bool,
) -> Gpu:
    """One GPU of the run.

    `dip` is drawn while all wait for a slow rank. It `waits` in a collective, or the run `saves` a
    checkpoint, or it is the slow one, `throttled`.
    """
    now = draw(at_s)
    power = 652 + 42 * draw(0) + 12 * now
    temperature = 55 + 11 * draw(1) + 2 * draw(at_s // 10)
    util, mhz = 1.0 - 0.03 * now, SM_MHZ
    if dip is not None:
        # The others wait for the slow one a third of the time.
        power -= 150 * (dip > 0.7) + 30
    if waits:
        # Spinning in a collective: busy by its own account, and cold.
        power, util, temperature = WAITING_W + 6 * now, 1.0, temperature - 14
    elif saves:
        power, util = 250 + 40 * now, 0.02 + 0.05 * now
    if saves:
        temperature -= 8
    if throttled:
        power, temperature, mhz = 178 + 6 * now, 76.0 if saves else 84.0, THROTTLED_MHZ
    return Gpu(
        index=index,
        name="NVIDIA H100 80GB HBM3",
        power_w=min(LIMIT_W + 4, power),
        power_limit_w=LIMIT_W,
        util=util,
        memory_used_bytes=(70.2 + draw(2)) * GIB,
        memory_total_bytes=79.6 * GIB,
        temperature_c=temperature,
        sm_mhz=mhz,
        throttle="hw thermal" if throttled else "",
        ecc_errors=0,
        nvlinks=(18, 18),
    )
