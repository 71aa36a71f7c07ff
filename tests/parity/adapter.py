"""What the golden-data checker calls: Open-Sora 1.2's functions, done by our own classes.

Only argument orders are translated here; no arithmetic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.trainer.data.upstream_order import UpstreamBuckets, UpstreamPlan
from trainer.captions import clean_caption
from trainer.config.load import Config
from trainer.data.manifest.manifest import Manifest
from trainer.diffusion.frame_masks import draw_mask
from trainer.diffusion.rectified_flow import RectifiedFlow, upstream_frames
from trainer.diffusion.rectified_flow import timestep_transform as transform
from trainer.models.stdit import STDiT3, STDiT3Config
from trainer.models.stdit_config import PRESETS
from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings
from trainer.optim.lr_schedules import rate_of


def build_stdit3(config: dict[str, Any]) -> nn.Module:
    return STDiT3(STDiT3Config(**config))


def timestep_transform(
    t: Tensor,
    height: Tensor,
    width: Tensor,
    num_frames: Tensor,
    num_timesteps: int = 1000,
    scale: float = 1.0,
) -> Tensor:
    return transform(t, height, width, upstream_frames(num_frames), num_timesteps, scale)


def training_loss(
    model: Any,
    x_start: Tensor,
    noise: Tensor,
    t: Tensor,
    mask: Tensor | None = None,
    model_kwargs: dict[str, Any] | None = None,
    num_timesteps: int = 1000,
) -> Tensor:
    flow = RectifiedFlow(num_timesteps=num_timesteps)
    return flow.training_losses(model, x_start, model_kwargs, mask=mask, t=t, noise=noise)


def sample(
    model: Any,
    z: Tensor,
    y: Tensor,
    y_null: Tensor,
    text_mask: Tensor,
    args: dict[str, Tensor],
    steps: int,
    cfg_scale: float,
    use_timestep_transform: bool,
    use_discrete_timesteps: bool,
    frame_mask: Tensor | None = None,
    noises: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    flow = RectifiedFlow(
        use_timestep_transform=use_timestep_transform,
        use_discrete_timesteps=use_discrete_timesteps,
        timestep_transform="upstream",
    )
    seen: list[Tensor] = []
    final = flow.sample(
        model,
        z,
        y,
        y_null,
        text_mask,
        args,
        steps,
        cfg_scale,
        progress=lambda step, z: seen.append(z.clone()),
        frame_mask=frame_mask,
        noises=noises,
    )
    return torch.stack(seen), final


def lr_values(kind: str, params: dict[str, Any], base_lr: float, n: int) -> list[float]:
    final_lr = params.get("final_lr", base_lr)  # the config's own lr
    options = {key: value for key, value in params.items() if key != "final_lr"}
    rate = rate_of(Config(lr=final_lr, lr_schedule=kind, **options))
    return [rate(step) for step in range(n)]


def masks(kind: str, T: int, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([draw_mask(kind, T, generator) for _ in range(n)])


def build_vae(config: dict[str, Any]) -> nn.Module:
    return OpenSoraVAE(VideoVAESettings.from_dict(config))


def vae_encode(vae: Any, x: Tensor, noises: list[Tensor] | None = None) -> Tensor:
    """Upstream draws per micro batch of frames [N, C, H, W], then per chunk [B, C, T, H, W]."""
    if noises is None:
        return vae.encode_posterior(x).mean
    frames = torch.cat([noise for noise in noises if noise.ndim == 4])
    chunks = torch.cat([noise for noise in noises if noise.ndim == 5], dim=2)
    return vae.encode(x, noises=(frames, chunks))


def vae_decode(vae: Any, z: Tensor, num_frames: int) -> Tensor:
    return vae.decode(z, num_frames)


def clean_text(s: str) -> str:
    return clean_caption(s)


def state_dict_shapes(name: str) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model: nn.Module
        if name == "OpenSoraVAE_V1_2":
            model = OpenSoraVAE(VideoVAESettings())
        else:
            model = STDiT3(STDiT3Config(**PRESETS[name]))  # type: ignore[arg-type]
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def _manifest(rows: list[dict[str, Any]]) -> Manifest:
    def column(name: str) -> np.ndarray:
        return np.array([int(row[name]) for row in rows], np.int32)

    paths = [str(row.get("path", row["id"])) for row in rows]
    sizes = (column("num_frames"), column("height"), column("width"))
    blank = Path()
    return Manifest(blank, blank, paths, [""] * len(rows), *sizes, np.ones(len(rows), np.float32))


def bucket_ids(
    rows: list[dict[str, Any]],
    bucket_config: dict[str, Any],
    seed: int,
    epoch: int,
    frame_interval: int,
) -> list[tuple[str, int, str] | None]:
    buckets = UpstreamBuckets.parse(bucket_config)
    cells = buckets.assign(_manifest(rows), seed, epoch, frame_interval)
    return [buckets.cells[cell][:3] if cell >= 0 else None for cell in cells]


def bucket_batches(
    rows: list[dict[str, Any]],
    bucket_config: dict[str, Any],
    seed: int,
    epoch: int,
    num_replicas: int,
    rank: int,
    drop_last: bool,
) -> list[list[str]]:
    """Without drop_last upstream fills the last step up with the first microbatches."""
    buckets = UpstreamBuckets.parse(bucket_config)
    plan = UpstreamPlan(_manifest(rows), buckets, seed, drop_last=drop_last)
    batches = list(plan.epoch(epoch))
    over = len(batches) % num_replicas
    if over:
        batches = batches[:-over] if drop_last else batches + batches[: num_replicas - over]
    shapes = [(batch, buckets.cells[batch.cell]) for batch in batches[rank::num_replicas]]
    return [
        [f"{row}-{bucket.frames}-{bucket.height}-{bucket.width}" for row in batch.rows]
        for batch, bucket in shapes
    ]
