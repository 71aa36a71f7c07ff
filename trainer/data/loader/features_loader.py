"""Batches from a feature cache, in the loader's order, with its substitutes and deadlines.

Nothing is decoded.
"""

# B clips · C channels · Z,h,w latent frames, height, width · L tokens

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features.cache import POSTERIOR, Features, Shards
from trainer.data.features.files import FeaturesError
from trainer.data.loader.dataset import Loader, LoaderOptions, Worker
from trainer.data.loader.microbatch import Batch, Clip, Task
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.data.video.decode import IMAGE_FPS
from trainer.errors import TooManyBadSamples
from trainer.models.vae.interface import Posterior


class FeatureWorker(Worker):
    """A thread that reads; it has no decoding process."""

    def __init__(
        self, options: LoaderOptions, role: str, features: Features, ids: NDArray[np.uint64]
    ) -> None:
        self._features, self._ids = features, ids
        self._shards = features.shards()
        super().__init__(options, role)

    def _make(self, task: Task, pin: bool) -> Batch:
        return read_batch(task, self._features, self._shards, self._ids, pin)

    def _end(self) -> None:
        self._shards.close()


class FeatureLoader(Loader):
    """A Loader whose batches have `latents`, `y` and `mask` instead of `video`."""

    def __init__(
        self,
        features: Features,
        plan: DataPlan,
        cursor: Cursor,
        rank: int,
        world: int,
        workers: int,
        options: LoaderOptions,
        each: int = 1,
    ) -> None:
        super().__init__(plan, cursor, rank, world, workers, options, each)
        self._features = features

    def stand_in(self) -> Batch:
        """As `Loader.stand_in`, with latents of zeros and a caption of one token."""
        batch, features = super().stand_in(), self._features
        assert batch.video is not None
        frames, height, width = batch.video.shape[2:]
        size = features.grid.latent_size((frames, height, width))
        batch.video = None
        copies = 2 if features.kind == POSTERIOR else 1
        batch.latents = torch.zeros(1, copies, features.grid.channels, *size)
        batch.y = torch.zeros(1, 1, features.max_tokens, features.text_channels)
        batch.mask = torch.zeros(1, features.max_tokens, dtype=torch.int64)
        batch.mask[:, 0] = 1
        return batch

    def _worker(self, role: str) -> Worker:
        return FeatureWorker(self._options, role, self._features, self.plan.content_ids)


def read_batch(
    task: Task, features: Features, shards: Shards, ids: NDArray[np.uint64], pin: bool = False
) -> Batch:
    """One microbatch. Clips that could not be encoded are replaced from the spares, in their order.

    Raises FeaturesError for what is not there or damaged, TooManyBadSamples when nothing is left to
    stand in.
    """
    start_s = time.thread_time()
    bucket, spares = task.bucket, deque(task.spares)
    found: list[tuple[Clip, Tensor, float]] = []
    bad: list[tuple[int, str, str]] = []
    for clip in task.clips:
        chosen: Clip | None = clip
        while chosen is not None:
            clip_id = int(ids[chosen.row])
            reason = features.bad.get((clip_id, bucket.height, bucket.width))
            if reason is None:
                read = shards.window(
                    clip_id, bucket.height, bucket.width, bucket.frames, chosen.start, task.interval
                )
                if read is None:
                    raise FeaturesError(
                        f"{features.folder} lacks {chosen.path} at {bucket.height}x{bucket.width} "
                        f"for {bucket.frames} frames",
                        hint=f"python -m trainer.data encode CONFIG {features.folder} "
                        "adds what is missing",
                    )
                rate = _rate(chosen, read[1], task)
                if rate:
                    found.append((chosen, read[0], rate))
                    break
                reason = "frame rate unknown"
            bad.append((chosen.row, chosen.path, reason))
            chosen = spares.popleft() if spares else None
        if chosen is None:
            lines = "".join(f"\n  {path}: {why}" for _, path, why in bad[:10])
            raise TooManyBadSamples(
                f"no clip of bucket {bucket.name} is left as a replacement{lines}"
            )
    latents = torch.stack([latent for _, latent, _ in found])
    y, mask = _captions([clip for clip, _, _ in found], features, shards)
    if pin:
        latents, y = latents.pin_memory(), y.pin_memory()
    return Batch.of(
        bucket,
        (task.epoch, task.index),
        [clip.row for clip, _, _ in found],
        [clip.text for clip, _, _ in found],
        torch.tensor([rate for _, _, rate in found], dtype=torch.float32),
        latents=latents,
        y=y,
        mask=mask,
        bad=bad,
        decode_s=time.thread_time() - start_s,
    )


def _captions(clips: list[Clip], features: Features, shards: Shards) -> tuple[Tensor, Tensor]:
    parts = []
    for clip in clips:
        part = shards.text(clip.text)
        if part is None:
            raise FeaturesError(
                f"{features.folder} lacks the caption of {clip.path} ({clip.text[:60]!r})",
                hint=f"python -m trainer.data encode CONFIG {features.folder} adds what is missing",
            )
        parts.append(part)
    shape = (len(parts), 1, features.max_tokens, features.text_channels)
    y = torch.zeros(shape, dtype=parts[0].dtype)
    mask = torch.zeros(shape[0], shape[2], dtype=torch.int64)
    for row, part in enumerate(parts):
        y[row, 0, : len(part)] = part
        mask[row, : len(part)] = 1
    return y, mask


def _rate(clip: Clip, file_fps: float, task: Task) -> float:
    """As `microbatch` has it: the manifest's rate, else the file's; 0: neither knows."""
    if task.bucket.frames == 1:
        return IMAGE_FPS
    return (clip.fps if clip.fps > 0 else file_fps) / task.interval


def latents_of(stored_BPCZHW: Tensor) -> Tensor:
    """Latent fp32 [B, C, Z, h, w]: a draw of each posterior where there are two numbers.

    Draws from torch's own generator of the tensor's device.
    """
    values = stored_BPCZHW.float()
    if values.shape[1] == 1:
        return values[:, 0]
    return Posterior(values[:, 0], values[:, 1]).sample()


class NoVAE:
    """Stands for the VAE of a run from features: it knows sizes, and its work is done."""

    def __init__(self, features: Features) -> None:
        self._grid = features.grid
        self.out_channels = features.grid.channels

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        return self._grid.latent_size(video_size)

    def encode(self, video_BCTHW: Tensor, generator: Any = None) -> Tensor:
        """Zeros, at no cost: what is timed at a run's start is the step without a VAE."""
        _, _, frames, height, width = video_BCTHW.shape
        size = self.latent_size((frames, height, width))
        return video_BCTHW.new_zeros(len(video_BCTHW), self.out_channels, *size)

    def to(self, device: torch.device | str) -> NoVAE:
        return self


class NoText:
    """Stands for the text encoder of a run from features."""

    def __init__(self, features: Features) -> None:
        self.channels, self.max_length = features.encoder_channels, features.max_tokens
        self._stored_channels = features.text_channels

    def encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Zeros, at no cost."""
        y = torch.zeros(len(texts), 1, self.max_length, self._stored_channels)
        return y, torch.ones(len(texts), self.max_length, dtype=torch.int64)

    def to(self, device: torch.device | str) -> NoText:
        return self
