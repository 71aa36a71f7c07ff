"""What a run reports: telemetry, bad samples, terminal lines, W&B. None of it ends a run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.config.load import Config, to_dict
from trainer.errors import one_line
from trainer.runlog.atomic_file import part_of
from trainer.runlog.json_file import read_object
from trainer.runlog.output import LOG, RUN
from trainer.runlog.telemetry import FILE, Event, Record, StepRecord, Writer
from trainer.runlog.validation import Figures

_INIT_S = 10.0  # wandb waits 90 s for its server by default
_CLOSE_S = 10.0
_QUEUED = 1000  # steps
_THREAD = "wandb"
WANDB_FILE = "wandb.json"  # of a run directory: the id of its run in W&B
STEP = "global_step"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Journal:
    """Steps, events and lines of rank 0; of the other ranks their bad samples."""

    def __init__(self, run_dir: Path, config: Config, rank: int) -> None:
        self._log_every, self._bad = config.log_every, run_dir / "bad_samples.jsonl"
        self._writer = Writer(run_dir) if rank == 0 else None
        self._tracker: Wandb | None = None
        if rank == 0 and config.wandb != "off":
            places = {"dir": str(run_dir), "project": config.wandb_project}
            name = config.exp_name or run_dir.name
            report = functools.partial(self.event, "tracking")
            more = {"mode": config.wandb, "name": name, **places}
            self._tracker = Wandb(report, to_dict(config), run_dir / WANDB_FILE, **more)

    def step(self, record: StepRecord) -> None:
        if self._writer is None:
            return
        self._write(self._writer, record)
        if self._tracker is not None:
            self._tracker.log(record)
        if record.step % self._log_every == 0 or record.step == 1:
            skipped = "  skipped" if record.skipped else ""
            RUN.info(
                f"step {record.step}/{record.steps_total}  epoch {record.epoch}  "
                f"loss {record.loss:.4f}  grad {record.grad_norm:.3f}  lr {record.lr:.2e}  "
                f"{record.step_s:.3f} s/step{skipped}"
            )

    def event(self, name: str, text: str, *, step: int | None = None, **data: Any) -> None:
        writer = self._writer  # the tracker reports from its own thread, perhaps after close
        if writer is not None:
            self._write(writer, Event(name, text, data, step, time.time()))
            RUN.info("%s: %s", name, text)

    def validation(
        self, step: int, samples: int, found: Figures, averaged: Figures | None, seconds: float
    ) -> None:
        """Losses of clips that are not trained on, of the weights and of their average."""
        of_average = f" (averaged weights {averaged.loss:.4f})" if averaged is not None else ""
        count = f"{found.clips} clips at {len(found.times)} times"
        text = f"loss {found.loss:.4f}{of_average}, {count}, {seconds:.1f} s"
        sets = {"model": found} | ({"ema": averaged} if averaged is not None else {})
        data = {name: one.to_json() for name, one in sets.items()}
        self.event("validation", text, step=step, samples=samples, seconds=seconds, **data)
        if self._tracker is not None:
            for name, one in sets.items():
                losses = one.flat().items()
                self._tracker.figures(step, {f"validation/{name}/{k}": v for k, v in losses})

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


class Wandb:
    """One run in W&B, for which training never waits and by which it never fails.

    All of wandb happens on a daemon thread behind a bounded queue; when that is full, or wandb has
    failed, figures are dropped. `report` gets a message about a failure, from that thread, once.
    `identity` keeps the id of the run, which later starts continue.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        config: Mapping[str, Any],
        identity: Path,
        **options: Any,
    ) -> None:
        # wandb's reports about itself delay the end of the process by 10 s without their server
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._report, self._config, self._options = report, dict(config), options
        self._identity = identity
        self._queue: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_QUEUED)
        self._over, self._failed, self._dropped = threading.Event(), threading.Lock(), 0
        self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
        self._thread.start()

    def log(self, record: StepRecord) -> None:
        """Queue a step; never waits and never raises."""
        names = ("loss", "lr", "grad_norm", "epoch", "step_s")
        figures = {name: float(getattr(record, name)) for name in names}
        figures |= {f"seconds/{phase}": seconds for phase, seconds in record.seconds.items()}
        self.figures(record.step, figures)

    def figures(self, step: int, figures: dict[str, float]) -> None:
        """Queue figures of a step; never waits and never raises."""
        if self._over.is_set():
            return
        try:
            self._queue.put_nowait((step, figures))
        except queue.Full:
            self._dropped += 1

    def close(self, limit_s: float = _CLOSE_S) -> bool:
        """Let what is queued go out for at most `limit_s` seconds; False when it did not."""
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=limit_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._fail(f"W&B did not take the last figures within {limit_s:g} s")
        elif self._dropped:
            self._fail(f"W&B was too slow for {self._dropped} steps")
        return not self._thread.is_alive()

    def _fail(self, text: str) -> None:
        self._over.set()
        if self._failed.acquire(blocking=False):  # never released: one report
            key = os.environ.get("WANDB_API_KEY")
            self._report(text.replace(key, "***") if key else text)

    def _begin(self, wandb: Any, settings: Any) -> Any:
        """The run of this directory: the one that an earlier start has begun, or a new one."""
        known, is_there = _known(self._identity)
        run_id, is_online = known or secrets.token_hex(4), self._options.get("mode") == "online"
        _keep(self._identity, run_id, is_there)
        options = dict(self._options, id=run_id, allow_val_change=True)
        if is_online:
            options["resume"] = "must" if is_there else "allow"
        try:
            run = wandb.init(config=self._config, settings=settings, **options)
        except Exception as error:
            if is_online and is_there:
                hint = f"delete {self._identity.name} in the run directory to begin another one"
                error.args = (f"run {run_id} cannot be continued, {hint}: {one_line(error)}",)
            raise
        if is_online and not is_there:
            _keep(self._identity, run_id, True)
        return run

    def _work(self) -> None:
        try:
            import wandb

            # The service process that init starts logs to stderr of the rank otherwise.
            settings = wandb.Settings(
                init_timeout=_INIT_S, silent=True, console="off", x_disable_stats=True
            )
            run = self._begin(wandb, settings)
            # W&B's own count of steps never goes back, and a run that continues from a checkpoint
            # does: what it does again would be dropped.
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
            while (item := self._queue.get()) is not None:
                step, figures = item
                run.log({**figures, STEP: step})
            run.finish()
            wandb.teardown()  # the service has written all only when it has ended
        except ModuleNotFoundError:
            self._fail("W&B is not installed: pip install wandb, or --wandb off")
        except Exception as error:  # noqa: BLE001 - thread boundary: reported once
            self._fail(f"W&B failed, the run continues without it: {one_line(error)}")


def _keep(identity: Path, run_id: str, is_online: bool) -> None:
    with part_of(identity) as part:
        part.write_text(json.dumps({"id": run_id, "online": is_online}))


def _known(identity: Path) -> tuple[str | None, bool]:
    """The id that an earlier start has kept, and whether the server has that run."""
    try:
        found = read_object(identity)
    except (OSError, ValueError):
        return None, False
    run_id = found.get("id")
    is_id = isinstance(run_id, str) and _ID.fullmatch(run_id) is not None
    return (run_id, found.get("online") is True) if is_id else (None, False)


def wandb_is_stuck() -> bool:
    """Whether `close` left its thread running: wandb's exit hooks would wait for its server."""
    return any(thread.name == _THREAD for thread in threading.enumerate())
