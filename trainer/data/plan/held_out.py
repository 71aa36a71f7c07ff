"""The microbatches of clips that are kept for validation: the same in every run of these data.

Which clips are kept is decided by a hash of their paths, what becomes of them by their content ids:
neither changes with the seed of a run, nor with rows that are added to the manifest later.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.places import normal, whole_path
from trainer.data.plan.buckets import Ints, Keys
from trainer.data.plan.data_plan import DataPlan, EpochPlan
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
    if shared := _shared(manifest, plan.manifest):
        first = manifest.paths[shared[0]]
        text = f"{len(shared):,} clips of {manifest.source} are in {plan.manifest.source}, too"
        hint = "validation.share keeps clips of the training data"
        raise ConfigError(f"{text}, first {first}: they would be trained on", hint=hint)
    own = HeldOutPlan(manifest, plan.buckets, _SEED, plan.frame_interval, clips=clips)
    own.held_out_rows = np.ones(len(manifest), bool)
    return own


def _shared(manifest: Manifest, other: Manifest) -> list[int]:
    """Rows of a manifest whose files another one has, too: however their paths are written, and
    through links of folders. A link to a file under another name is a clip of its own in `other`:
    looking for it would take a question to the file system for each of its rows."""
    files: dict[str, list[int]] = {}  # both as written and with links followed
    for row in range(len(manifest)):
        written = normal(str(Path(manifest.locate(row)).absolute()))
        for name in {written, os.path.realpath(written)}:
            files.setdefault(name, []).append(row)
    names = {name.rpartition("/")[2] for name in files}
    found: set[int] = set()
    root = str(other.root.absolute())
    for path in other.paths:
        if path.rpartition("/")[2] in names:
            written = whole_path(root, path)
            for name in (written, os.path.realpath(written)):
                found.update(files.get(name, ()))
    return sorted(found)
