"""Whether the disk has room: for all checkpoints of a run before its first step, then for the next.

A run that cannot write a single checkpoint ends before it begins. One whose later checkpoints do
not fit is warned: its length is often an estimate, and people delete files while it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.files import unfinished
from trainer.checkpoint.sizes import CheckpointSize
from trainer.config.load import Config
from trainer.errors import CheckpointError
from trainer.runlog import units
from trainer.runlog.retention import Rules, disk_need, largest_keep, save_steps
from trainer.weights.checkpoints import complete, step_of

AHEAD = 3  # saves for which there must be room, or an event `space` says so
_MOST = 10_000  # saves of a run that are counted through


@dataclass(frozen=True, slots=True)
class Shortage:
    """An event `space`: a sentence and its numbers in bytes."""

    text: str
    data: dict[str, Any]


def rules_of(config: Config) -> Rules:
    """The keys of a config that decide about checkpoints."""
    keep, every = config.keep_checkpoints, config.keep_every
    return Rules(config.ckpt_every, keep, every, config.ckpt_at_epoch_end)


@dataclass(frozen=True, slots=True)
class Room:
    """Of one run: where it saves, how large a checkpoint is, and when it saves."""

    run_dir: Path
    size: CheckpointSize
    rules: Rules
    epoch_steps: int | None = None  # steps of an epoch, for saves at its end

    def check(self, first: int, last: int) -> Shortage | None:
        """Before the first step: what a run from step `first` to `last` lacks at its peak.

        Raises CheckpointError when there is no room for one checkpoint.
        """
        if last <= first:
            return None
        free = self._free() + sum(_taken(path) for path in unfinished(self.run_dir))
        each, extra = self.size.total_bytes, self.size.extra_bytes
        if free < each + extra:
            text = (
                f"a checkpoint of this run needs {units.size(each + extra)} while it is written, "
                f"and {self.run_dir} has {units.size(free)} free"
            )
            hint = "free space there, or choose another folder with --outputs or --run-dir"
            raise CheckpointError(text, hint=hint)
        steps = list(itertools.islice(save_steps(first, last, self.rules, self.epoch_steps), _MOST))
        held = self._held()
        need = disk_need(held, steps, each, extra, self.rules)
        if need.more_peak_bytes <= free:
            return None
        keep = largest_keep(held, steps, each, extra, self.rules, free)
        way = f"keep_checkpoints = {keep} fits" if keep else "a longer ckpt_every needs less"
        text = (
            f"the checkpoints of this run need {units.size(need.more_peak_bytes)} more by step "
            f"{need.peak_step:,}, and {self.run_dir} has {units.size(free)} free: {way}"
        )
        data = {"free_bytes": free, "needed_bytes": need.more_peak_bytes, "saves": need.saves}
        return Shortage(text, data)

    def look_ahead(self, step: int, last: int) -> Shortage | None:
        """At a save: what this one and the next ones lack; None where it cannot be found out."""
        later = save_steps(step, last, self.rules, self.epoch_steps)
        steps = [step, *itertools.islice(later, AHEAD - 1)]
        try:
            free, held = self._free(), self._held()
        except OSError:
            return None  # the save itself says what is wrong there
        sizes = (self.size.total_bytes, self.size.extra_bytes)
        need = disk_need(held, steps, *sizes, self.rules)
        if need.more_peak_bytes <= free:
            return None
        text = (
            f"{self.run_dir} has {units.size(free)} free, and the next "
            f"{f'{len(steps)} checkpoints need' if len(steps) > 1 else 'checkpoint needs'} "
            f"{units.size(need.more_peak_bytes)} more"
        )
        data = {"free_bytes": free, "needed_bytes": need.more_peak_bytes, "saves": len(steps)}
        return Shortage(text, data)

    def _free(self) -> int:
        return shutil.disk_usage(self.run_dir).free

    def _held(self) -> list[tuple[int, int]]:
        """Complete checkpoints, each taken to be as large as this run's are."""
        each = self.size.total_bytes
        return [(step_of(path), each) for path in complete(self.run_dir)]


def _taken(folder: Path) -> int:
    """Bytes on the disk; what vanishes meanwhile takes none."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.lstat().st_blocks * 512
    return found
