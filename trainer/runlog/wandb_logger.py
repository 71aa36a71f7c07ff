"""Weights & Biases as a listener that a run never waits for and never fails by.

Everything of wandb (import, init, log, finish) happens on one daemon thread behind a bounded queue.
A call of `log` puts a small dict there and returns; when the queue is full, or wandb has failed,
the figures are dropped, for telemetry.jsonl has them all. A failure becomes one "tracking" event.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.runlog.telemetry import StepRecord

_INIT_S = 10.0  # wandb waits 90 s for its server by default
_CLOSE_S = 10.0
_QUEUED = 1000  # steps
_THREAD = "wandb"

Tell = Callable[[str], None]


class Wandb:
    """One run in W&B. `tell` gets a message about a failure, from another thread, at most once."""

    def __init__(
        self,
        mode: str,
        run_dir: Path,
        project: str,
        name: str,
        config: Mapping[str, Any],
        tell: Tell,
    ) -> None:
        # wandb's reports about itself hold up the end of the process for 10 s where their server is
        # not reached
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._where: dict[str, Any] = {
            "mode": mode,
            "dir": str(run_dir),
            "project": project,
            "name": name,
        }
        self._config, self._tell = dict(config), tell
        self._queue: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_QUEUED)
        self._over, self._failed, self._dropped = threading.Event(), threading.Lock(), 0
        self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
        self._thread.start()

    def log(self, record: StepRecord) -> None:
        """Hand a step over; never waits and never raises."""
        if self._over.is_set():
            return
        figures = {
            "loss": record.loss,
            "lr": record.lr,
            "grad_norm": record.grad_norm,
            "epoch": float(record.epoch),
            "step_s": record.step_s,
        }
        figures |= {f"seconds/{phase}": seconds for phase, seconds in record.seconds.items()}
        try:
            self._queue.put_nowait((record.step, figures))
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

    def _fail(self, sentence: str) -> None:
        self._over.set()
        if self._failed.acquire(blocking=False):  # held for ever: once
            self._tell(_without_secrets(sentence))

    def _work(self) -> None:
        try:
            import wandb

            # The service process that init starts logs to stderr of the rank otherwise.
            settings = wandb.Settings(
                init_timeout=_INIT_S, silent=True, console="off", x_disable_stats=True
            )
            run = wandb.init(config=self._config, settings=settings, **self._where)
            while (item := self._queue.get()) is not None:
                step, figures = item
                run.log(figures, step=step)
            run.finish()
            wandb.teardown()  # the service has written all only when it has ended
        except ModuleNotFoundError:
            self._fail("W&B is not installed: pip install wandb, or --wandb off")
        except Exception as error:  # noqa: BLE001 - thread boundary: reported once
            first = (str(error).strip().splitlines() or [""])[0]
            self._fail(f"W&B failed, the run continues without it: {type(error).__name__}: {first}")


def is_stuck() -> bool:
    """Whether `close` left its thread running: wandb's exit hooks would wait for its server."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def _without_secrets(text: str) -> str:
    key = os.environ.get("WANDB_API_KEY")
    return text.replace(key, "***") if key else text
