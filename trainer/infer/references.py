"""Images and videos to start from: read with a deadline, each as far as it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.video.decode import Decoder
from trainer.data.video.pixels import to_signed
from trainer.data.video.window import Window
from trainer.errors import ConfigError
from trainer.infer.conditions import Group, frames_of
from trainer.infer.request import Settings
from trainer.models.vae.interface import VideoVAE

# C channels · T,H,W frames, height, width
_TIMEOUT_S = 120.0  # of one file: a dead mount or an endless one must not block the request


@dataclass
class ReferenceFiles:
    """Decodes in a helper process, which starts with the first file and ends with `close`."""

    _lengths: dict[str, int] = field(default_factory=dict)
    _decoder: Decoder | None = None

    def length(self, path: str, where: str) -> int:
        """Frames of a video, 1 of an image. Raises ConfigError for what is neither."""
        if path not in self._lengths:
            facts = self._helper().probe(path)
            _require_usable(path, where, facts.get("error"))
            self._lengths[path] = max(1, int(facts["num_frames"]))
        return self._lengths[path]

    def frames(self, path: str, window: Window, where: str) -> NDArray[Any]:
        """The frames of a window, [3, T, H, W] of its dtype."""
        shape = (3, window.frames, window.height, window.width)
        pixels, (reply,) = self._helper().decode([(path, window)], shape)
        _require_usable(path, where, reply.error)
        return pixels[0].copy()

    def close(self) -> None:
        """May be used again afterwards."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    def _helper(self) -> Decoder:
        if self._decoder is None:
            self._decoder = Decoder(_TIMEOUT_S, role="reference")
        return self._decoder


def _require_usable(path: str, where: str, error: str | None) -> None:
    if error:
        raise ConfigError(f"{where}: the reference {path} cannot be used: {error}")


@dataclass(frozen=True)
class ReferenceReader:
    """Files to latents of one size."""

    vae: VideoVAE
    settings: Settings
    device: torch.device
    files: ReferenceFiles = field(default_factory=ReferenceFiles)

    def read(
        self, path: str, index: int, groups: Sequence[Group], align: int, where: str
    ) -> Tensor:
        """Latent [C, T, H, W] in fp32 of file `index`, as far as the groups reach into it."""
        mine = [group for group in groups if group.reference == index]
        total = self.files.length(path, where)
        if all(group.reference_start >= 0 for group in mine):
            # Up to the end of the last chunk in use: what comes later changes nothing before it.
            last = max((group.reference_start + group.length for group in mine), default=1)
            total = min(total, frames_of(self.vae, -(-(last + align) // align) * align))
        settings = self.settings
        window = Window(0, total, 1, settings.height, settings.width, 1, settings.resize)
        pixels = self.files.frames(path, window, where)
        return self.encode(to_signed(torch.from_numpy(pixels).to(self.device)))

    @torch.no_grad()
    def encode(self, video_CTHW: Tensor) -> Tensor:
        """Latent [C, T, H, W] in fp32 of pixels in -1..1: the mean, without random draws."""
        return self.vae.encode_mean(video_CTHW[None])[0].float()
