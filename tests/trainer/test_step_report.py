"""The record of a step is that of all ranks together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from trainer.config.load import Config
from trainer.data.plan.buckets import Buckets
from trainer.engine.step_figures import StepFigures
from trainer.step_report import BANDS, StepReport, by_time

BUCKETS = Buckets.parse({"144p": {1: (1.0, 2), 51: (1.0, 2)}})
LONG = [cell for cell, bucket in enumerate(BUCKETS.cells) if bucket.frames == 51]
SHORT = [cell for cell, bucket in enumerate(BUCKETS.cells) if bucket.frames == 1]


def report(**changes: Any) -> StepReport:
    about: dict[str, Any] = {"is_sharded": True, "on_device": False, "first": 10, "attempt": 2}
    return StepReport(Config(log_every=2), BUCKETS, **{**about, "peak_flops": 100.0, **changes})


def rank(**figures: Any) -> StepFigures:
    given: dict[str, Any] = {
        "loss": 1.0,
        "losses": (1.0, 1.0),
        "by_time": (0.0,) * 2 * BANDS,
        "samples": 4,
        "tokens": 100,
        "flops": 50.0,
        "square": 9.0,
        "step_s": 2.0,
        "own_s": 1.0,
    }
    return StepFigures(**{**given, **figures})


def record(made: StepReport, ranks: list[StepFigures], cells: Any, step: int = 11) -> Any:
    more = {"steps_total": 20, "epoch": 0, "lr": 0.1, "skipped": False, "bucket": "", "decay": 0.9}
    return made.record(ranks, np.array(cells), step=step, **more)


def test_what_ranks_exchange_comes_back_as_it_was() -> None:
    one = rank(by_time=tuple(range(2 * BANDS)), losses=(0.25, 0.5, 0.75), stop=True)
    assert StepFigures.of(one.numbers(), 3) == one


def test_losses_are_by_bucket_whatever_the_ratio_and_by_time_over_all_ranks() -> None:
    ranks = [
        rank(losses=(1.0, 3.0), by_time=(2.0, 0.0, 0.0, 6.0, 2.0, 0.0, 0.0, 2.0)),
        rank(losses=(2.0, 5.0), by_time=(1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2.0)),
    ]
    found = record(report(), ranks, [[SHORT[0], LONG[0]], [SHORT[5], LONG[3]]])
    assert found.loss_by_bucket == {"144p 1f": 1.5, "144p 51f": 4.0}
    assert found.loss_by_time == {"0-250": 1.0, "750-1000": 1.75}


@pytest.mark.parametrize(("is_sharded", "weights"), [(True, math.sqrt(18)), (False, 3.0)])
def test_ratios_are_of_the_whole_weights(is_sharded: bool, weights: float) -> None:
    ranks = [rank(moved=0.01, apart=0.04), rank(moved=0.01, apart=0.04)]
    found = record(report(is_sharded=is_sharded), ranks, [SHORT[:2]] * 2)
    of_all = 2 if is_sharded else 1
    assert found.weight_norm == pytest.approx(weights)
    assert found.update_ratio == pytest.approx(math.sqrt(0.01 * of_all) / weights)
    assert found.ema_gap == pytest.approx(0.9 * math.sqrt(0.04 * of_all) / weights)


def test_what_was_not_measured_or_is_not_known_is_none() -> None:
    ranks = [rank(moved=math.nan, apart=math.nan)] * 2
    found = record(report(peak_flops=None), ranks, [SHORT[:2]] * 2)
    assert found.update_ratio is found.ema_gap is found.mfu is None
    assert found.memory_reserved_bytes is None
    assert found.loss_by_time == {}


def test_speeds_are_those_of_all_ranks_on_the_slowest_one() -> None:
    ranks = [rank(), rank(step_s=4.0, bad=2)]
    made = report()
    found = record(made, ranks, [SHORT[:2]] * 2)
    assert (found.samples_per_s, found.tokens_per_s, found.bad_clips) == (2.0, 50.0, 2)
    assert found.mfu == pytest.approx(100.0 / (100.0 * 2 * 4.0))
    assert (found.acc_step, found.attempt) == (1, 2)
    later = record(made, [rank(loss=3.0), rank(loss=5.0)], [SHORT[:2]] * 2, step=12)
    assert (later.loss, later.avg_loss) == (4.0, 2.5)
    last = record(made, [rank(loss=math.nan), rank()], [SHORT[:2]] * 2, step=13)
    assert last.avg_loss == 2.5  # of finite ones


def test_bands_add_up_in_fp64_and_the_ends_are_in_them() -> None:
    losses, times = torch.tensor([0.1, 0.2, 0.4, 0.8]), torch.tensor([0.0, 249.9, 250.0, 1000.0])
    found = by_time(losses.clone().requires_grad_(), times, 1000)
    assert found.dtype == torch.float64
    assert not found.requires_grad
    sums = [float(losses[0].double() + losses[1].double()), float(losses[2]), 0.0, float(losses[3])]
    assert found.tolist() == [pytest.approx(sums), [2.0, 1.0, 0.0, 1.0]]
