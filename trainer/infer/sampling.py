"""From jobs to frames: batches of prompts, their conditions, loop after loop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.components import Parts
from trainer.errors import ConfigError
from trainer.infer import conditions
from trainer.infer.conditions import Group
from trainer.infer.jobs import Job, Settings
from trainer.models import memory
from trainer.runlog.units import counted

# B batch · C channels · T,H,W frames, height, width; of latents unless stated
Progress = Callable[[int, int], None]  # denoising steps done, of all
_LESS = "a smaller --batch-size, --num-frames or --resolution needs less"


def generator_of(
    seed: int, index: int, sample: int = 0, loop: int = 0, what: str = ""
) -> torch.Generator:
    """The random numbers of one clip: a function of the seed, the prompt's place and the sample,
    not of batch size, number of ranks or the prompts around it."""
    more = (f"sample{sample}" if sample else "", f"loop{loop}" if loop else "", what)
    text = "/".join([str(seed), str(index), *filter(None, more)])
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@dataclass
class Sampler:
    """Makes videos with one model. Prompts come as the encoder shall read them."""

    parts: Parts
    settings: Settings
    device: torch.device

    def __post_init__(self) -> None:
        settings, vae = self.settings, self.parts.vae
        frames, length = settings.num_frames, settings.condition_frame_length
        self._size = vae.latent_size((frames, settings.height, settings.width))
        if min(self._size) < 1:
            clip = f"a clip of {frames} frames of {settings.height}x{settings.width}"
            raise ConfigError(f"{clip} is smaller than one latent")
        chunk = conditions.chunk_of(vae)
        self._align = settings.align or chunk
        self._reader = conditions.ReferenceReader(vae, settings, self.device)
        self._carried = conditions.frames_of(vae, length)
        if settings.loop > 1 and length % chunk:
            raise ConfigError(
                f"--condition-frame-length {length} must be a multiple of {chunk}: the VAE makes "
                f"{chunk} latent frames at a time"
            )
        if settings.loop > 1 and self._carried >= frames:
            raise ConfigError(
                f"--loop: {self._carried} frames of each clip of {frames} would come from the one "
                f"before ({length} latent frames), so nothing new would be made"
            )

    def videos(
        self, jobs: Sequence[Job], progress: Progress = lambda done, total: None
    ) -> Iterator[tuple[Job, NDArray[np.uint8]]]:
        """Each job with its RGB frames [T, H, W, 3]. Raises ConfigError and OutOfMemory."""
        self.parts.model.eval()
        settings, done = self.settings, 0
        size = settings.batch_size
        total = -(-len(jobs) // size) * settings.loop * settings.steps

        def step(_step: int, _z: Tensor) -> None:
            nonlocal done
            progress(done, total)
            done += 1

        try:
            for start in range(0, len(jobs), size):
                batch = jobs[start : start + size]
                what = f"{counted(len(batch), 'video')} of {settings.describe()}"
                memory.require(self._least_bytes(len(batch)), self.device, what, _LESS)
                with memory.as_one_sentence(self.device, what, _LESS), torch.inference_mode():
                    frames_BTHW3 = self._batch(batch, step)
                yield from zip(batch, frames_BTHW3, strict=True)
        finally:
            self._reader.files.close()

    def _batch(self, jobs: Sequence[Job], step: Callable[[int, Tensor], None]) -> NDArray[np.uint8]:
        settings = self.settings
        groups = [list(conditions.groups_of(job.prompt)) for job in jobs]
        references = [
            [
                self._reader.read(path, number, own, self._align, job.prompt.where)
                for number, path in enumerate(job.prompt.references)
            ]
            for job, own in zip(jobs, groups, strict=True)
        ]
        whole: list[Tensor] = []
        for loop in range(settings.loop):
            z_BCTHW, edit_BT = self._start(jobs, groups, references, loop)
            z_BCTHW = self._denoise(jobs, z_BCTHW, edit_BT, loop, step)
            made = []
            # One clip at a time: 8 of 408 frames at 720p are 36 GB in fp32.
            for z_CTHW, mine, own in zip(z_BCTHW, groups, references, strict=True):
                video_CTHW = self.parts.vae.decode(z_CTHW[None], settings.num_frames)[0]
                video_CTHW = video_CTHW.float().clamp(-1, 1)
                if loop + 1 < settings.loop:
                    # What the next clip continues: whole chunks of the VAE when encoded alone.
                    length, edit = settings.condition_frame_length, settings.condition_frame_edit
                    mine.append(Group(loop + 1, len(own), length=length, edit_ratio=edit))
                    own.append(self._reader.encode(video_CTHW[:, -self._carried :]))
                new = video_CTHW[:, self._carried :] if loop else video_CTHW
                made.append(((new + 1) * 127.5).round_().byte().permute(1, 2, 3, 0).cpu())
            whole.append(torch.stack(made))
        return torch.cat(whole, dim=1).numpy()

    def _start(
        self,
        jobs: Sequence[Job],
        groups: Sequence[Sequence[Group]],
        references: Sequence[Sequence[Tensor]],
        loop: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Noise with the given frames in it, and their edit ratios (None: nothing is given)."""
        clips, edits = [], []
        for job, mine, own in zip(jobs, groups, references, strict=True):
            generator = generator_of(self.settings.seed, job.prompt.index, job.sample, loop)
            # fp32 from the CPU, so that a seed means the same video on every device.
            z_CTHW = torch.randn(self.parts.vae.out_channels, *self._size, generator=generator)
            z_CTHW = z_CTHW.to(self.device)
            here = self._align, job.prompt.where
            z_CTHW, edit_T = conditions.place_references(z_CTHW, own, mine, loop, *here)
            clips.append(z_CTHW)
            edits.append(edit_T)
        edit_BT = torch.stack(edits)
        return torch.stack(clips), None if bool((edit_BT == 1).all()) else edit_BT

    def _denoise(
        self,
        jobs: Sequence[Job],
        z_BCTHW: Tensor,
        edit_BT: Tensor | None,
        loop: int,
        step: Callable[[int, Tensor], None],
    ) -> Tensor:
        settings, model = self.settings, self.parts.model
        y, text_mask = self.parts.text.encode([job.prompt.at_loop(loop) for job in jobs])
        y_null, null_mask = model.y_embedder.y_embedding, None
        if settings.negative_prompt is not None and settings.cfg_scale != 1:
            y_null, null_mask = self.parts.text.encode([settings.negative_prompt])
        size = {
            name: torch.full((len(jobs),), float(getattr(settings, name)), device=self.device)
            for name in ("fps", "height", "width", "num_frames")
        }
        generator = [
            generator_of(settings.seed, job.prompt.index, job.sample, loop, "edit") for job in jobs
        ]
        return self.parts.flow.sample(
            model,
            z_BCTHW,
            y.to(self.device, torch.float32),
            y_null.to(self.device, torch.float32),
            text_mask,
            size,
            settings.steps,
            settings.cfg_scale,
            generator=generator,
            progress=step,
            frame_mask=edit_BT,
            null_mask=null_mask,
        )

    def _least_bytes(self, count: int) -> int:
        """A lower bound of a batch's bytes: pixels, latents and the activations of one block."""
        settings, config = self.settings, self.parts.model.config
        pixels = count * settings.num_frames * settings.height * settings.width * 3
        halves = 1 + (settings.cfg_scale != 1)
        sizes = zip(self._size, config.patch_size, strict=True)
        tokens = count * halves * math.prod(-(-size // patch) for size, patch in sizes)
        width = self.parts.model.x_embedder.proj.weight.element_size() * config.hidden_size
        # Tokens themselves, their queries, keys and values; decoded pixels in fp32 and bytes.
        return max(pixels * 5, tokens * width * 4)
