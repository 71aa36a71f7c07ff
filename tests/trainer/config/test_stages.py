"""The shipped configs: the seven stages have the tutorial's numbers, and every file describes a run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.config.file import CONFIGS
from trainer.config.load import Config
from trainer.config.load import load as load_config
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan
from trainer.diffusion.frame_masks import build_masks
from trainer.diffusion.rectified_flow import build_flow
from trainer.models.stdit import build_stdit
from trainer.optim.lr_schedules import rate_of

SHIPPED = sorted(path.stem for path in CONFIGS.glob("[!_]*.py"))
STAGES = [f"stage{number}" for number in range(1, 8)]
BUMP = {"lr_schedule": "1cycle", "min_lr": 1.6e-5, "cooldown_steps": 400, "anneal_strategy": "cos"}

# Stage -> what the tutorial says of it.
TUTORIAL: dict[str, dict[str, Any]] = {
    "stage1": {"lr": 1.6e-4, "epochs": 5, "lr_schedule": None, "masked": 0.2},
    "stage2": {"lr": 1.6e-4, "epochs": 5, "lr_schedule": None, "masked": 0.25},
    "stage3": {"lr": 2e-4, "epochs": 5, "lr_schedule": None, "masked": 0.25},
    "stage4": {"lr": 1.6e-4, "max_lr": 6.4e-4, "epochs": 3, "masked": 0, **BUMP},
    "stage5": {"lr": 1.6e-4, "max_lr": 6.4e-4, "epochs": 1, "masked": 0, **BUMP},
    "stage6": {"lr": 0.8e-4, "max_lr": 3.2e-4, "epochs": 1, "masked": 0, **BUMP},
    "stage7": {"lr": 0.8e-4, "max_lr": 3.2e-4, "epochs": 3, "masked": 0, **BUMP},
}


@functools.cache
def load(name: str) -> Config:
    return load_config(name)


@pytest.mark.long
@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_the_tutorials_numbers(name: str) -> None:
    config, wanted = load(name), dict(TUTORIAL[name])
    masked = wanted.pop("masked")
    assert sum((config.mask_ratios or {}).values()) == pytest.approx(masked)
    assert (config.mask_ratios is None) == (masked == 0)
    assert {key: getattr(config, key) for key in wanted} == wanted
    assert config.warmup_steps == 400
    assert config.weight_decay == 0.01
    assert (config.seed, config.grad_clip, config.ema_decay, config.adam_eps) == (42, 1.0, 0.99, 1e-15)  # fmt: skip
    assert config.model.type == "STDiT3-XL/2"
    assert config.model.options == {"qk_norm": True, "freeze_y_embedder": True}
    assert config.scheduler.use_timestep_transform
    assert config.scheduler.sample_method == "logit-normal"
    assert config.notes == ()


def test_stages_4_to_7_repeat_the_sizes_of_the_first_three() -> None:
    tables = [load(name).bucket_config for name in STAGES]
    assert tables[3] == tables[0]
    assert tables[4] == tables[1]
    assert tables[5] == tables[6] == tables[2]
    # frames x height x width are pairs of (share, batch): a few of each table, by the published files
    assert tables[0]["360p"][102] == ((0.15, 0.33), 4)
    assert tables[1]["512"][408] == ((0.4, 0.5), 1)
    assert tables[2]["720p"] == {1: (0.3, 36), 51: (0.2, 2), 102: (0.1, 1), 204: (0.0, None)}


def test_the_bump_goes_up_and_down_once() -> None:
    config = load("stage6")
    rate = rate_of(config)
    picked = [rate(step) for step in (0, 400, 800, 5000)]
    assert picked == pytest.approx([1.6e-5, 3.2e-4, 0.8e-4, 0.8e-4])


def clips(count: int = 4000) -> Manifest:
    """Clips and images of every size and length."""
    random = np.random.default_rng(0)
    sizes = np.array([(144, 256), (240, 426), (360, 640), (480, 854), (720, 1280), (1080, 1920), (1440, 1440)])  # fmt: skip
    lengths = np.array([1, 16, 52, 103, 205, 409, 900])
    height, width = sizes[random.integers(len(sizes), size=count)].T.astype(np.int32)
    return Manifest(
        Path("clips.csv"),
        Path(),
        [f"{row}.mp4" for row in range(count)],
        ["a clip"] * count,
        lengths[random.integers(len(lengths), size=count)].astype(np.int32),
        height,
        width,
        np.full(count, 24, np.float32),
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_config_gives_a_plan_a_flow_and_masks(name: str) -> None:
    config = load(name)
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    plan = DataPlan(clips(), buckets, config.seed)
    if name != "demo":  # 16 x 16 clips only
        assert len(plan.epoch(0)) > 0
    build_flow(config.scheduler)
    build_masks(config.mask_ratios)


@pytest.mark.long
@pytest.mark.parametrize("name", ["demo", "image", "stage1"])
def test_a_shipped_configs_network_can_be_built(name: str) -> None:
    config = load(name)
    with torch.device("meta"):
        model = build_stdit(config.model.type, **config.model.options)
    count = sum(parameter.numel() for parameter in model.parameters())
    if config.model.type == "STDiT3-XL/2":
        assert count == 1_207_643_972
        assert len(model.state_dict()) == 973
        assert not any(p.requires_grad for p in model.y_embedder.parameters())
    else:
        assert count < 3_000_000


def test_all_stages_train_one_network() -> None:
    assert len({str(load(name).model) for name in [*STAGES, "image"]}) == 1
