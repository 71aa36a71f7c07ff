"""A run assembled as `trainer.train` does it, whose microbatches are zeros: no clip is read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.gpu.items.features import make_features, write_placeholders
from trainer import components
from trainer.bench.shapes import Shape, shapes_of
from trainer.build_run import assemble
from trainer.config import load as configuration
from trainer.config.load import Config
from trainer.data.loader.microbatch import Batch
from trainer.data.plan.buckets import Bucket, Buckets
from trainer.engine.base import build_engine
from trainer.step import Run

STAGES = tuple(f"stage{number}" for number in range(1, 8))
CONFIG = Path(__file__).parents[4] / "trainer" / "configs"
_TEXT = """_base_ = {base!r}
bucket_config = dict(_delete_=True, **{buckets})
num_workers = 1
log_every = 1
ckpt_every = 0
"""


def write_run(folder: Path, stage: str, clips: int, stills: int, buckets: object) -> list[str]:
    """A manifest, features of random numbers and a config in `folder`; the words of a run of it."""
    places = write_placeholders(folder, 4096)
    rows = [f"{n}.mp4,clip {n},60,360,640,24" for n in range(clips)]
    rows += [f"{n}.png,picture {n},1,360,640,24" for n in range(stills)]
    header = "path,text,num_frames,height,width,fps"
    (folder / "clips.csv").write_text("\n".join((header, *rows)) + "\n")
    text = _TEXT.format(base=str(CONFIG / f"{stage}.py"), buckets=buckets)
    (folder / "config.py").write_text(text)
    words = [word for pair in places.items() for word in pair]
    words += ["--data-path", str(folder / "clips.csv")]
    make_features(configuration.load(folder / "config.py", words), folder / "features")
    return [str(folder / "config.py"), *words, "--dataset.features", str(folder / "features")]


def assembled(folder: Path, words: Sequence[str]) -> Run:
    """XL/2 in a run whose loader is left out. Weights are made on the card, in no time."""
    config, *options = write_run(folder, "stage1", 0, 4, {"144p": {1: (1.0, 1)}})
    settings = configuration.load(config, [*options, *words])
    engine = build_engine(settings.engine)
    engine.setup(settings.seed, 600.0)
    run_dir = folder / "run"
    run_dir.mkdir()
    build = components.build_stdit

    def on_card(*args: Any, **named: Any) -> Any:
        with engine.device:
            return build(*args, **named)

    with mock.patch.object(components, "build_stdit", on_card):
        run = assemble(settings, engine, run_dir, None, "fail")
    run.loader.coming = lambda: None  # type: ignore[method-assign]
    run.loader.cells_of_step = lambda: np.zeros((1, 1), np.int64)  # type: ignore[method-assign]
    return run


def batch_of(shape: Shape) -> Batch:
    """As the loader of a feature cache makes it, of captions as long as they may be."""
    count, tokens = shape.batch_size, 300
    sizes = {"fps": 24, "height": shape.height, "width": shape.width, "num_frames": shape.frames}
    return Batch(
        microbatch=(0, 0),
        bucket=shape.name,
        rows=list(range(count)),
        text=[""] * count,
        **{name: torch.full((count,), float(value)) for name, value in sizes.items()},
        latents=torch.zeros(count, 2, 4, *shape.latent, dtype=torch.float16, pin_memory=True),
        y=torch.zeros(count, 1, tokens, 4096, dtype=torch.float16, pin_memory=True),
        mask=torch.ones(count, tokens, dtype=torch.int64),
    )


def bucket_of(shape: Shape) -> Bucket:
    size = shape.resolution, shape.frames, shape.ratio, shape.height, shape.width
    return Bucket(*size, shape.batch_size)


def lines(stages: Sequence[str] = STAGES) -> dict[str, Shape]:
    """Each line of `bucket_config` of some stage once, as "360p:51 x 8"."""
    found: dict[str, Shape] = {}
    for stage in stages:
        for shape in shapes_of(load(stage)):
            found.setdefault(f"{shape.name} x {shape.batch_size}", shape)
    return found


def buckets(stage: str) -> list[Bucket]:
    """All cells of a stage that take clips."""
    config = load(stage)
    parsed = Buckets.parse(config.bucket_config, config.bucket_semantics)
    return [cell for cell in parsed.cells if cell.batch_size]


def load(stage: str) -> Config:
    return configuration.load(stage, [])


def leave(out: Path, document: object) -> None:
    """Write what was found and end here: threads of an engine may never end."""
    part = out.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1))
    part.rename(out)
    os._exit(0)
