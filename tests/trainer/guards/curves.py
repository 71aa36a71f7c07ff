"""Gradient norms of healthy runs, simulated: heavy tails, buckets of several levels, trends, warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainer.config.load import load
from trainer.data.plan.buckets import Buckets
from trainer.guards.guards import counted, kind_of

STAGES = [f"stage{number}" for number in range(1, 8)]
PARTS = 24  # of a step, each of one kind; the recipe has 192 ranks


@dataclass(frozen=True)
class Curve:
    """What a healthy stage's norms are like; the numbers are harder than any published curve."""

    spread: float = 0.5  # standard deviation of the norm's natural logarithm
    levels: float = 3.0  # norms of the kinds differ by up to this factor
    trend: float = 3.0  # over the run the norm falls, or rises, by this factor
    warm_up: int = 400  # steps in which the norm falls from 20 times its level


def stage_kinds(stage: str) -> list[str]:
    config = load(stage, [])
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    return sorted({kind_of(bucket) for bucket in buckets.cells if bucket.batch_size})


def simulate(
    stage: str, steps: int, curve: Curve, seed: int
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Kinds and norm of each step. Two of five steps are mixtures of two or three kinds, with
    norms between those of their parts; frequencies of kinds differ by a factor of 30."""
    draw = np.random.default_rng(seed)
    kinds = stage_kinds(stage)
    often = np.exp(draw.uniform(0, np.log(30), len(kinds)))
    often /= often.sum()
    level = np.exp(draw.uniform(0, np.log(curve.levels), len(kinds)))
    rising = draw.random() < 0.5
    several = draw.choice([1, 2, 3], size=steps, p=[0.6, 0.3, 0.1]).tolist()
    parts_of = draw.choice(len(kinds), size=(steps, 3), p=often)
    shares_of = np.sort(draw.integers(0, PARTS + 1, (steps, 2)), axis=1)
    noise = np.exp(curve.spread * draw.standard_normal(steps))
    at = np.arange(steps)
    slow = curve.trend ** (at / steps * (1 if rising else -1))
    begin = 1 + 19 * np.exp(-5 * at / curve.warm_up)
    for step, count in enumerate(several):
        first, last = (PARTS, PARTS) if count == 1 else shares_of[step].tolist()
        shares = (first, (last if count == 3 else PARTS) - first, PARTS - last if count == 3 else 0)
        parts = parts_of[step].tolist()
        mean = sum(level[part] * share for part, share in zip(parts, shares, strict=True)) / PARTS
        names = [
            kinds[part] for part, share in zip(parts, shares, strict=True) for _ in range(share)
        ]
        yield counted(names), float(mean * slow[step] * begin[step] * noise[step])
