"""No step compiles: what a batch's shape needs is made before the first one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.trainer.ranks import environment, fork, wait

LIMIT_S = 300
pytestmark = pytest.mark.timeout(400)


def main(folder: Path) -> None:
    """A rank: warm up, then steps of the same shapes, for one engine and dtype."""
    from torch._dynamo.utils import counters

    from trainer.config.load import Config
    from trainer.data.plan.buckets import Bucket
    from trainer.diffusion.rectified_flow import RectifiedFlow
    from trainer.engine.base import build_engine
    from trainer.models import stdit
    from trainer.warm_up import WarmUp

    compile_blocks = stdit.STDiT3.compile_blocks
    stdit.STDiT3.compile_blocks = lambda self: compile_blocks(self, "eager")  # type: ignore
    settings = json.loads((folder / "settings.json").read_text())
    engine = build_engine(settings["engine"])
    engine.setup(0, 60)
    sizes = {"hidden_size": 32, "num_heads": 2, "depth": 3, "caption_channels": 8}
    model = stdit.STDiT3(stdit.STDiT3Config(**sizes, model_max_length=6))
    model.enable_grad_checkpoint(settings["grad_checkpoint"])
    model.compile_blocks()
    config = Config(plugin="zero2", dtype=settings["dtype"])
    wrapped = engine.wrap(model.train(), config)
    flow = RectifiedFlow()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    warm_up = WarmUp(model, flow, engine, lambda size: size, compiled=True, has_masks=True)
    buckets = [
        Bucket("a", frames, "1", height, width, batch)
        for batch, frames, height, width in settings["shapes"]
    ]
    seen: list[tuple[int, int]] = []
    warmed = warm_up.run(buckets, lambda done, total: seen.append((done, total)))
    same_numbers = torch.equal(before, torch.get_rng_state())
    again = warm_up.run(buckets)
    made = counters["stats"]["unique_graphs"]
    for number, bucket in enumerate(buckets * 2):
        z_BCTHW, conditions, mask_BT = warm_up._batch(
            bucket.batch_size, (bucket.frames, bucket.height, bucket.width), bucket
        )
        mask = mask_BT if number < len(buckets) else None
        loss = flow.training_losses(wrapped, z_BCTHW, conditions, mask=mask).mean()
        engine.backward(loss)
        engine.step()
    said: dict[str, Any] = {"warmed": asdict(warmed), "text": str(warmed), "again": again}
    said |= {"later": counters["stats"]["unique_graphs"] - made, "seen": seen}
    said |= {"same_numbers": same_numbers}
    (folder / f"{engine.rank}.json").write_text(json.dumps(said))
    engine.close()


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("compiled", [False, True])
def test_few_shapes_of_a_stage_are_warmed_up(number: int, compiled: bool) -> None:
    from trainer.config.load import load
    from trainer.data.plan.buckets import Buckets
    from trainer.data.plan.costs import latent_size
    from trainer.warm_up import worth_warming

    config = load(f"stage{number}", [])
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    shapes = {
        (one.batch_size, latent_size(config.vae.type, (one.frames, one.height, one.width)))
        for one in buckets.cells
        if one.batch_size
    }
    chosen = worth_warming(shapes, compiled, 1152)
    assert len(shapes) > 600
    assert len(set(chosen)) == len(chosen) <= 45
    assert set(chosen) <= shapes
    lengths = {latent[0] for _, latent in shapes}
    assert {latent[0] for _, latent in chosen} == lengths
    if compiled:
        kinds = {(latent[0], batch == 1) for batch, latent in shapes}
        assert {(latent[0], batch == 1) for batch, latent in chosen} == kinds


def volume(shape: tuple[int, tuple[int, int, int]]) -> int:
    return shape[0] * math.prod(shape[1])


def test_smallest_next_and_largest_of_a_kind_are_warmed_up() -> None:
    from trainer.warm_up import worth_warming

    pictures = [(3, (1, 4, side)) for side in (8, 16, 24, 32)]
    large = [(40, (1, 1000, side)) for side in (1000, 1008, 1016, 1024)]
    clips = [(1, (15, 4, 4)), (2, (15, 4, 4)), (2, (15, 4, 4))]
    first, second, _, last = pictures
    assert worth_warming(pictures, True, 8) == [first, second, last]
    assert worth_warming(pictures, False, 8) == [first, last]
    # 40 million values times 64 are more than 2^31: a kind of their own
    assert worth_warming(pictures + large, True, 64) == [first, second, last, *large[:2], large[3]]
    assert worth_warming(clips, True, 8) == clips[:2]
    assert worth_warming(clips, False, 8) == clips[:2]
    assert worth_warming(clips[:1], False, 8) == clips[:1]
    # of 1080p's pictures, no multiples of 8: 8083 made a program for itself, 8085 a late one
    ragged = [(3, (1, 2, side)) for side in (18, 22, 26, 30)]
    wanted = [first, second, last, *ragged[:2]]
    assert worth_warming(pictures + ragged, True, 8) == sorted(wanted, key=volume)
    # A program for 5 clips of any size was none for 36 of 720p, no multiple of 8 either.
    more = [(5, (1, 2, 34))]
    wanted = [first, second, last, ragged[0], *more]
    assert worth_warming(pictures + ragged + more, True, 8) == sorted(wanted, key=volume)


# Of batch, frames, height, width. To trace a program takes a second: a batch of one clip makes four more.
PICTURES_AND_CLIPS = [(3, 1, 4, 6), (2, 3, 4, 4), (2, 7, 8, 8)]
ALSO_SINGLE_CLIPS = [*PICTURES_AND_CLIPS, (1, 5, 6, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "dtype", "grad_checkpoint", "world", "shapes"),
    [
        ("colossal", "bf16", "all", 1, PICTURES_AND_CLIPS),
        pytest.param("colossal", "bf16", "all", 1, ALSO_SINGLE_CLIPS, marks=pytest.mark.slow),
        pytest.param("colossal", "fp32", "off", 2, ALSO_SINGLE_CLIPS, marks=pytest.mark.slow),
        pytest.param("native", "bf16", "every 2", 2, ALSO_SINGLE_CLIPS, marks=pytest.mark.slow),
    ],
)
def test_steps_after_a_warm_up_compile_nothing(
    tmp_path: Path,
    engine: str,
    dtype: str,
    grad_checkpoint: str,
    world: int,
    shapes: list[tuple[int, int, int, int]],
) -> None:
    settings = {
        "engine": engine,
        "dtype": dtype,
        "grad_checkpoint": grad_checkpoint,
        "shapes": shapes,
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    port, logs = free_port(), [tmp_path / f"{rank}.log" for rank in range(world)]
    ranks = [
        fork(main, tmp_path, env=environment(rank, world, port), log=log)
        for rank, log in enumerate(logs)
    ]
    assert wait(ranks, LIMIT_S) == [0] * world, "\n".join(log.read_text() for log in logs)
    for rank in range(world):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said["warmed"]["shapes"] == len(shapes)
        assert said["warmed"]["programs"] > 0
        assert said["text"].endswith("programs for 6 blocks")
        assert said["seen"] == [[number, len(shapes)] for number in range(len(shapes))]
        assert said["same_numbers"]
        assert said["again"] is None
        assert said["later"] == 0
