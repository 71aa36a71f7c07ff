"""What a run would do, read from its files: `python -m trainer.train CONFIG … --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainer.config.load import Config
from trainer.data.features.cache import Features
from trainer.data.loader.build_loader import build_loader
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.data_plan import Cursor, plan_for
from trainer.data.plan.held_out import all_of
from trainer.errors import ConfigError
from trainer.runlog.units import counted


def would_do(config: Config) -> Iterator[str]:
    """Lines for people. Raises as the run's start does for data that cannot be trained on; makes
    no run directory, no model and no processes."""
    data = config.dataset
    root = Path(data.root) if data.root else None
    path = str(data.data_path)
    manifest = read_manifest(path, root, data.max_wrong_rows, data.memory_efficient)
    plan, world, each = plan_for(config, manifest), _world(), config.accumulation_steps
    yield f"model: {config.model.type}, {config.dtype}, engine {config.engine}"
    if config.load is not None:
        yield f"continues: {config.load}"
    elif config.model.from_pretrained is not None:
        yield f"weights: {config.model.from_pretrained}"
    left = f", {counted(len(manifest.wrong), 'row')} left out" if manifest.wrong else ""
    yield f"data: {counted(len(manifest), 'clip')} of {path}{left}"
    if data.features is not None:
        features = Features(Path(data.features))
        features.check_files()
        yield f"features: {data.features}, in place of VAE and text encoder"
    wanted = config.validation
    if wanted.every and wanted.data_path is not None:
        own = read_manifest(wanted.data_path, root, data.max_wrong_rows)
        yield f"validation: {counted(len(own), 'clip')} of {wanted.data_path}"
        all_of(own, plan, wanted.clips)
    loader = build_loader(plan, Cursor(), 0, world, 1, data, each=each)
    steps = f"{len(loader) // each:,} steps of {world} x {each} microbatches"
    yield f"epoch 0: {steps}, {len(plan.epoch(0)):,} microbatches in all"
    end = (
        f"at {config.max_steps:,} steps" if config.max_steps else f"after {config.epochs:,} epochs"
    )
    yield f"ends: {end}; seed {config.seed}, lr {config.lr:g}"
    yield (
        f"checkpoints: every {config.ckpt_every:,} steps"
        if config.ckpt_every
        else ("checkpoints: one at the end")
    )
    yield "nothing was started (--dry-run); python -m trainer.config show has all keys"


def _world() -> int:
    """Ranks as torchrun counts them; 1 without it."""
    try:
        world = int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        world = 0
    if world < 1:
        raise ConfigError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, not a number of ranks")
    return world
