"""What a training step should take on a GPU, by arithmetic: FLOP and bytes of every operation.

One spatial and one temporal block run forward and backward on torch's meta device, which computes
shapes only. An operation takes the longer of two times: its FLOP at the card's peak, its bytes at
the card's bandwidth, each at the share that kernels reach. Two bounds come of it: `eager`, where
every operation reads its inputs from memory and writes its outputs, and `fused`, where what
elementwise operations hand to each other stays in registers, as a perfect compiler would do it.
Launches, communication and the optimizer are not in it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tests.gpu.null import figures
from trainer.command_line import command
from trainer.models.block.stdit_block import STDiT3Block
from trainer.models.flops import flops_by_part
from trainer.models.peak import grid
from trainer.models.stdit_config import PRESETS, STDiT3Config

# B batch · T,S frames and places of the token grid · L text tokens · D width · N heads · E of a head


@dataclass(frozen=True, slots=True)
class Shares:
    """Of a card's peaks that kernels reach; estimates until a card has measured them.

    Attention has heads of 72, which flash attention pads to 96 or 128: of 989 TFLOP/s, 265 were
    measured forward for heads of 80 and 1,024 keys on an H100 (sgl-project/sglang #30090).
    """

    products: float  # of XL/2's widths
    attention_forward: float
    attention_backward: float  # counting five products, as flash attention does
    memory: float


LIKELY = Shares(0.65, 260 / 989.4, 180 / 989.4, 0.80)
LOW, HIGH = (
    Shares(0.58, 200 / 989.4, 140 / 989.4, 0.70),
    Shares(0.72, 320 / 989.4, 230 / 989.4, 0.88),
)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its data sheet: bf16 FLOP/s with fp32 accumulation, bytes/s of its memory."""

    flops: float
    bandwidth: float


@dataclass(slots=True)
class Operation:
    """One operation: FLOP (0: elementwise, a reduction or a copy) and the storages it touches."""

    name: str
    flops: float
    kind: str  # the name of its share
    reads: dict[int, int]  # storage -> bytes
    writes: dict[int, int]
    keys: int = 0  # of attention: how many each query sees

    def seconds(self, card: Card, shares: Shares) -> float:
        share: float = getattr(shares, self.kind)
        traffic = sum(self.reads.values()) + sum(self.writes.values())
        return max(self.flops / (card.flops * share), traffic / (card.bandwidth * shares.memory))


class _Recorder(TorchDispatchMode):
    """Lists the operations that run under it. Storages are kept, so that no number comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._kept: list[torch.UntypedStorage] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view or func.overloadpacket in _FREE:
            return out
        flops, kind, keys = 0.0, "products", 0
        if func.overloadpacket in _ATTENTION:
            query, key = args[0], args[1]
            products, kind = _ATTENTION[func.overloadpacket]
            keys = key.shape[-2]
            flops = products * 2.0 * query.numel() * keys
        elif func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        written = self._bytes(out)
        reads = {at: size for at, size in self._bytes((args, kwargs)).items() if at not in written}
        self.operations.append(Operation(func.name(), flops, kind, reads, written, keys))
        return out

    def _bytes(self, tree: Any) -> dict[int, int]:
        found: dict[int, int] = {}
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._kept.append(storage)
                size = tensor.numel() * tensor.element_size()
                found[storage._cdata] = max(found.get(storage._cdata, 0), size)
        return found


def eager_seconds(operations: Iterable[Operation], card: Card, shares: Shares = LIKELY) -> float:
    return sum(operation.seconds(card, shares) for operation in operations)


def fused_seconds(operations: list[Operation], card: Card, shares: Shares = LIKELY) -> float:
    """With elementwise operations that follow each other in one kernel.

    A tensor that one of them makes is written when a product, the backward pass or nobody in the
    same run of elementwise operations reads it; it is read once in each such run.
    """
    read_later = _last_reads(operations)
    seconds, run_reads = 0.0, set[int]()
    made: dict[int, int] = {}  # in this run: storage -> bytes

    def end_run(number: int) -> float:
        run_reads.clear()
        written = sum(size for at, size in made.items() if read_later.get(at, -1) >= number)
        made.clear()
        return written / (card.bandwidth * shares.memory)

    for number, operation in enumerate(operations):
        if operation.flops:
            seconds += end_run(number) + operation.seconds(card, shares)
            continue
        new = {at: size for at, size in operation.reads.items() if at not in made}
        traffic = sum(size for at, size in new.items() if at not in run_reads)
        run_reads.update(new)
        made.update(operation.writes)
        seconds += traffic / (card.bandwidth * shares.memory)
    return seconds + end_run(len(operations))


def _last_reads(operations: list[Operation]) -> dict[int, int]:
    return {at: number for number, operation in enumerate(operations) for at in operation.reads}


@dataclass(frozen=True, slots=True)
class BlockCost:
    """A block's forward and backward operations, in the order they run."""

    forward: list[Operation] = field(repr=False)
    backward: list[Operation] = field(repr=False)

    @property
    def flops(self) -> float:
        """Of forward and backward pass."""
        return sum(operation.flops for operation in (*self.forward, *self.backward))


def block_cost(
    config: STDiT3Config, batch: int, frames: int, places: int, text: int, temporal: bool
) -> BlockCost:
    """Of one bf16 block over a token grid of `frames` x `places`, captions of `text` tokens."""
    width = config.hidden_size
    with torch.device("meta"), _as_operations():
        block = STDiT3Block(config, temporal).to(torch.bfloat16)
        x, y, t = (
            torch.empty(*shape, width, dtype=torch.bfloat16, requires_grad=True)
            for shape in ((batch, frames, places), (batch, text), (batch, 1, 6))
        )
        pairs = width // config.num_heads // 2
        rotation = (torch.empty(frames, pairs), torch.empty(frames, pairs)) if temporal else None
        with _Recorder() as forward:
            out = block(x, y, None, t, rotation)
        grad = torch.empty_like(out)
        with _Recorder() as backward:
            out.backward(grad)
    return BlockCost(forward.operations, backward.operations)


@torch.library.custom_op("gpu_test::roofline_attention", mutates_args=())
def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    raise NotImplementedError("only counted")


@torch.library.custom_op("gpu_test::roofline_attention_backward", mutates_args=())
def _attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError("only counted")


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@_attention_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


_attention.register_autograd(
    lambda ctx, grad: _attention_backward(*ctx.saved_tensors, grad),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output),
)

# Products of a forward and a backward pass: scores and values; five in flash's, which makes the
# scores again.
_ATTENTION = {
    torch.ops.gpu_test.roofline_attention: (2.0, "attention_forward"),
    torch.ops.gpu_test.roofline_attention_backward: (5.0, "attention_backward"),
}
_FREE = {torch.ops.aten.detach, torch.ops.aten.empty, torch.ops.aten.empty_like}
_FREE |= {torch.ops.aten.new_empty, torch.ops.aten.empty_strided}


@contextmanager
def _as_operations() -> Iterator[None]:
    """Attention as one operation: torch's own is made of other ones on the meta device."""
    own = F.scaled_dot_product_attention

    def counted(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return _attention(q, k, v)

    F.scaled_dot_product_attention = counted  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own


# Open-Sora's stage 1 at the batch sizes of the recipe: clips, latent frames, height, width.
BUCKETS = {
    "360p:51": (8, 15, 45, 80),
    "360p:102": (4, 30, 45, 80),
    "144p:51": (57, 15, 18, 32),
    "144p:1": (475, 1, 18, 32),
    "720p:51": (2, 15, 90, 160),
}
H100 = Card(flops=989.4e12, bandwidth=3.35e12)
TEXT_TOKENS = 300


class BucketCost(NamedTuple):
    spatial: BlockCost
    temporal: BlockCost
    frames: int
    tokens: int  # of all clips
    flops: float  # of all blocks in a step that repeats nothing


def bucket_cost(config: STDiT3Config, bucket: str) -> BucketCost:
    batch, *latent = BUCKETS[bucket]
    frames, rows, columns = grid((latent[0], latent[1], latent[2]), config.patch_size)
    sizes = batch, frames, rows * columns, TEXT_TOKENS
    costs = [block_cost(config, *sizes, across_frames) for across_frames in (False, True)]
    parts = flops_by_part(config, batch, *latent, TEXT_TOKENS)
    flops = 3 * config.depth * (parts.spatial_block + parts.temporal_block)
    return BucketCost(*costs, frames, math.prod(sizes[:3]), flops)


def predict(config: STDiT3Config, card: Card) -> list[tuple[str, str, float, float, list[float]]]:
    """(bucket, bound, forward s, backward s, MFU likely, low and high); all is recomputed."""
    rows = []
    for name in BUCKETS:
        cost = bucket_cost(config, name)
        costs = cost.spatial, cost.temporal
        for bound, seconds in (("eager", eager_seconds), ("fused", fused_seconds)):
            times, shares = [], []
            for assumed in (LIKELY, LOW, HIGH):
                forward = config.depth * sum(seconds(c.forward, card, assumed) for c in costs)
                backward = config.depth * sum(seconds(c.backward, card, assumed) for c in costs)
                times.append((forward, backward))
                shares.append(cost.flops / card.flops / (2 * forward + backward))
            rows.append((name, bound, *times[0], shares))
    return rows


# FA3 or cuDNN beside torch's flash attention 2 (1.7 to 2.3 in training on Hopper, by Hugging Face's
# transformers #48163; heads of 72 are padded in all three).
FASTER_ATTENTION = 1.4
FP8 = 1.7  # beside bf16, for products of rows with scales; 2 by the data sheet
REST_S = 0.03  # update of 1/192 of the weights, collectives that do not overlap, losses


def counted_step(
    config: STDiT3Config,
    bucket: str,
    product_flops: float,
    elementwise_bytes: float,
    *,
    faster_attention: float = 1.0,
    fp8: float = 1.0,
    card: Card = H100,
    shares: Shares = LIKELY,
) -> tuple[float, float, float, float]:
    """Seconds of a step's products, attention and other kernels, and MFU by the bf16 peak, where
    nothing is recomputed. FLOP and bytes are counted on the null GPU; `fp8` is by how much products
    of the blocks' large layers are faster, forward and for gradients of inputs. Attention across
    frames is among the bytes."""
    cost = bucket_cost(config, bucket)
    spatial, temporal = ((*one.forward, *one.backward) for one in (cost.spatial, cost.temporal))
    others = [operation for operation in temporal if operation.keys != cost.frames]
    attention = config.depth * sum(
        operation.seconds(card, shares) / faster_attention
        for operation in (*spatial, *others)
        if operation.kind != "products"
    )
    # qkv and its projection, text's queries and their projection, two layers of four widths.
    values = cost.tokens * config.hidden_size**2 * (3 + 1 + 1 + 1 + 4 + 4)
    in_fp8 = 2 * 2 * values * 2 * config.depth if fp8 > 1 else 0.0
    reached = card.flops * shares.products
    products = (product_flops - in_fp8) / reached + in_fp8 / (fp8 * reached)
    elementwise = elementwise_bytes / (card.bandwidth * shares.memory)
    seconds = products + attention + elementwise + REST_S
    return products, attention, elementwise, cost.flops / card.flops / seconds


def counted_rows(config: STDiT3Config) -> Iterator[tuple[str, float, float, float, float]]:
    """What the recipe makes of 360p:51, by what tests/gpu/null/figures.json has counted."""
    kept = figures.kept()
    bf16, fp8 = (kept[f"trial, {name}"] for name in ("as much as fits", "fp8, as much as fits"))
    for name, trial, faster, in_fp8 in (
        ("bf16, torch's flash attention", bf16, 1.0, 1.0),
        ("bf16, cuDNN or flash attention 3", bf16, FASTER_ATTENTION, 1.0),
        ("fp8 linears, the same attention", fp8, FASTER_ATTENTION, FP8),
        ("  twice as fast as bf16", fp8, FASTER_ATTENTION, 2.0),
    ):
        # torch multiplies rows in fp8 by CUTLASS, whose kernels do not show their FLOP.
        counted = bf16["product_flops"], trial["elementwise_bytes"]
        options = {"faster_attention": faster, "fp8": in_fp8}
        yield name, *counted_step(config, "360p:51", *counted, **options)


@command
def main(argv: Sequence[str] | None = None) -> int:
    lines = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        "python -m tests.gpu.roofline", description=__doc__, formatter_class=lines
    ).parse_args(argv)
    config = STDiT3Config(**PRESETS["STDiT3-XL/2"])
    print("STDiT3-XL/2 on an H100, bf16, by arithmetic: blocks only, all of them recomputed")
    print(f"{'bucket':<10}{'bound':<8}{'forward s':>10}{'backward s':>12}{'MFU':>8}  range")
    for name, bound, forward, backward, (likely, low, high) in predict(config, H100):
        span = f"{low:.1%} to {high:.1%}"
        print(f"{name:<10}{bound:<8}{forward:>10.2f}{backward:>12.2f}{likely:>8.1%}  {span}")

    print()
    print("A step of 360p:51 by the recipe, nothing recomputed, as counted on the null GPU")
    print(f"{'blocks':<34}{'products':>9}{'attention':>11}{'others':>8}{'step s':>8}{'MFU':>7}")
    for name, products, attention, others, mfu in counted_rows(config):
        whole = products + attention + others + REST_S
        times = f"{products:>9.2f}{attention:>11.2f}{others:>8.2f}{whole:>8.2f}"
        print(f"{name:<34}{times}{mfu:>7.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
