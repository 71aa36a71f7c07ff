"""The most memory that a training step of one shape takes on a rank, from shapes alone.

A step holds the weights, this rank's part of what the optimizer keeps, gradients, what the blocks
keep for the backward pass, and for a moment what one block needs to go backward. Counted as
torch's allocator counts it; CUDA's context, NCCL's buffers and fragmentation are not in it. Tests
compare it with the tensors alive in real steps: within 10 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from trainer.models.activation_checkpointing import (
    WITH_WEIGHTS,
    GradCheckpoint,
    Kernels,
    Size,
    block_bytes,
)
from trainer.models.kernels import kernels_used

if TYPE_CHECKING:
    from trainer.models.stdit import STDiT3

# B batch · T frames · S places of a frame · L text tokens · D width · N heads · E width of a head
_BUCKETS = 3  # of gradients at once under ZeRO: one fills, one is flat, one is on its way
_ROWS, _COLUMNS = 128, 32  # flash attention's backward pass rounds rows and head widths up to these
# With activations on the host: tensors that are too small to move, and blocks that are on the way.
_SMALL_BYTES, _ON_THE_WAY = 20 << 20, 2


@dataclass(frozen=True, slots=True)
class State:
    """How a rank holds weights and optimizer. `plugin` is zero2, zero1, ddp or fsdp.

    `bare` is a model without masters, optimizer and EMA, whose gradients add up.
    """

    world: int = 1
    plugin: str = "zero2"
    reduce_bucket: int = 20_000_000  # gradient elements of one collective
    accumulates: bool = False  # over microbatches: gradients add up in fp32
    chunks: bool = False  # of a microbatch: whole gradients add up in fp32 before any collective
    keeps_whole: bool = False  # FSDP2: gathered weights stay from pass to pass
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes of one rank at the fullest moment of its step."""

    weights: int  # in working precision, also those gathered for a moment
    optimizer: int  # fp32 masters, AdamW's two moments and the EMA
    gradients: int  # those made by then, and the buckets under way
    inputs: int  # latents, captions and what the embedders keep
    kept: int  # activations of blocks, and the inputs of recomputed ones
    working: int  # the backward pass of one block, or the optimizer's step

    @property
    def total(self) -> int:
        state = self.weights + self.optimizer + self.gradients
        return state + self.inputs + self.kept + self.working


class Counted(NamedTuple):
    """How many values, whatever their dtype."""

    all: int  # weights and buffers
    trained: int
    block: int
    depth: int


def predicted_peak(
    model: STDiT3,
    batch: int,
    latent: Size,
    text_tokens: int | None = None,
    state: State | None = None,
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    checkpoint: GradCheckpoint | None = None,
    masked: bool = False,
    values: Counted | None = None,
) -> Peak:
    """Bytes of one training step over `batch` clips of that latent size (T, H, W), on one rank.

    `model` may be on any device, meta too: read are its settings, switches and parameters' shapes.
    `text_tokens` are those of a caption, default the most; `state` is what of the weights a rank
    has, default all of a single one; `device` ("cuda", "cpu") decides which kernels attend, default
    the model's; `dtype` is the working precision, default the model's; `checkpoint` says which
    blocks run twice, default `model.grad_checkpoint`; `masked`: some frames are given; `values` is
    `counted(model)`, for many shapes. With activations on the host and with torch.compile it is an
    upper bound.
    """
    state, config, weight = state or State(), model.config, model.x_embedder.proj.weight
    item = (dtype or weight.dtype).itemsize
    text = config.model_max_length if text_tokens is None else text_tokens
    frames, rows, columns = grid(latent, config.patch_size)
    places, head = rows * columns, config.hidden_size // config.num_heads
    device = device or weight.device.type
    keys, fused = (frames, places, text), model.fused * config.hidden_size
    kernels = kernels_used(model.table, device, item, head, *keys, fused)
    modulations = frames if masked else 1
    shape = (batch, frames, places, text, item)
    size = block_bytes(config, *shape, kernels, modulations)
    checkpoint = checkpoint or model.grad_checkpoint
    recomputed = checkpoint.blocks(config.depth, size, latent)

    whole = [size.spatial, size.temporal] * config.depth
    held = [size.entry if i in recomputed else own for i, own in enumerate(whole)]
    if model.offload:
        held = [min(own, _SMALL_BYTES) for own in held]
    passes = _backward_bytes(model, *shape, kernels, device) * config.depth
    values = values or counted(model)
    inputs = _input_bytes(model, batch, frames, places, modulations, text, item)
    always, optimizer = _state_bytes(state, values, item)
    moments = [Peak(always, optimizer, 0, inputs, sum(held), _loss_bytes(model, size.entry, item))]
    if not state.bare:
        moments.append(Peak(always, optimizer, *_step_bytes(state, values, item)))
    waiting = 0
    for index, own in enumerate(whole):
        made = values.trained * (len(whole) - 1 - index) // len(whole)
        # With activations on the host the next blocks' come back meanwhile.
        back = sum(whole[max(0, index - _ON_THE_WAY) : index]) if model.offload else 0
        gradients = _gradient_bytes(state, values, made, item)
        kept = waiting + own + back
        moments.append(Peak(always, optimizer, gradients, inputs, kept, passes[index]))
        waiting += held[index]
    return max(moments, key=lambda moment: moment.total)


def grid(latent: Size, patch: Size) -> Size:
    """Tokens of a latent along frames, rows and columns."""
    t, h, w = (-(-size // p) for size, p in zip(latent, patch, strict=True))
    return t, h, w


def _backward_bytes(
    model: STDiT3,
    batch: int,
    frames: int,
    places: int,
    text: int,
    item: int,
    kernels: Kernels,
    device: str,
) -> list[int]:
    """Of a spatial and a temporal block's backward pass, beside all that the block keeps."""
    config, tokens = model.config, batch * frames * places
    entry, heads = tokens * config.hidden_size * item, config.num_heads
    head = -(-config.hidden_size // heads // _COLUMNS) * _COLUMNS
    captions = 2 * batch * text * config.hidden_size * item

    def attention(kernel: str, keys: int, queries: int) -> int:
        """Gradients of scores and weights, or fp32 sums for the queries."""
        if kernel == "frames":
            return 0
        if kernel in WITH_WEIGHTS:
            return 2 * tokens * heads * keys * item
        rows = -(-queries // _ROWS) * _ROWS
        return 0 if device == "cpu" else tokens // queries * rows * heads * head * 4

    # In widths: what has been made less what has gone. MLP: the gradient, the same with its gate
    # and the hidden values' (less the branch); text: the gradient, the output's and the queries'
    # less all of the MLP's; attention: five of them, less the text's too.
    ratio = config.mlp_ratio
    mlp = (1 + ratio) * entry
    if kernels.fused:  # two gradients, the hidden values' and the activation again
        mlp = (2 + 2 * ratio) * entry
        if model.in_fp8:  # the first and the third of these in fp8, too
            mlp += (1 + ratio) * entry / item
    if device == "cpu" and item > 2:  # gelu by hand, when a block runs again
        mlp = max(mlp, 2 * ratio * entry)
    to_text = -2 * ratio * entry + captions + attention(kernels.text, text, frames * places)
    found = []
    for kernel, keys in ((kernels.spatial, places), (kernels.temporal, frames)):
        own = (-2 - 2 * ratio) * entry - captions + attention(kernel, keys, keys)
        found.append(int(max(mlp, to_text, own)))
    return found


def _loss_bytes(model: STDiT3, entry: int, item: int) -> int:
    """When the backward pass begins: the final layer's input, normed too, and five fp32 results."""
    config = model.config
    tokens = entry // (config.hidden_size * item)
    return 2 * entry + 5 * 4 * tokens * config.out_channels * math.prod(config.patch_size)


def counted(model: STDiT3) -> Counted:
    """Takes 5 ms at XL/2."""
    weights = [*model.parameters(), *model.buffers()]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    block = sum(p.numel() for p in model.blocks()[0].parameters())
    return Counted(sum(p.numel() for p in weights), trained, block, model.config.depth)


def _input_bytes(
    model: STDiT3, batch: int, frames: int, places: int, modulations: int, text: int, item: int
) -> int:
    """Latents in fp32 and as patches, captions as they come and projected, modulations."""
    config = model.config
    latents = batch * frames * places * config.in_channels * math.prod(config.patch_size)
    widths = (config.caption_channels, config.hidden_size)
    read, projected = (batch * text * width * item for width in widths)
    captions = read + projected
    if not config.freeze_y_embedder:  # its two layers keep their inputs; a gradient comes back
        captions += 3 * projected + (read if config.class_dropout_prob else 0)
    return latents * (4 + item) + captions + 12 * batch * modulations * config.hidden_size * item


def _state_bytes(state: State, values: Counted, item: int) -> tuple[int, int]:
    """Of weights, and of the optimizer with the EMA."""
    if state.bare:
        return values.all * item, 0
    if state.plugin == "ddp":  # in fp32: the weights are the masters
        return values.all * 4, values.trained * 12
    if state.plugin == "fsdp":  # gathered for two blocks, and for all that lies around the blocks
        around = values.all - 2 * values.depth * values.block
        shards = 4 * values.all + 12 * values.trained
        whole = values.all if state.keeps_whole else around + 2 * values.block
        return whole * item, shards // state.world
    return values.all * item, 16 * values.trained // state.world


def _gradient_bytes(state: State, values: Counted, made: int, item: int) -> int:
    """When `made` values have one."""
    if state.bare:
        return made * item
    if state.chunks and state.plugin != "ddp":
        sums, rest = 4 * values.trained, replace(state, chunks=False)
        return sums + _gradient_bytes(rest, values, made, item)
    if state.plugin == "ddp":  # also in the buckets of its collectives
        return 4 * (made + values.trained)
    if state.plugin == "fsdp":  # a block's whole ones, and in fp32 for the collective
        return 4 * made // state.world + 2 * values.block * (item + 4)
    buckets = _BUCKETS * min(state.reduce_bucket, values.trained) * item
    ranks = state.world if state.plugin == "zero2" else 1
    kept = 4 * values.trained if state.accumulates else made * item
    return kept // ranks + buckets


def _step_bytes(state: State, values: Counted, item: int) -> tuple[int, int, int, int]:
    """Gradients, inputs, kept activations (none) and the rest while the optimizer steps."""
    if state.plugin in ("ddp", "fsdp"):
        return _gradient_bytes(state, values, values.trained, item), 0, 0, 0
    own = values.trained // state.world
    kept = _gradient_bytes(state, values, values.trained, item)
    in_fp32 = 0 if state.accumulates or item == 4 else 4 * own
    gathered = min(values.trained, state.world * state.reduce_bucket) * item
    return kept + in_fp32, 0, 0, gathered + min(own, state.reduce_bucket) * item
