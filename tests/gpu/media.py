"""VAE, T5-XXL and sampling with random weights: seconds and peak memory beside the training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Item, Options

if TYPE_CHECKING:
    import torch

BUDGET_S = 300.0
REPEATS = 3
TOKENS = 300
SIZES = {"360p": (360, 640), "720p": (720, 1280)}


def items(options: Options) -> Iterator[Item]:
    frames = 17 if options.tiny else 51
    for last in (False, True):
        layout = ", channels last" if last else ""
        for name in ("encode", "decode"):
            args = (name, (frames, *SIZES["360p"]), last)
            yield Item(f"VAE {name} 360p:{frames}{layout}", vae, args, 60.0)
    yield Item(f"VAE decode 720p:{frames}", vae, ("decode", (frames, *SIZES["720p"]), False), 60.0)
    for captions in (2, 3) if options.tiny else (8, 475):
        yield Item(f"T5 {captions} captions", t5, (captions, captions), 60.0)
    if not options.tiny:
        yield Item("T5 475 captions, 32 at a time", t5, (475, 32), 60.0)
    for size in SIZES:
        yield Item(f"sampling {size}:{frames}", sampling, ((frames, *SIZES[size]),), 120.0)


def vae(
    options: Options, name: str, size: tuple[int, int, int], channels_last: bool
) -> dict[str, Any]:
    """One clip of `size` (frames, height, width) through the VAE."""
    import torch

    network = _vae(options)
    if channels_last:
        network.spatial_vae.to(memory_format=torch.channels_last)
    frames, height, width = _small(size) if options.tiny else size
    device = torch.device(options.device)
    with torch.device(device), torch.no_grad():
        if name == "encode":
            video = torch.rand(1, 3, frames, height, width, dtype=network.dtype) * 2 - 1
            found = _timed(lambda: network.encode_posterior(video), device)
        else:
            latent = torch.randn(1, 4, *network.latent_size((frames, height, width)))
            found = _timed(lambda: network.decode(latent, frames), device)
    return {"size": [frames, height, width], **found}


def t5(options: Options, captions: int, at_once: int) -> dict[str, Any]:
    """Full captions through an encoder of T5-XXL's sizes, `at_once` in one pass."""
    import torch

    from trainer.bench.encoders import TINY, XXL, random_text

    device = torch.device(options.device)
    sizes, tokens = (TINY, 16) if options.tiny else (XXL, TOKENS)
    encoder = random_text(sizes, tokens, tokens, _dtype(options), device)
    texts = ["caption"] * captions

    def encode() -> None:
        for start in range(0, captions, at_once):
            encoder.encode(texts[start : start + at_once])

    found = _timed(encode, device)
    return {"captions": captions, "tokens": tokens, "at_once": at_once, **found}


def sampling(options: Options, size: tuple[int, int, int]) -> dict[str, Any]:
    """One video in 30 steps with guidance, as `trainer.infer` makes it: denoising and decoding."""
    import torch

    from trainer.diffusion.rectified_flow import RectifiedFlow
    from trainer.models.stdit import build_stdit

    device = torch.device(options.device)
    frames, height, width = _small(size) if options.tiny else size
    steps = 2 if options.tiny else 30
    small = {"hidden_size": 64, "num_heads": 2, "depth": 1} if options.tiny else {}
    with device:
        model = build_stdit("STDiT3-XL/2", **small).to(_dtype(options)).eval()
    network = _vae(options)
    config = model.config
    shape = (1, 1, config.model_max_length, config.caption_channels)
    y = torch.randn(shape, device=device)
    y_null = model.y_embedder.y_embedding.float()
    mask = torch.ones(1, config.model_max_length, dtype=torch.int64, device=device)
    z = torch.randn(1, 4, *network.latent_size((frames, height, width)), device=device)
    values = {"fps": 24.0, "height": float(height), "width": float(width), "num_frames": frames}
    known = {name: torch.full((1,), float(value), device=device) for name, value in values.items()}
    flow = RectifiedFlow()

    @torch.inference_mode()
    def make() -> None:
        latent = flow.sample(model, z, y, y_null, mask, known, steps, 7.0)
        network.decode(latent, frames)

    return {"size": [frames, height, width], "steps": steps, **_timed(make, device, repeats=1)}


def _vae(options: Options) -> Any:
    import torch

    from trainer.bench.encoders import random_vae

    return random_vae(options.tiny, _dtype(options), torch.device(options.device))


def _dtype(options: Options) -> torch.dtype:
    import torch

    return torch.bfloat16 if options.device == "cuda" else torch.float32


def _small(size: tuple[int, int, int]) -> tuple[int, int, int]:
    frames, height, width = size
    return frames, height // 10 // 16 * 16, width // 10 // 16 * 16


def _timed(
    work: Callable[[], object], device: torch.device, repeats: int = REPEATS
) -> dict[str, Any]:
    """Seconds of the first call and the median of the next ones, FLOP, and peak memory."""
    from trainer.bench.encoders import timed

    found = timed(work, device, repeats)
    headline = f"{found.seconds:.3f} s, first call {found.first_s:.2f} s"
    headline += f"  {found.flops / 1e12:.1f} TFLOP  peak {found.peak_bytes / 1e9:.1f} GB"
    return {**asdict(found), "headline": headline}
