"""The guards of a run, as the step and the loop ask them; which ones there are is configuration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.config.load import Config
from trainer.data.plan.buckets import Bucket
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.engine.agreement import agreed
from trainer.engine.base import Engine
from trainer.errors import Diverged
from trainer.guards.norm_history import NormHistory
from trainer.guards.rollback import MOST as MOST_ROLLBACKS
from trainer.guards.rollback import Back, RollBack
from trainer.guards.skips import MOST, WINDOW, Skip, SkipGuard
from trainer.guards.spikes import SpikeGuard
from trainer.journal import Journal
from trainer.optim.norms import square_sum
from trainer.runlog.telemetry import StepRecord

FILE = "guards.json"  # of a checkpoint
_SHARE = 8  # a kind counts in a step from 1/8 of its microbatches on
_HINT = "resume from the newest checkpoint with a smaller lr; "


class Guards:
    """What is asked before and after each step. All answers are the same on all ranks."""

    def __init__(self, config: Config, plan: DataPlan, journal: Journal) -> None:
        self._of_plan, self._journal = StepKinds(plan), journal
        self._skips = SkipGuard(NormHistory(config.guard_z)) if config.guard_skip else None
        self._spikes = SpikeGuard() if config.guard_rollback else None
        self._kinds: tuple[str, ...] = ()
        self._tries, self._point = 0, 0  # see RollBack

    def begin(self, cursor: Cursor, microbatches: int) -> float | None:
        """The largest gradient norm that the step which ends at `cursor` may have, or None where
        any is taken; `microbatches` are those of all ranks."""
        self._kinds = self._of_plan.before(cursor, microbatches)
        return self._skips.begin(self._kinds) if self._skips is not None else None

    def is_skipped(self, norm: float) -> bool:
        """Whether the device has left out the update of the step that has begun."""
        return self._skips is not None and self._skips.is_skipped(norm)

    def end(self, record: StepRecord) -> None:
        """Take the step into account and report it when it was skipped. Raises `RollBack` for a
        spike that stays and for too many skipped steps, or `Diverged` where the run may not go
        back; both on all ranks."""
        if self._tries and record.step > self._point:
            self._tries = 0
        skips = self._skips
        if skips is not None and (skip := skips.end(record.step, record.grad_norm)) is not None:
            self._journal.event("skip", skip.text, step=skip.step, **_data(skip, skips.count))
            if skips.is_exceeded:
                steps = skips.skipped
                shown = f"{', '.join(map(str, steps[:-1]))} and {steps[-1]}"
                text = f"the steps {shown} are skipped, more than {MOST} in {WINDOW} steps"
                hint = f"{_HINT}--guard-skip false takes every step whose gradients are finite"
                self._go_back(steps[0], record.step, text, hint)
        elif self._spikes is not None:
            values = {"loss": record.loss, "grad_norm": record.grad_norm}
            if (spike := self._spikes.end(record.step, self._kinds, values)) is not None:
                hint = f"{_HINT}--guard-rollback false trains on"
                self._go_back(spike.first, spike.last, spike.text, hint)

    def _go_back(self, first: int, last: int, text: str, hint: str) -> None:
        if self._spikes is None:
            raise agreed(Diverged(f"{text}; all ranks stop", hint=hint))
        if self._tries >= MOST_ROLLBACKS:
            text = f"{text}; {self._tries} rollbacks did not get past step {self._point}"
            raise agreed(Diverged(f"{text}; all ranks stop", hint=hint))
        asked = RollBack(text)
        asked.first, asked.tries = first, self._tries + 1
        asked.point = max(self._point, last) if self._tries else last
        raise agreed(asked)

    def went_back(self, back: Back) -> None:
        """Count the rollback that this run begins with."""
        self._tries, self._point = back.tries, back.point

    def state_dict(self) -> dict[str, Any]:
        """Plain data, which later steps do not change."""
        return {
            "schema": 1,
            "skips": self._skips.state_dict() if self._skips else None,
            "spikes": self._spikes.state_dict() if self._spikes else None,
            "rollbacks": {"tries": self._tries, "point": self._point},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the steps of a checkpoint. Raises ValueError naming what is damaged."""
        for name, guard in (("skips", self._skips), ("spikes", self._spikes)):
            before = state.get(name)
            if guard is not None and before is not None:
                if not isinstance(before, Mapping):
                    raise ValueError(name)
                guard.load_state_dict(before)
        back = state.get("rollbacks", {"tries": 0, "point": 0})
        if not isinstance(back, Mapping):
            raise ValueError("rollbacks")
        tries, point = back.get("tries"), back.get("point")
        if not isinstance(tries, int) or not isinstance(point, int):
            raise ValueError("rollbacks")
        self._tries, self._point = tries, point


def _data(skip: Skip, count: int) -> dict[str, Any]:
    """Of the event; JSON has no infinity and no NaN."""
    norm = skip.norm if math.isfinite(skip.norm) else str(skip.norm)
    return {"grad_norm": norm, "limit": skip.limit, "kinds": list(skip.kinds), "skips": count}


def kind_of(bucket: Bucket) -> str:
    """`360p 51f` for all ratios of 51 frames at 360p."""
    return f"{bucket.resolution} {bucket.frames}f"


def counted(kinds: Sequence[str]) -> tuple[str, ...]:
    """Of the kinds of a step's microbatches [M], those that count, sorted; the most frequent ones
    where none has an eighth."""
    counts = Counter(kinds)
    least = min(len(kinds) / _SHARE, max(counts.values(), default=0))
    return tuple(sorted(kind for kind, count in counts.items() if count >= least))


class StepKinds:
    """The kinds of microbatches of any step of a plan: by these its gradient norm is compared with
    those of other steps.

    A kind is a resolution at one length, all aspect ratios together: they cost the same, so the
    plan puts them into the same steps. The kinds follow from the data plan and the place in it,
    which are equal on all ranks; what one rank trains on itself is not asked.

    Steps whose ranks have different buckets: a step is of every kind that an eighth or more of its
    microbatches have. Its norm counts as one of each of these kinds, and it is judged by the
    largest of their limits. The gradient of a step is the mean of its microbatches' gradients, so
    its norm is at most the mean of the parts' norms by their shares (triangle inequality), and this
    at most the largest of them: a mixture of usual parts does not exceed the largest limit. A part
    below an eighth would need more than 50 times the norm of the others to bring the step to 8
    times its median.
    """

    def __init__(self, plan: DataPlan) -> None:
        self._plan = plan
        self._names = [kind_of(bucket) for bucket in plan.buckets.cells]

    def before(self, cursor: Cursor, microbatches: int) -> tuple[str, ...]:
        """Of the step of so many microbatches, over all ranks, that ends at this cursor."""
        first = max(0, cursor.consumed - microbatches)
        cells = self._plan.epoch(cursor.epoch).cells[first : cursor.consumed]
        return counted([self._names[cell] for cell in cells.tolist()])


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
