"""What a run's config says about checkpoints: from its run directory, or asked of the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.runs.ask_trainer import ask
from trainer.runlog import run_files
from trainer.runlog.retention import Rules

CONFIG_FILE = "config.json"  # of a run directory


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The keys of a config that a plan of checkpoints needs."""

    model: str
    rules: Rules
    async_io: bool
    max_steps: int | None
    epochs: int
    outputs: str


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of one checkpoint; `extra_bytes` more are needed until it is complete."""

    model_bytes: int
    ema_bytes: int
    optimizer_bytes: int
    other_bytes: int
    extra_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.ema_bytes + self.optimizer_bytes + self.other_bytes


def settings_in(run_dir: Path) -> RunSettings:
    """Of a run directory's config.json. Raises UsageError naming the file."""
    path = run_dir / CONFIG_FILE
    try:
        return _settings(run_files.read_object(run_dir, CONFIG_FILE)["config"])
    except FileNotFoundError:
        hint = "name a run directory, a config file, or a short name such as stage1"
        raise UsageError(f"{run_dir} is not a run: it has no {CONFIG_FILE}", hint=hint) from None
    except KeyError as error:
        raise UsageError(f"{path} is not a run's config: it has no {error}") from None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} is not a run's config: {error}") from None


def settings_of(config: str, overrides: Sequence[str]) -> RunSettings:
    """Of a config file or short name, as the trainer resolves it. Raises UsageError."""
    words = ["trainer.config", "show", config, "--json", *overrides]
    return _settings(ask(words)["config"])


def predicted_size(config: str, overrides: Sequence[str]) -> Size:
    """Of a config or run directory, by the shapes of its model. Raises UsageError without torch."""
    said = ask(["trainer.checkpoint", "size", config, "--json", *overrides])
    return Size(
        model_bytes=int(said["model_bytes"]),
        ema_bytes=int(said["ema_bytes"]),
        optimizer_bytes=int(said["optimizer_bytes"]),
        other_bytes=0,
        extra_bytes=int(said["extra_bytes"]),
    )


def _settings(config: Mapping[str, Any]) -> RunSettings:
    """Raises KeyError, TypeError or ValueError for what is not the config of a run."""
    steps = config["max_steps"]
    rules = Rules(
        _count(config["ckpt_every"], 0),
        _count(config["keep_checkpoints"], -1),
        _count(config["keep_every"], 0),
        config.get("ckpt_at_epoch_end", False) is True,  # runs of 0.2.0 have no such key
    )
    return RunSettings(
        str(config["model"]["type"]),
        rules,
        config["async_io"] is not False,
        None if steps is None else _count(steps, 1),
        _count(config["epochs"], 1),
        str(config["outputs"]),
    )


def _count(value: object, least: int) -> int:
    if type(value) is not int or not least <= value < 10**12:
        raise ValueError(f"{value!r} is not a valid count")
    return value
