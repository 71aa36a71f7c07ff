"""No checkpoint of weights or an average that are not finite: asked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.engine.agreement import agreed
from trainer.engine.base import Engine
from trainer.errors import Diverged
from trainer.optim.norms import square_sum


def require_finite(engine: Engine, step: int, average: Mapping[str, Tensor]) -> None:
    """Raises `Diverged` on all ranks when the trained weights or their average, of which each rank
    holds its parts, have an element on any rank that is not finite (collective). It reads 8
    bytes of each weight that this rank holds; AdamW's update reads 16."""
    weights = [master for _, master in engine.master_params()]
    parts = {"weights": weights, "averaged weights": list(average.values())}
    sums = [square_sum(tensors, engine.device) for tensors in parts.values()]
    (mine,) = engine.read(torch.stack(sums))
    columns = zip(*engine.gather(mine), strict=True)
    for name, values in zip(parts, columns, strict=True):
        bad = [str(rank) for rank, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            text = f"the {name} of step {step} are not finite on rank {', '.join(bad)}"
            hint = "resume from the newest checkpoint"
            raise agreed(Diverged(f"{text}; all ranks stop; nothing of it is saved", hint=hint))
