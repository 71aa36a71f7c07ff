"""VAE and text encoder beside a training step: seconds, bytes and FLOP of encoding a microbatch.

A run without a feature cache encodes each microbatch in its step. Weights are random where there
are none on this machine; that changes nothing of what is measured. Runs in a child process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.bench.peaks import held_bytes, peak_bytes, reset_peak
from trainer.bench.trial import Spec, prepared
from trainer.components import build_text_encoder, build_vae
from trainer.data.plan.costs import now
from trainer.models.memory import MemoryBudget
from trainer.models.text import TextEncoder
from trainer.models.vae.interface import IdentityVAE, VideoVAE, to_signed

VAE, TEXT = "vae", "text"
# The encoder of DeepFloyd/t5-v1_1-xxl, which Open-Sora reads, as fields of T5Config.
XXL = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "vocab_size": 32128}
TINY = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 99}
TINY_VAE = {
    "spatial": {"block_out_channels": [8, 8, 8, 8], "norm_num_groups": 4},
    "temporal": {"filters": 8, "num_groups": 4},
}
_PUBLISHED, _SMALL = "random, published sizes", "random, small sizes"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoder on one microbatch; seconds are the median of the calls after the first."""

    seconds: float
    first_s: float
    peak_bytes: int
    start_bytes: int  # weights and inputs
    flops: int  # of matrix products and convolutions
    weights: str  # where they are from


def encode_trial(
    spec: Spec, name: str, tiny: bool, progress: Callable[[int, int], None]
) -> Encoding:
    """The bucket's clips through the VAE, or as many captions through the text encoder."""
    device = prepared(spec)
    dtype = torch.bfloat16 if spec.config.dtype == "bf16" else torch.float32
    if name == VAE:
        vae, weights = _vae(spec, tiny, dtype, device)
        shape = spec.shape
        sizes = (shape.batch_size, 3, shape.frames, shape.height, shape.width)
        video = torch.randint(0, 256, sizes, dtype=torch.uint8, device=device)

        def work() -> object:
            return vae.encode(to_signed(video))
    else:
        text, weights = _text(spec, tiny, dtype, device)

        def work() -> object:
            return text.encode([""] * spec.shape.batch_size)

    return timed(work, device, spec.steps, weights, progress)


@torch.no_grad()
def timed(
    work: Callable[[], object],
    device: torch.device,
    repeats: int,
    weights: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Encoding:
    """The first call, which also counts FLOP, then `repeats` timed ones."""
    from torch.utils.flop_counter import FlopCounterMode

    start_bytes = held_bytes(device)
    reset_peak(device)
    progress(0, repeats + 1)
    begin = now(device)
    with FlopCounterMode(display=False) as counter:
        work()
    first_s = now(device) - begin
    times = []
    for number in range(repeats):
        progress(number + 1, repeats + 1)
        begin = now(device)
        work()
        times.append(now(device) - begin)
    return Encoding(
        seconds=statistics.median(times),
        first_s=first_s,
        peak_bytes=peak_bytes(device),
        start_bytes=start_bytes,
        flops=counter.get_total_flops(),
        weights=weights,
    )


def random_vae(tiny: bool, dtype: torch.dtype, device: torch.device) -> Any:
    """Open-Sora 1.2's VAE of the published sizes, or of `tiny` ones."""
    from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings

    with device:
        vae = OpenSoraVAE(VideoVAESettings.from_dict(TINY_VAE if tiny else {}))
    vae.spatial_vae.to(dtype)  # shift and scale stay fp32, as where weights are loaded
    vae.temporal_vae.to(dtype)
    return vae


def random_text(
    sizes: dict[str, int], tokens: int, most: int, dtype: torch.dtype, device: torch.device
) -> TextEncoder:
    """A T5 encoder of these sizes; every caption it is given has `tokens` tokens, `most` padded."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(**{"d_kv": 64, **sizes}, feed_forward_proj="gated-gelu", dropout_rate=0.0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # 4.8 billion numbers in fp32 would not fit beside themselves
    try:
        with device:
            model = T5EncoderModel(config)
    finally:
        torch.set_default_dtype(before)
    return TextEncoder(model, _RandomTokens(tokens, config.vocab_size), most)


@dataclass(frozen=True, slots=True)
class _RandomTokens:
    """In the place of a tokenizer, whose time on the host is not measured."""

    tokens: int
    words: int

    def __call__(self, texts: list[str], **_options: Any) -> dict[str, Tensor]:
        ids = torch.randint(1, self.words, (len(texts), self.tokens))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _vae(spec: Spec, tiny: bool, dtype: torch.dtype, device: torch.device) -> tuple[VideoVAE, str]:
    settings = spec.config.vae
    if settings.type == "identity":
        return IdentityVAE(settings.channels), "none"
    place = settings.from_pretrained
    if not tiny and place is not None and Path(place).exists():
        return build_vae(settings, dtype).to(device), place
    vae = random_vae(tiny, dtype, device)
    vae.override({"micro_frame_size": settings.micro_frame_size})
    if settings.memory_gb is not None:
        vae.budget = MemoryBudget(int(settings.memory_gb * 1e9))
    return vae, _SMALL if tiny else _PUBLISHED


def _text(
    spec: Spec, tiny: bool, dtype: torch.dtype, device: torch.device
) -> tuple[TextEncoder, str]:
    settings, tokens = spec.config.text_encoder, spec.text_tokens
    if settings.type == "tiny_t5":  # of a run, made from its captions
        width, heads = settings.d_model, max(1, settings.d_model // 16)
        sizes = {"d_model": width, "d_kv": width // heads, "d_ff": 4 * width}
        sizes |= {"num_layers": settings.num_layers, "num_heads": heads, "vocab_size": 99}
        text = random_text(sizes, tokens, settings.model_max_length, dtype, device)
        return text, "random, the config's sizes"
    place = settings.from_pretrained
    if not tiny and place is not None and Path(place).is_dir():
        text = build_text_encoder(spec.config, Path(place), dtype).to(device)
        text.tokenizer = _RandomTokens(tokens, text.model.config.vocab_size)
        return text, place
    text = random_text(TINY if tiny else XXL, tokens, settings.model_max_length, dtype, device)
    return text, _SMALL if tiny else _PUBLISHED
