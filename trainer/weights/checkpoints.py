"""Which checkpoints of a run are complete, and which one a path means.

`epoch{E}-global_step{G}/` is complete when it has a manifest; `latest` in the run directory names
the newest one. trainer.checkpoint.files writes them.
"""

from __future__ import annotations

from pathlib import Path

from trainer.errors import CheckpointError, PathError
from trainer.runlog import checkpoint_name as names
from trainer.runlog.checkpoint_name import complete_names, epoch_and_step

MANIFEST, LATEST = names.MANIFEST, names.LATEST
MODEL, EMA, OPTIMIZER = "model", "ema", "optimizer"  # folders of a checkpoint


def complete(run_dir: Path) -> list[Path]:
    """Complete ones as they were made: a run that went back leaves older, higher numbers."""
    return [run_dir / name for name in complete_names(run_dir)]


def step_of(checkpoint: Path) -> int:
    """The step in the name of a complete checkpoint's folder."""
    return int(checkpoint.name.rpartition("step")[2])


def find(path: Path) -> Path:
    """The checkpoint at a path: itself, or the one that a run directory's `latest` names."""
    path = path.absolute()
    if (path / MANIFEST).is_file():
        return path
    if not path.is_dir():
        raise PathError(f"there is no checkpoint at {path}")
    found = complete(path)
    ours = found or (path / LATEST).is_file()
    if not ours and (theirs := next(filter(_of_open_sora, (path, *sorted(path.iterdir()))), None)):
        hint = f"--load continues this trainer's own; --ckpt-path {theirs} takes its weights"
        raise CheckpointError(f"{theirs} is a checkpoint of Open-Sora's own trainer", hint=hint)
    if epoch_and_step(path.name) is not None:
        raise CheckpointError(f"{path} is not complete: it has no {MANIFEST}", hint=others(path))
    if not found:
        raise CheckpointError(f"{path} holds no complete checkpoint")
    return found[-1]


def _of_open_sora(path: Path) -> bool:
    """Whether Open-Sora has saved it, also without shards or an average. Ours has a manifest."""
    if not (path / MODEL).exists() or (path / MANIFEST).exists() or has_ranks(path):
        return False
    return any((path / name).exists() for name in ("running_states.json", "lr_scheduler"))


def has_ranks(path: Path) -> bool:
    """Whether ranks of this trainer have written to a checkpoint, finished or not."""
    return any((path / OPTIMIZER).glob("rank-*-of-*.safetensors"))


def others(path: Path) -> str:
    """A hint for a checkpoint that cannot be used."""
    found = [other for other in complete(path.parent) if other != path]
    return f"the newest other checkpoint is {found[-1]}" if found else "there is no other one"
