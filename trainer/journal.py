"""What a run reports: telemetry, bad samples, terminal lines, trackers. None of it ends a run."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.description import said_of
from trainer.config.load import Config, to_dict
from trainer.runlog import units
from trainer.runlog.figures import tracked, tracked_of_event
from trainer.runlog.output import LOG, RUN
from trainer.runlog.run_dir import launched_s, own_attempt
from trainer.runlog.steps import LAUNCHED, ettr, of_run
from trainer.runlog.telemetry import FILE, Event, Record, StepRecord, Writer, starts
from trainer.runlog.validation import Figures, event_of
from trainer.trackers.tensorboard_files import TensorBoard
from trainer.trackers.tracker import CLOSE_S, About, Tracker
from trainer.trackers.wandb_run import Wandb

_ENDS = ("done", "stopped", "failed", "rollback")  # events, of which the last one counts


class Journal:
    """Steps, events and lines of rank 0; of the other ranks their bad samples."""

    def __init__(self, run_dir: Path, config: Config, rank: int) -> None:
        self._run_dir, self._config, self._bad = run_dir, config, run_dir / "bad_samples.jsonl"
        self.attempt = own_attempt() or (1 + starts(run_dir) if rank == 0 else None)
        self._writer = Writer(run_dir) if rank == 0 else None
        self._trackers: list[Tracker] = []
        self._last: dict[str, Any] = {}  # for the summary in W&B
        self._unsaid: StepRecord | None = None  # the last step, while it has no line

    def begin(self, step: int, **facts: Any) -> None:
        """The trainer has started, after `step`; trackers begin here, where all is known."""
        launched = launched_s()
        facts |= {} if launched is None else {LAUNCHED: launched}
        self.event("start", f"{self._run_dir.name} at step {step}", step=step, **facts)
        if self._writer is None:
            return
        config, run_dir = self._config, self._run_dir
        facts |= {"attempt": self.attempt, "run_dir": str(run_dir), **said_of(run_dir)}
        name = config.exp_name or run_dir.name
        about = About(run_dir, name, step, to_dict(config), facts)
        if config.wandb != "off":
            options = {"mode": config.wandb, "project": config.wandb_project}
            report = functools.partial(self.event, "tracking")
            self._trackers.append(Wandb(report, about, **options))
        if config.tensorboard:
            report = functools.partial(self.event, "note")
            self._trackers.append(TensorBoard(report, about))

    def step(self, record: StepRecord) -> None:
        if self._writer is None:
            return
        self._write(self._writer, record)
        self._track(record.step, tracked(record))
        self._last |= {"steps": record.step, "epoch": record.epoch, "final_loss": record.loss}
        self._last |= {"final_avg_loss": record.avg_loss}
        self._unsaid = record
        if self._config.is_logged(record.step) or record.step == record.steps_total:
            self._say_step()

    def _say_step(self) -> None:
        """The line of the last step, if it has none yet."""
        record, self._unsaid = self._unsaid, None
        if record is not None:
            skipped = "  skipped" if record.skipped else ""
            RUN.info(
                f"step {record.step}/{record.steps_total}  epoch {record.epoch}  "
                f"loss {record.loss:.4f}  grad {record.grad_norm:.3f}  lr {record.lr:.2e}  "
                f"{units.measured(record.step_s)}/step{skipped}"
            )

    def event(self, name: str, text: str, *, step: int | None = None, **data: Any) -> None:
        writer = self._writer  # a tracker reports from its own thread, perhaps after close
        if name in _ENDS:
            self._last["outcome"] = name
            self._say_step()
        if writer is not None:
            event = Event(name, text, data, step, time.time())
            self._write(writer, event)
            RUN.info("%s", event.line)
        if step is not None:
            self._track(step, tracked_of_event(name, data))

    def validation(
        self, step: int, samples: int, found: Figures, averaged: Figures | None, seconds: float
    ) -> None:
        """Losses of clips that are not trained on, of the weights and of their average."""
        event = event_of(step, found, averaged, seconds, time.time(), samples=samples)
        self.event(event.name, event.text, step=step, **event.data)
        sets = {"model": found} | ({"ema": averaged} if averaged is not None else {})
        for name, one in sets.items():
            self._track(step, one.tracked(name))
            self._last[f"final_validation_{name}"] = one.loss

    def _track(self, step: int, figures: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.figures(step, figures)

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

    def _ettr(self) -> float | None:
        try:
            steps = of_run(self._run_dir)
        except OSError:
            return None
        return ettr(steps.effective_s, steps.began_s, time.time())

    def close(self) -> None:
        last = {"attempts": self.attempt, **self._last}
        whole = functools.cache(lambda: {**last, "ettr": self._ettr()})  # 10 µs a step
        until = time.monotonic() + CLOSE_S  # of all together
        for tracker in self._trackers:
            left_s = max(0.0, until - time.monotonic())
            tracker.close(whole, left_s)
        self._trackers = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
