"""What a run reports: telemetry.jsonl, bad_samples.jsonl, lines on the terminal.

None of it ends a run: what cannot be written is lost, with a warning where that can be written.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

from trainer.config.load import Config, to_dict
from trainer.runlog.output import LOG, RUN
from trainer.runlog.telemetry import FILE, Event, Record, StepRecord, Writer
from trainer.runlog.wandb_logger import Wandb


class Journal:
    """Steps, events and lines of rank 0; of the other ranks their bad samples."""

    def __init__(self, run_dir: Path, config: Config, rank: int) -> None:
        self._log_every = config.log_every
        self._writer = Writer(run_dir) if rank == 0 else None
        self._tracker: Wandb | None = None
        if rank == 0 and config.wandb != "off":
            self._tracker = Wandb(
                config.wandb,
                run_dir,
                config.wandb_project,
                config.exp_name or run_dir.name,
                to_dict(config),
                functools.partial(self.event, "tracking"),
            )
        self._bad = run_dir / "bad_samples.jsonl"

    def step(self, record: StepRecord) -> None:
        if self._writer is None:
            return
        self._write(self._writer, record)
        if self._tracker is not None:
            self._tracker.log(record)
        if record.step % self._log_every == 0 or record.step == 1:
            RUN.info(
                f"step {record.step}/{record.steps_total}  epoch {record.epoch}  "
                f"loss {record.loss:.4f}  grad {record.grad_norm:.3f}  lr {record.lr:.2e}  "
                f"{record.step_s:.3f} s/step"
            )

    def event(self, name: str, text: str, *, step: int | None = None, **data: Any) -> None:
        writer = self._writer  # the tracker reports from its own thread, perhaps after close
        if writer is not None:
            self._write(writer, Event(name, text, data, step, time.time()))
            RUN.info("%s: %s", name, text)

    def _write(self, writer: Writer, record: Record) -> None:
        before = writer.lost
        writer.write(record)
        if writer.lost and not before:
            LOG.warning("lines for %s are lost until it can be written: %s", FILE, writer.why)

    def bad_sample(self, step: int, rank: int, row: int, path: str, reason: str) -> None:
        line = {"step": step, "rank": rank, "row": row, "path": path, "reason": reason}
        try:
            with self._bad.open("a") as file:  # one write of one short line: ranks do not mix
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            why = f"{self._bad.name} cannot be written: {error.strerror}"
            LOG.warning("bad clip %s: %s (%s)", path, reason, why)

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
