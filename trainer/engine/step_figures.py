"""What ranks tell each other about a step, and what all of them conclude from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from trainer.engine.agreement import agreed
from trainer.errors import Diverged


@dataclass(slots=True)
class StepFigures:
    """One rank's step in numbers, which all ranks exchange in one small collective."""

    loss: float = 0.0  # mean over its microbatches
    samples: float = 0
    tokens: float = 0
    flops: float = 0.0
    bad: float = 0  # clips that could not be read
    decoder_bytes: float = 0  # peak of its largest decoding process
    failed: float = False  # it has no batch
    data: float = 0.0  # seconds by phase, see telemetry.PHASES
    encode: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    checkpoint: float = 0.0
    grad_norm: float = 0.0
    square: float = 0.0  # sum of squares of the fp32 weights that it holds
    moved: float = 0.0  # of what the update has changed in them; NaN where it was not measured
    apart: float = 0.0  # of weights minus average, before that follows; NaN likewise
    step_s: float = 0.0
    own_s: float = 0.0  # of them, not in gradient collectives; on a GPU see DeviceClock
    own_forward: float = 0.0  # seconds of the phase without waiting for other ranks; 0 where the
    own_backward: float = 0.0  # engine cannot tell it apart
    asks: float = 0.0  # of rank 0, see `SlowRanks`
    memory_bytes: float = 0
    memory_reserved_bytes: float = 0
    stop: float = False  # it got a signal
    saver: float = 0  # `Saver.status`
    by_time: tuple[float, ...] = ()  # sums of its clips' losses, then their numbers, by band
    losses: tuple[float, ...] = ()  # of its microbatches

    def numbers(self) -> list[float]:
        """As they are exchanged; all ranks have as many."""
        return [*(float(getattr(self, name)) for name in _SINGLE), *self.by_time, *self.losses]

    @classmethod
    def of(cls, numbers: Sequence[float], microbatches: int) -> StepFigures:
        """Of a rank that has exchanged them, with losses of so many `microbatches`."""
        single, end = len(_SINGLE), len(numbers) - microbatches
        lists = (tuple(numbers[single:end]), tuple(numbers[end:]))
        values: Any = (*numbers[:single], *lists)
        return cls(*values)  # by place: by name, 8,000 ranks take 20 ms more


_SINGLE = tuple(one.name for one in fields(StepFigures))[:-2]


def idle_and_slowest(ranks: Sequence[StepFigures], *, on_device: bool) -> tuple[float, int]:
    """Share of time that ranks wait for the slowest one, and which that is.

    On the CPU `own_s` is all of a rank's work, and the share is of the slowest one's. On a GPU it
    is what a rank does before it waits for others, and the share is of the step.
    """
    work_s = [rank.own_s for rank in ranks]
    longest_s = max(work_s)
    if on_device:
        step_s = max(rank.step_s for rank in ranks)
        share = (longest_s - sum(work_s) / len(work_s)) / step_s
    else:
        share = 1 - sum(work_s) / len(work_s) / longest_s
    return share, work_s.index(longest_s)


_NUMBERS = {
    "loss": "the loss of step {} is {}",
    "grad_norm": "the norm of the gradients of step {} is {}",
    "square": "the norm of the weights after step {} is {}",
}


def require_numbers(number: int, ranks: Sequence[StepFigures], is_skipped: bool) -> None:
    """Raises `Diverged` on all ranks before anything that is not finite can be saved. Loss and
    gradients of a step that `is_skipped` have changed nothing."""
    for name, template in _NUMBERS.items():
        if is_skipped and name != "square":
            continue
        values = [getattr(rank, name) for rank in ranks]
        bad = [rank for rank, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            what = f"{template.format(number, values[bad[0]])} on rank {', '.join(map(str, bad))}"
            hint = "resume from the newest checkpoint with a smaller lr or grad_clip"
            raise agreed(Diverged(f"{what}; all ranks stop; this step is not saved", hint=hint))
