"""TensorBoard's event files in `RUN/tensorboard`, one for each start of the trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from trainer.trackers.tracker import Tracker

FOLDER = "tensorboard"  # of a run directory
_FLUSH_S = 10  # what a rank that is killed may lose


class TensorBoard(Tracker):
    """A start hides what earlier ones have written of the steps that it does again."""

    name: ClassVar[str] = "TensorBoard"
    package: ClassVar[str] = "tensorboard"
    _writer: Any = None

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._about.run_dir / FOLDER
        is_first = not any(folder.glob("events.out.tfevents.*"))
        # TensorBoard shows nothing of earlier files from `purge_step` on.
        purge_step = None if is_first else self._about.step + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=_FLUSH_S)
        about = {**self._about.config, **self._about.facts}
        lines = json.dumps(about, indent=1, default=str).splitlines()
        self._writer.add_text(
            "config", "\n".join(f"    {line}" for line in lines), self._about.step
        )

    def _take(self, step: int, figures: Mapping[str, float]) -> None:
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, step)

    def _end(self, last: Mapping[str, Any]) -> None:
        self._writer.close()
