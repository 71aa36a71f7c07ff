"""Frames given instead of made: which reference goes where, and how far it may change.

A mask strategy is upstream's text: groups separated by ";", each of up to six numbers

    loop, reference, reference start, target start, length, edit ratio      (default 0,0,0,0,1,0)

Starts and lengths count latent frames; negative starts count from the end. With Open-Sora's VAE 5
latent frames are 17 video frames that stand alone, so starts snap to multiples of 5 (`align`). An
edit ratio of 0 keeps the frames as they are, 1 makes new ones, between them it says how much they
may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.errors import ConfigError
from trainer.models.vae.interface import VideoVAE

# C channels · T,H,W latent frames, height, width
_NAMES = ("loop", "reference", "reference start", "target start", "length", "edit ratio")
_DEFAULT = ("0", "0", "0", "0", "1", "0")
FIRST_FRAME = ",".join(_DEFAULT)  # what a reference without a strategy means


class Group(NamedTuple):
    """One group of a strategy, in latent frames."""

    loop: int
    reference: int
    reference_start: int
    target_start: int
    length: int
    edit: float


def parse_strategy(text: str, where: str, references: int) -> tuple[Group, ...]:
    """The groups of a strategy for so many `references`. Raises ConfigError with `where`."""
    groups = []
    for number, entry in enumerate(text.split(";") if text.strip() else []):
        place = f"{where}: mask strategy group {number} ({entry.strip()!r})"
        values = [word.strip() for word in entry.split(",")]
        if len(values) > len(_DEFAULT):
            raise ConfigError(f"{place} has {len(values)} numbers; it is {', '.join(_NAMES)}")
        values += _DEFAULT[len(values) :]
        loop, reference, source, target, length = _whole(values[:5], place)
        group = Group(loop, reference, source, target, length, _number(values[5], place))
        if group.loop < 0 or group.length < 1 or not 0 <= group.edit <= 1:
            raise ConfigError(
                f"{place}: loop is at least 0, length at least 1, edit ratio 0 to 1; "
                f"not {group.loop}, {group.length}, {group.edit:g}"
            )
        if not 0 <= group.reference < references:
            raise ConfigError(
                f"{place} asks for reference {group.reference}, counted from 0, of {references}",
                hint="--reference-path A;B has references 0 and 1",
            )
        groups.append(group)
    return tuple(groups)


def _whole(values: Sequence[str], place: str) -> list[int]:
    found = []
    for name, text in zip(_NAMES, values, strict=False):
        try:
            found.append(int(text))
        except ValueError:
            raise ConfigError(f"{place}: {name} must be an integer, not {text!r}") from None
    return found


def _number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"{place}: {_NAMES[5]} must be a number from 0 to 1, not {text!r}"
        ) from None


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
    """Latent noise with its references, and each frame's edit ratio [T] (1: made from noise).

    A group longer than the reference or the clip is cut, as upstream does. Raises ConfigError for
    one that starts outside of either.
    """
    z_CTHW = z_CTHW.clone()
    total = z_CTHW.shape[1]
    edit_T = torch.ones(total, device=z_CTHW.device)
    for group in groups:
        if group.loop != loop:
            continue
        reference = references[group.reference]
        have = reference.shape[1]
        source = _start(group.reference_start, have, align, f"{where}: reference start")
        target = _start(group.target_start, total, align, f"{where}: target start")
        length = min(group.length, total - target, have - source)
        z_CTHW[:, target : target + length] = reference[:, source : source + length]
        edit_T[target : target + length] = group.edit
    return z_CTHW, edit_T


def _start(value: int, length: int, align: int, what: str) -> int:
    if not -length <= value < length:
        raise ConfigError(f"{what} {value} is outside of {length} latent frames")
    return snap(value + length if value < 0 else value, align, length)


def frames_of(vae: VideoVAE, latents: int) -> int:
    """The most video frames whose latent has this many frames: 17 for 5 with Open-Sora's VAE."""
    low, high = latents, latents * 64  # no VAE here makes more than 64 frames of one
    while low < high:
        middle = (low + high + 1) // 2
        if vae.latent_size((middle, 64, 64))[0] <= latents:
            low = middle
        else:
            high = middle - 1
    return low


def chunk_of(vae: VideoVAE) -> int:
    """Latent frames that the VAE makes and reads on their own; 1 where frames are independent."""
    frames = getattr(vae, "micro_frame_size", None)
    return vae.latent_size((frames, 64, 64))[0] if frames else 1
