"""The microbatches of clips that are kept for validation: the same in every run of these data.

Which clips are kept is decided by a hash of their paths, what becomes of them by their content ids:
neither changes with the seed of a run, nor with rows that are added to the manifest later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Ints, Keys
from trainer.data.plan.data_plan import DataPlan, EpochPlan, path_hashes
from trainer.errors import ConfigError

_SEED = 0  # not the run's: runs with other seeds are measured on the same clips


@dataclass(eq=False)
class HeldOutPlan(DataPlan):
    """Each epoch is the first one: up to `clips` clips of each bucket, by content id, so that a
    larger share or more of them keeps those that were there."""

    clips: int = 64

    def keys(self, rows: Ints) -> Keys:
        return self.content_ids[rows]

    def _make(self, epoch: int) -> EpochPlan:
        ids = self.content_ids
        cells = self.buckets.assign(self.manifest, _SEED, 0, self.frame_interval, ids)
        cells[~self.held_out_rows] = -1
        orders: dict[int, Ints] = {}
        parts: list[tuple[int, int, int]] = []  # cell, first, size
        for cell in np.unique(cells[cells >= 0]).tolist():
            rows = np.flatnonzero(cells == cell)
            orders[cell] = rows[np.argsort(ids[rows], kind="stable")]
            size = self.buckets.cells[cell].batch_size
            count = min(self.clips, len(rows))
            # A shape that training does not have would be compiled for these alone.
            whole = count - count % size if count >= size else count
            parts += [(cell, first, min(size, whole)) for first in range(0, whole, size)]
        columns = np.array(parts, np.int64).reshape(-1, 3).T
        return EpochPlan(epoch, orders, *columns)


def held_out_of(plan: DataPlan, clips: int) -> HeldOutPlan:
    """What a run that trains on `plan` is validated on: up to so many clips of each bucket."""
    held_out = HeldOutPlan(plan.manifest, plan.buckets, _SEED, plan.frame_interval, clips=clips)
    held_out.held_out_rows, held_out.content_ids = plan.held_out_rows, plan.content_ids
    return held_out


def all_of(manifest: Manifest, plan: DataPlan, clips: int) -> HeldOutPlan:
    """As `held_out_of`, with all clips of a manifest of their own. Raises ConfigError where a run
    that trains on `plan` has some of them."""
    shared = np.isin(path_hashes(manifest), path_hashes(plan.manifest))
    if shared.any():
        first = manifest.paths[int(shared.argmax())]
        text = f"{shared.sum():,} clips of {manifest.source} are in {plan.manifest.source}, too"
        hint = "validation.share keeps clips of the training data"
        raise ConfigError(f"{text}, first {first}: they would be trained on", hint=hint)
    own = HeldOutPlan(manifest, plan.buckets, _SEED, plan.frame_interval, clips=clips)
    own.held_out_rows = np.ones(len(manifest), bool)
    return own
