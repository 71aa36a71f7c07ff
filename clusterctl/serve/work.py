"""What is to be made: a folder of videos for each checkpoint and preset, in batches of prompts, and
its validation loss."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from checks.units import counted
from clusterctl.serve.presets import LOSS, Preset
from clusterctl.serve.source import Source
from clusterctl.serve.wanted import Sealed
from trainer.runlog import locks, samples, validation
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_files import open_to_append, opened_below, read_object

SERVED = ".served.json"  # in a folder that is complete: what was asked for
NEW, OPEN, DONE, FAILED, GONE = "new", "open", "done", "failed", "gone"
SHEET_UNIT = "sheet"
TRIES = 3  # of a batch whose sampler ends or whose disk is full


@dataclass
class Unit:
    """Prompts from `first` to before `end`, which are sampled together."""

    first: int
    end: int
    files: Sequence[str]
    not_before_s: float = 0.0  # monotonic
    is_busy: bool = False
    tries: int = 0

    @property
    def name(self) -> str:
        return f"{self.first:04d}-{self.end:04d}"


@dataclass
class Folder:
    """Videos of one checkpoint and preset."""

    has_videos: ClassVar[bool] = True
    source: Source
    sealed: Sealed
    preset: Preset
    prompts: Sequence[str]
    weights: str
    own_sample: Mapping[str, Any]  # of the run's config, where the preset is the run's own
    state: str = NEW
    why: str = ""
    look: dict[str, Any] | None = None
    units: list[Unit] = field(default_factory=list)  # not known to be finished
    is_looking: bool = False
    is_closing: bool = False
    not_before_s: float = 0.0
    tries: int = 0
    begun_s: float | None = None  # unix time of the first video here
    made: int = 0  # by this server

    @property
    def path(self) -> Path:
        return self.source.folder / "samples" / self.preset.name / self.sealed.name

    @property
    def contents(self) -> str:
        """Of a folder that is complete, in words."""
        return counted(self.total, "video")

    @property
    def progress(self) -> str:
        left = sum(len(unit.files) for unit in self.units)
        return f"{self.total - left} of {counted(self.total, 'video')}"

    def results(self) -> dict[str, Any]:
        """Of a folder that is complete."""
        return {"videos": self.total, "made": self.made}

    @property
    def total(self) -> int:
        return len(self.look["jobs"]) if self.look else len(self.prompts)

    def request(self) -> dict[str, Any]:
        """For a sampler."""
        return {
            "run_dir": str(self.source.folder),
            "checkpoint": self.sealed.name,
            "weights": self.weights,
            "preset": self.preset.name,
            "own": self.preset.own,
            "sample": dict(self.preset.sample),
            "upscale": self.preset.upscale,
            "prompts": list(self.prompts),
            "save_dir": str(self.path),
        }

    def identity(self) -> str:
        """Of what was asked for."""
        asked = {**self.request(), "run_dir": "", "save_dir": ""}
        facts = [self.sealed.stamp, dict(self.own_sample), asked]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def is_served(self) -> bool:
        """Whether an earlier server has made all of it, and it is all still there."""
        with suppress(OSError, ValueError):
            if self._object(SERVED).get("identity") == self.identity():
                found = samples.read(self.path)
                return all(self.is_there(video.file) for video in found.videos)
        return False

    def take_look(self, look: dict[str, Any]) -> None:
        """Cut what a sampler has found into batches."""
        self.look, self.state, self.is_looking = look, OPEN, False
        jobs = look["jobs"]
        per_prompt = max(1, sum(job["index"] == jobs[0]["index"] for job in jobs))
        size = max(1, look["batch_size"] // per_prompt)
        indices = sorted({job["index"] for job in jobs})
        self.units = []
        for start in range(0, len(indices), size):
            first, end = indices[start], indices[min(start + size, len(indices)) - 1] + 1
            mine = [job for job in jobs if first <= job["index"] < end]
            if not all(job["finished"] for job in mine):
                self.units.append(Unit(first, end, [job["file"] for job in mine]))

    def drop_finished(self) -> None:
        """Forget batches whose files are there: they appear whole."""
        self.units = [
            unit
            for unit in self.units
            if unit.is_busy or not all(self.is_made(file) for file in unit.files)
        ]

    def is_made(self, file: str) -> bool:
        return self.is_there(file)

    def is_there(self, file: str) -> bool:
        """Whether it is a plain file, and no link on its way leads out of the run directory."""
        with suppress(OSError), opened_below(self.source.folder, f"{self._below}/{file}"):
            return True
        return False

    @property
    def _below(self) -> str:
        return str(self.path.relative_to(self.source.folder))

    def _object(self, name: str) -> dict[str, Any]:
        """Raises OSError and ValueError."""
        return read_object(self.source.folder, f"{self._below}/{name}")

    def finish(self) -> None:
        """Mark a folder that is complete. Raises OSError."""
        write_whole(
            self.path / SERVED, json.dumps({"schema": 1, "identity": self.identity()}) + "\n"
        )
        self.state = DONE

    def fail(self, why: str) -> None:
        self.state, self.why, self.is_looking, self.is_closing = FAILED, why, False, False

    def try_again(self, why: str, pause_s: float, unit: Unit | None = None) -> bool:
        """Whether there is another try, of a batch or of the folder itself; counts this one."""
        failed: Unit | Folder = self if unit is None else unit
        failed.tries += 1
        failed.not_before_s = time.monotonic() + pause_s
        if failed.tries >= TRIES:
            self.fail(why)
        return failed.tries < TRIES


class LossFolder(Folder):
    """The validation loss of one checkpoint, of its weights and their average: one file."""

    has_videos = False

    def __init__(self, source: Source, sealed: Sealed) -> None:
        super().__init__(source, sealed, LOSS, (LOSS.name,), "both", {})

    def request(self) -> dict[str, Any]:
        stamp, sealed_s = self.sealed.stamp, self.sealed.sealed_s
        return {**super().request(), "stamp": stamp, "sealed_s": sealed_s}

    @property
    def contents(self) -> str:
        return str(self._event()["text"])

    @property
    def progress(self) -> str:
        return "measuring"

    def results(self) -> dict[str, Any]:
        return {"text": self.contents}

    @property
    def total(self) -> int:
        return 1

    def is_made(self, file: str) -> bool:
        with suppress(OSError, ValueError):
            return self._object(file).get("stamp") == self.sealed.stamp
        return False

    def is_served(self) -> bool:
        with suppress(OSError, ValueError):
            is_known = self._object(SERVED).get("identity") == self.identity()
            return is_known and self.is_made(validation.LOSSES)
        return False

    def finish(self) -> None:
        """Tell those who read the run. A server that is killed here tells it twice: that is one."""
        line = json.dumps({"kind": "event", **self._event()}, separators=(",", ":")) + "\n"
        place = self.source.folder / validation.FILE
        with os.fdopen(open_to_append(place, 0o666), "ab", 0) as file:
            with suppress(locks.NoLocks):
                locks.hold(file.fileno(), math.inf)
            file.write(line.encode())
        super().finish()

    def _event(self) -> dict[str, Any]:
        """Raises OSError and ValueError."""
        event = self._object(validation.LOSSES).get("event")
        if not isinstance(event, dict) or not isinstance(event.get("text"), str):
            raise ValueError(f"{self.path / validation.LOSSES} holds no losses")
        return event
