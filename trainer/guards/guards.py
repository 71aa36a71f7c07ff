"""The guards of a run, as the step and the loop ask them; which ones there are is configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.config.load import Config
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.engine.agreement import agreed
from trainer.errors import Diverged
from trainer.guards.kinds import StepKinds
from trainer.guards.norm_history import NormHistory
from trainer.guards.rollback import MOST as MOST_ROLLBACKS
from trainer.guards.rollback import Back, RollBack
from trainer.guards.skips import MOST, WINDOW, Skip, SkipGuard
from trainer.guards.spikes import SpikeGuard
from trainer.journal import Journal
from trainer.runlog.telemetry import StepRecord

FILE = "guards.json"  # of a checkpoint
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
