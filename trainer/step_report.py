"""The record of a step, from what all ranks have exchanged; `runlog/figures.py` says what is in it.

Rank 0 needs no word of others on their buckets: the plan says which microbatch each rank had.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config.load import Config
from trainer.data.plan.buckets import Buckets, Ints
from trainer.engine.step_figures import StepFigures, idle_and_slowest
from trainer.runlog.figures import StepRecord
from trainer.runlog.telemetry import PHASES

BANDS = 4  # of the times trained on, as of the validation loss

# B clips · K bands


def by_time(losses_B: Tensor, t_B: Tensor, steps: int) -> Tensor:
    """Sums of losses and numbers of clips, fp64 [2, K] on the device, in equal bands of 0 to
    `steps`. Nothing is read: the host does not wait."""
    band_B = (t_B * (BANDS / steps)).long().clamp(0, BANDS - 1)
    in_band_BK = (band_B[:, None] == torch.arange(BANDS, device=t_B.device)).double()
    # no index_add: its sums have no order on a GPU
    sums_K = (losses_B.detach().double()[:, None] * in_band_BK).sum(0)
    return torch.stack([sums_K, in_band_BK.sum(0)])


class StepReport:
    """Makes records of one start of the trainer, on every rank the same."""

    def __init__(
        self,
        config: Config,
        buckets: Buckets,
        *,
        is_sharded: bool,
        on_device: bool,
        first: int,
        attempt: int | None,
        peak_flops: float | None,
    ) -> None:
        """`first` is the last step before this start, `peak_flops` of a GPU where it is known."""
        self._is_sharded, self._on_device = is_sharded, on_device
        self._first, self._attempt, self._peak_flops = first, attempt, peak_flops
        self._losses: deque[float] = deque(maxlen=config.log_every)
        # Ratios of one resolution and length are one: their losses do not differ by it.
        names = [f"{cell.resolution} {cell.frames}f" for cell in buckets.cells]
        self._names = sorted(set(names))
        self._of_cell = np.array([self._names.index(name) for name in names])
        steps = config.scheduler.num_timesteps
        self._bands = [
            f"{band * steps / BANDS:g}-{(band + 1) * steps / BANDS:g}" for band in range(BANDS)
        ]

    def record(
        self, ranks: Sequence[StepFigures], cells: Ints, *, step: int, decay: float, **more: Any
    ) -> StepRecord:
        """`cells` [R, E] are the buckets of each rank's microbatches; `decay` is how much of its
        distance to the weights the average keeps in this step."""
        world = len(ranks)
        step_s, flops = max(rank.step_s for rank in ranks), _sum(ranks, "flops")
        samples, tokens = int(_sum(ranks, "samples")), int(_sum(ranks, "tokens"))
        loss = _sum(ranks, "loss") / world
        if math.isfinite(loss):
            self._losses.append(loss)
        weights, moved, apart = (self._norm(ranks, name) for name in ("square", "moved", "apart"))
        idle_share, slowest_rank = idle_and_slowest(ranks, on_device=self._on_device)
        could = None if self._peak_flops is None else self._peak_flops * world * step_s
        return StepRecord(
            step=step,
            **more,
            samples=samples,
            tokens=tokens,
            flops=flops,
            loss=loss,
            grad_norm=ranks[0].grad_norm,
            step_s=step_s,
            seconds={phase: _sum(ranks, phase) / world for phase in PHASES},
            weight_norm=weights,
            idle_share=idle_share,
            slowest_rank=slowest_rank,
            memory_bytes=_most(ranks, "memory_bytes"),
            memory_reserved_bytes=_most(ranks, "memory_reserved_bytes") or None,
            decoder_bytes=_most(ranks, "decoder_bytes") or None,
            world=world,
            time_s=time.time(),
            acc_step=step - self._first,
            attempt=self._attempt,
            avg_loss=sum(self._losses) / len(self._losses) if self._losses else None,
            loss_by_bucket=self._by_bucket(ranks, cells),
            loss_by_time=self._by_time(ranks),
            update_ratio=_share(moved, weights),
            ema_gap=_share(decay * apart, weights),
            samples_per_s=samples / step_s if step_s > 0 else None,
            tokens_per_s=tokens / step_s if step_s > 0 else None,
            mfu=flops / could if could else None,
            bad_clips=int(_sum(ranks, "bad")),
        )

    def _norm(self, ranks: Sequence[StepFigures], name: str) -> float:
        """Of the whole, where each rank holds a part or each the same; NaN where not measured."""
        squares = [getattr(rank, name) for rank in ranks]
        total = sum(squares) if self._is_sharded else squares[0]
        return math.sqrt(total) if total >= 0 else math.nan

    def _by_bucket(self, ranks: Sequence[StepFigures], cells: Ints) -> dict[str, float]:
        of = self._of_cell[cells].ravel()
        losses = np.array([rank.losses for rank in ranks], np.float64).ravel()
        sums = np.bincount(of, losses, len(self._names)).tolist()
        counts = np.bincount(of, minlength=len(self._names)).tolist()
        named = zip(self._names, sums, counts, strict=True)
        return {name: total / count for name, total, count in named if count}

    def _by_time(self, ranks: Sequence[StepFigures]) -> dict[str, float]:
        sums = np.array([rank.by_time for rank in ranks], np.float64).sum(0).tolist()
        named = zip(self._bands, sums[:BANDS], sums[BANDS:], strict=True)
        return {band: total / clips for band, total, clips in named if clips}


def _sum(ranks: Sequence[StepFigures], name: str) -> float:
    return float(sum(getattr(rank, name) for rank in ranks))


def _most(ranks: Sequence[StepFigures], name: str) -> int:
    return int(max(getattr(rank, name) for rank in ranks))


def _share(part: float, whole: float) -> float | None:
    return part / whole if math.isfinite(part) and whole > 0 else None
