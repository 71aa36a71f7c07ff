"""Frames given instead of made: which reference goes where, and how far it may change.

A mask strategy is upstream's text: groups separated by ";", each of up to six numbers

    loop, reference, reference start, target start, length, edit ratio      (default 0,0,0,0,1,0)

Starts and lengths count latent frames, negative starts from the end. With Open-Sora's VAE 5 latent
frames are 17 video frames that stand alone, so starts snap to multiples of 5 (`align`). An edit
ratio of 0 keeps the frames as they are, 1 makes new ones.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.video.decode import Decoder, Window
from trainer.errors import ConfigError
from trainer.infer.jobs import Settings
from trainer.infer.prompts import Prompt
from trainer.models.vae.interface import VideoVAE, to_signed

# C channels · T,H,W frames, height, width: of latents, of pixels in a Window
_TIMEOUT_S = 120.0  # of one file: a dead mount or an endless one must not block the request


class Group(NamedTuple):
    """One group of a strategy, in latent frames. The default is the first frame."""

    loop: int = 0
    reference: int = 0
    reference_start: int = 0
    target_start: int = 0
    length: int = 1
    edit_ratio: float = 0.0


_NAMES = tuple(name.replace("_", " ") for name in Group._fields)


def groups_of(prompt: Prompt) -> tuple[Group, ...]:
    """The groups of a prompt's strategy. Raises ConfigError, naming the prompt."""
    strategy, references = prompt.mask_strategy.strip(), len(prompt.references)
    if references and not strategy:
        return (Group(),)
    return parse_strategy(strategy, prompt.where, references)


def parse_strategy(text: str, where: str, references: int) -> tuple[Group, ...]:
    """The groups of a strategy for so many `references`. Raises ConfigError with `where`."""
    groups = []
    for number, entry in enumerate(text.split(";") if text.strip() else []):
        place = f"{where}: mask strategy group {number} ({entry.strip()!r})"
        values = entry.split(",")
        if len(values) > len(_NAMES):
            raise ConfigError(f"{place} has {len(values)} numbers; it is {', '.join(_NAMES)}")
        group = Group(*(_number(*item, place) for item in zip(_NAMES, values, strict=False)))
        if group.loop < 0 or group.length < 1 or not 0 <= group.edit_ratio <= 1:
            raise ConfigError(
                f"{place}: loop is at least 0, length at least 1, edit ratio 0 to 1; "
                f"not {group.loop}, {group.length}, {group.edit_ratio:g}"
            )
        if not 0 <= group.reference < references:
            raise ConfigError(
                f"{place} asks for reference {group.reference}, counted from 0, of {references}",
                hint="--reference-path A;B has references 0 and 1",
            )
        groups.append(group)
    return tuple(groups)


def _number(name: str, text: str, place: str) -> Any:
    is_ratio = name == "edit ratio"
    try:
        return float(text) if is_ratio else int(text)
    except ValueError:
        wanted = "a number from 0 to 1" if is_ratio else "an integer"
        raise ConfigError(f"{place}: {name} must be {wanted}, not {text.strip()!r}") from None


def snap(value: int, align: int, length: int) -> int:
    """The multiple of `align` that `value` is nearest to and that a chunk of `length` still has."""
    chunk = value // align
    if value % align > align / 2 and chunk < length // align - 1:
        chunk += 1
    return chunk * align


def place_references(
    z_CTHW: Tensor,
    references: Sequence[Tensor],
    groups: Sequence[Group],
    loop: int,
    align: int,
    where: str,
) -> tuple[Tensor, Tensor]:
    """Latent noise with its references, and each frame's edit ratio [T] (1: made from noise). Cuts
    a group at the end of reference or clip. Raises ConfigError for a start outside."""
    z_CTHW = z_CTHW.clone()
    total = z_CTHW.shape[1]
    edit_T = torch.ones(total, device=z_CTHW.device)
    for group in (group for group in groups if group.loop == loop):
        reference = references[group.reference]
        have = reference.shape[1]
        source = _start(group.reference_start, have, align, f"{where}: reference start")
        target = _start(group.target_start, total, align, f"{where}: target start")
        length = min(group.length, total - target, have - source)
        z_CTHW[:, target : target + length] = reference[:, source : source + length]
        edit_T[target : target + length] = group.edit_ratio
    return z_CTHW, edit_T


def _start(value: int, length: int, align: int, what: str) -> int:
    if not -length <= value < length:
        raise ConfigError(f"{what} {value} is outside of {length} latent frames")
    return snap(value + length if value < 0 else value, align, length)


def frames_of(vae: VideoVAE, latents: int) -> int:
    """The most video frames whose latent has this many frames: 17 for 5 with Open-Sora's VAE."""
    frames = range(latents, latents * 64 + 1)  # no VAE here makes more than 64 frames of one
    return frames[bisect_right(frames, latents, key=lambda n: vae.latent_size((n, 64, 64))[0]) - 1]


def chunk_of(vae: VideoVAE) -> int:
    """Latent frames that the VAE makes and reads on their own; 1 where frames are independent."""
    frames = getattr(vae, "micro_frame_size", None)
    return vae.latent_size((frames, 64, 64))[0] if frames else 1


class ReferenceFiles:
    """Decodes in a helper process, which starts with the first file and ends with `close`."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}
        self._decoder = Decoder(_TIMEOUT_S, role="reference")
        self.close = self._decoder.close

    def length(self, path: str, where: str) -> int:
        """Frames of a video, 1 of an image. Raises ConfigError for what is neither."""
        if path not in self._lengths:
            facts = self._decoder.ask({"what": "probe", "path": path})
            _require_usable(path, where, facts.get("error"))
            self._lengths[path] = max(1, int(facts["num_frames"]))
        return self._lengths[path]

    def frames(self, path: str, window: Window, where: str) -> NDArray[Any]:
        """The frames of a window, [3, T, H, W] of its dtype."""
        shape = (3, window.frames, window.height, window.width)
        pixels, (reply,) = self._decoder.decode([(path, window)], shape)
        _require_usable(path, where, reply.error)
        return pixels[0]


def _require_usable(path: str, where: str, error: str | None) -> None:
    if error and "://" in path:
        raise ConfigError(
            f"{where}: the reference {path} is a URL, and files only are read",
            hint=f"curl -LO {shlex.quote(path)}, then name the file",
        )
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
        """Latent [C, T, H, W] in fp32 of file `index`, zeros where no group reaches: what lies
        before and behind the chunks in use is not decoded."""
        mine = [group for group in groups if group.reference == index]
        total = self.files.length(path, where)
        have = self.vae.latent_size((total, 64, 64))[0]
        what = f"{where}: reference start"
        starts = [_start(group.reference_start, have, align, what) for group in mine] or [0]
        # Whole chunks of the VAE: nothing before and behind those in use changes them.
        last = max([s + g.length for s, g in zip(starts, mine, strict=False)], default=1)
        total = min(total, frames_of(self.vae, -(-(last + align) // align) * align))
        chunk, skipped = getattr(self.vae, "micro_frame_size", None), 0
        if chunk:
            skipped = min(starts) // chunk_of(self.vae)
        first = skipped * (chunk or 0)
        settings = self.settings
        size = settings.height, settings.width, 1, settings.resize
        window = Window(first, total - first, 1, *size, is_fixed=True)
        pixels = self.files.frames(path, window, where)
        z_CTHW = self.encode(to_signed(torch.from_numpy(pixels).to(self.device)))
        before = skipped * chunk_of(self.vae)
        behind = have - before - z_CTHW.shape[1]
        return torch.nn.functional.pad(z_CTHW, (0, 0, 0, 0, before, behind))

    @torch.no_grad()
    def encode(self, video_CTHW: Tensor) -> Tensor:
        """Latent [C, T, H, W] in fp32 of pixels in -1..1: the mean, without random draws."""
        return self.vae.encode_posterior(video_CTHW[None]).mean[0]
