"""The validation loss of a run's checkpoints, as the run itself measures it."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer.command_line import Parser, whole
from trainer.components import TINY_T5, Parts, build_parts
from trainer.config.load import Config
from trainer.data.features.cache import NETWORK_DTYPES, Features
from trainer.data.loader.build_loader import NoText, NoVAE
from trainer.engine.agreement import agreed
from trainer.engine.base import set_threads
from trainer.errors import ConfigError, TooManyBadSamples
from trainer.runlog.output import LOG, configure
from trainer.runlog.progress import ClipProgress
from trainer.runlog.validation import Figures
from trainer.validation.of_checkpoints import Ranks, clips_of, measuring
from trainer.weights import checkpoints
from trainer.weights.load import load_weights, read_checkpoint

_DESCRIPTION = """\
The loss of clips that are never trained on, at fixed times and with fixed noise: of a run's newest
checkpoint, of all, or of one. A run keeps such clips with validation.share; --data-path measures
any run on the clips of another manifest. Under torchrun the ranks share the clips; the result is
the same on any number of them.

`python -m trainer.evaluate videos` measures any videos by their pixels, and `... digits` scores
those of the demo."""
_EPILOG = """\
examples
  python -m trainer.evaluate outputs/002-STDiT3
  python -m trainer.evaluate outputs/002-STDiT3 --all --weights ema --json
  python -m trainer.evaluate outputs/002-STDiT3/epoch3-global_step4000 --clips 256
  torchrun --nproc_per_node 8 -m trainer.evaluate outputs/002-STDiT3 --data-path val.csv"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one set of weights."""

    checkpoint: Path
    weights: str  # model or ema
    figures: Figures

    def to_json(self) -> dict[str, Any]:
        step = checkpoints.step_of(self.checkpoint)
        place = {"checkpoint": str(self.checkpoint), "step": step, "weights": self.weights}
        return {**place, **self.figures.to_json()}


def main(argv: Sequence[str]) -> int:
    parser = Parser("evaluate", _DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run directory, or one of its checkpoints")
    add("--all", action="store_true", help="every complete checkpoint of the run, oldest first")
    what = "default both, as far as the checkpoint has them"
    add("--weights", choices=("model", "ema", "both"), default="both", help=what)
    what = "manifest of the clips, none of which the run trains on; default as in the run"
    add("--data-path", metavar="MANIFEST", help=what)
    add(
        "--clips", type=whole(1), metavar="N", help="of each bucket, at most; default as in the run"
    )
    add("--times", type=whole(1), metavar="N", help="of each clip; default as in the run")
    add("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args(argv)
    chosen = _checkpoints(args)
    run_dir = chosen[0].parent
    given = {name: getattr(args, name) for name in ("data_path", "clips", "times")}
    config = measuring(run_dir, **given)
    engine = Ranks()
    engine.setup(config.seed, config.process_group_timeout_s)
    try:
        if engine.rank:
            configure(max(args.log_level, logging.WARNING))
        found = _measure(config, run_dir, chosen, args.weights, engine)
    finally:
        engine.close()
    if engine.rank == 0:
        _print(found, as_json=args.json)
    return 0


def _checkpoints(args: argparse.Namespace) -> list[Path]:
    """Raises PathError and CheckpointError."""
    newest = checkpoints.find(args.run)
    if args.all and newest != args.run.absolute():
        return checkpoints.complete(args.run.absolute())
    return [newest]


def _measure(
    config: Config, run_dir: Path, chosen: Sequence[Path], weights: str, engine: Ranks
) -> list[Measured]:
    set_threads(config.threads, engine.ranks_on_this_host(), engine.device.type != "cpu")
    parts = engine.together(lambda: _parts(config, run_dir, engine))
    validation = clips_of(config, parts, engine)
    found = []
    with ClipProgress("evaluating", quiet=engine.rank != 0) as progress:
        validation.prepare(progress)
        for checkpoint in chosen:
            for name in ("model", "ema") if weights == "both" else (weights,):
                load = partial(_load, parts, checkpoint, name, config, engine)
                if engine.together(load):
                    figures = validation.measure(parts.model, progress)
                    found.append(Measured(checkpoint, name, figures))
    if not any(one.figures.clips for one in found):
        raise agreed(TooManyBadSamples("none of the clips kept for validation can be read"))
    for clip in validation.bad if engine.rank == 0 else ():
        LOG.warning(f"{clip.path} cannot be read and does not count: {clip.reason}")
    return found


def _parts(config: Config, run_dir: Path, engine: Ranks) -> Parts:
    data = config.dataset
    features = Features(Path(data.features)) if data.features is not None else None
    encoders = (NoVAE(features), NoText(features)) if features is not None else None
    if config.text_encoder.type == "tiny_t5" and not (run_dir / TINY_T5).is_dir():
        raise ConfigError(f"no {TINY_T5} folder in {run_dir}: the model needs its text encoder")
    dtype = NETWORK_DTYPES[config.dtype]
    device = engine.device.type
    parts = build_parts(config, run_dir, dtype, device, empty=True, encoders=encoders)
    parts.text.to(engine.device)
    parts.vae.to(engine.device)
    return parts


def _load(parts: Parts, checkpoint: Path, name: str, config: Config, engine: Ranks) -> bool:
    """Whether the checkpoint has these weights. Raises CheckpointError."""
    weights, is_average = read_checkpoint(checkpoint, ema=name == "ema")
    if is_average != (name == "ema"):
        LOG.info(f"{checkpoint.name} has no average of its weights")
        return False
    load_weights(parts.model, weights, checkpoint)
    parts.model.to(engine.device, NETWORK_DTYPES[config.dtype])
    return True


def _print(found: Sequence[Measured], *, as_json: bool) -> None:
    if as_json:
        document = {"schema": 1, "command": "evaluate", "measured": [m.to_json() for m in found]}
        print(json.dumps(document))
        return
    print(f"{'checkpoint':<28}{'weights':<9}{'clips':>6}{'loss':>10}")
    for one in found:
        figures = one.figures
        name = f"{one.checkpoint.name:<28}{one.weights:<9}"
        print(f"{name}{figures.clips:>6}{figures.loss:>10.4f}")
    for one in found[-1:]:
        times = "".join(f"{f't {time:g}':>10}" for time in one.figures.times)
        print(f"\n{'bucket (last line above)':<37}{'clips':>6}{'loss':>10}{times}")
        for name, bucket in one.figures.buckets.items():
            bands = "".join(f"{loss:>10.4f}" for loss in bucket.bands)
            print(f"{name:<37}{bucket.clips:>6}{bucket.loss:>10.4f}{bands}")
