"""VAE, T5-XXL and sampling with random weights: seconds and peak memory beside the training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    import torch

REPEATS = 3
TOKENS = 300
SIZE = (51, 360, 640)  # frames, height, width
STEPS = 30


def t5(options: Options, figures: Figures) -> str:
    """Full captions through an encoder of T5-XXL's sizes, the batch of 360p:51 and more."""
    import torch

    from trainer.bench.encoders import TINY, XXL, random_text

    device = torch.device(options.device)
    sizes, tokens = (TINY, 16) if options.tiny else (XXL, TOKENS)
    encoder = random_text(sizes, tokens, tokens, _dtype(options), device)
    found = {}
    for captions in (2, 3) if options.tiny else (8, 64):
        texts = ["caption"] * captions
        work = lambda texts=texts: _timed(lambda: encoder.encode(texts), device)  # noqa: E731
        found[captions] = figures.attempt(f"{captions} captions", work)
    return ", ".join(f"{n} captions {_said(one)}" for n, one in found.items() if one)


def vae(options: Options, figures: Figures) -> str:
    """One clip through the VAE both ways, its images first plain in memory, then channels last."""
    import torch

    network, device = _vae(options), torch.device(options.device)
    frames, height, width = _size(options)
    video = torch.rand(1, 3, frames, height, width, dtype=network.dtype, device=device) * 2 - 1
    latent = torch.randn(1, 4, *network.latent_size((frames, height, width)), device=device)
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: network.encode_posterior(video),
        "decode": lambda: network.decode(latent, frames),
    }
    found = {}
    for layout in ("", ", channels last"):
        network.spatial_vae.channels_last = bool(layout)
        for name, work in works.items():
            title = f"{name}{layout}"
            found[title] = figures.attempt(title, lambda work=work: _timed(work, device))
    return ", ".join(f"{name} {_said(one)}" for name, one in found.items() if one)


def sampling(options: Options, figures: Figures) -> str:
    """One video with guidance, as `trainer.infer` makes it, up to the latent (decoding: see `vae`)."""
    import torch

    from trainer.data.plan.costs import latent_size, now
    from trainer.diffusion.rectified_flow import RectifiedFlow
    from trainer.models.stdit import build_stdit

    device, (frames, height, width) = torch.device(options.device), _size(options)
    steps = 2 if options.tiny else STEPS
    small = {"hidden_size": 64, "num_heads": 2, "depth": 1} if options.tiny else {}
    with device:
        model = build_stdit("STDiT3-XL/2", **small).to(_dtype(options)).eval()
    config = model.config
    shape = (1, 1, config.model_max_length, config.caption_channels)
    y = torch.randn(shape, device=device)
    y_null = model.y_embedder.y_embedding.float()
    # On the host, as trainer.infer has it: captions are then packed.
    mask = torch.ones(1, config.model_max_length, dtype=torch.int64)
    z = torch.randn(1, 4, *latent_size("OpenSoraVAE_V1_2", (frames, height, width)), device=device)
    values = {"fps": 24.0, "height": float(height), "width": float(width), "num_frames": frames}
    known = {name: torch.full((1,), float(value), device=device) for name, value in values.items()}
    flow = RectifiedFlow()

    @torch.inference_mode()
    def make(count: int) -> object:
        return flow.sample(model, z, y, y_null, mask, known, count, 7.0)

    one = figures.attempt("1 step", lambda: _timed(lambda: make(1), device))

    def whole() -> dict[str, Any]:
        begin = now(device)
        make(steps)
        return {"call_s": now(device) - begin, "peak_bytes": (one or {}).get("peak_bytes", 0)}

    found = figures.attempt(f"{steps} steps", whole)
    return f"{steps} steps {_said(found)}" if found else "it could not be measured"


def _vae(options: Options) -> Any:
    import torch

    from trainer.bench.encoders import random_vae

    return random_vae(options.tiny, _dtype(options), torch.device(options.device))


def _dtype(options: Options) -> torch.dtype:
    import torch

    return torch.bfloat16 if options.device == "cuda" else torch.float32


def _size(options: Options) -> tuple[int, int, int]:
    return (17, 32, 64) if options.tiny else SIZE


def _timed(
    work: Callable[[], object], device: torch.device, repeats: int = REPEATS
) -> dict[str, Any]:
    """Seconds of the first call and the median of the next ones, FLOP, and peak memory."""
    from trainer.bench.encoders import timed

    figures = asdict(timed(work, device, repeats))
    return {"call_s": figures.pop("seconds"), **figures}


def _said(found: dict[str, Any]) -> str:
    return f"{found['call_s']:.3f} s ({found['peak_bytes'] / 1e9:.3g} GB)"
