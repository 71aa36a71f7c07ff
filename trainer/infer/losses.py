"""The validation loss of a checkpoint, measured by a sampler in the place of videos."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.config.load import Config
from trainer.errors import TooManyBadSamples
from trainer.infer.models import Models
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_files import read_object
from trainer.runlog.validation import LOSSES, Figures, event_of
from trainer.validation.measure import Validation
from trainer.validation.of_checkpoints import Ranks, clips_of, measuring
from trainer.weights import checkpoints


class Losses:
    """Measures checkpoints of the run that it was asked for last, whose clips it keeps."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._clips: tuple[Config, Path, Validation] | None = None

    def is_finished(self, request: Mapping[str, Any]) -> bool:
        """Whether the losses of this very checkpoint are there."""
        with suppress(OSError, ValueError):
            return read_object(Path(request["save_dir"]), LOSSES).get("stamp") == request["stamp"]
        return False

    def measure(self, request: Mapping[str, Any], begun: Callable[[], None]) -> None:
        """Write the losses of a checkpoint's weights, and of their average where it has one.

        Raises ConfigError, CheckpointError, OutOfMemory and TooManyBadSamples.
        """
        run_dir, began = Path(request["run_dir"]), time.monotonic()
        checkpoint = run_dir / request["checkpoint"]
        config = measuring(run_dir)
        validation = self._validation(config, run_dir)
        begun()

        def figures(*, ema: bool) -> Figures:
            wanted = f"{checkpoint} {request['stamp']} {'ema' if ema else 'model'}"
            parts = self._models.parts(config, run_dir, checkpoint, wanted, ema=ema)
            return validation.measure(parts.model)

        model, average = figures(ema=False), None
        if not model.clips:
            raise TooManyBadSamples("none of the clips kept for validation can be read")
        if config.validation.ema and (checkpoint / checkpoints.EMA).is_dir():
            average = figures(ema=True)
        step, seconds = checkpoints.step_of(checkpoint), round(time.monotonic() - began, 3)
        place = {"checkpoint": checkpoint.name}
        event = event_of(step, model, average, seconds, request["sealed_s"], **place)
        document = {"schema": 1, "stamp": request["stamp"], "event": asdict(event)}
        path = _file(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(document) + "\n")

    def _validation(self, config: Config, run_dir: Path) -> Validation:
        if self._clips is None or self._clips[:2] != (config, run_dir):
            self._clips = None
            parts = self._models.warm(config, run_dir)
            validation = clips_of(config, parts, Ranks())
            validation.prepare()
            self._clips = config, run_dir, validation
        return self._clips[2]


def _file(request: Mapping[str, Any]) -> Path:
    return Path(request["save_dir"]) / LOSSES
