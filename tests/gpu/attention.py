"""Attention kernels by shape: time, memory, error, and what a first call on a new shape costs.

Shapes are XL/2's at 360p (heads of 72), batch sizes as in a stage 1 microbatch. Queries, keys and
values are slices of one tensor, as a block's `qkv` layer leaves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.gpu.run import Item, Options

HEADS, WIDTH = 16, 72
BUDGET_S = 240.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Clips, frames, places of a frame, and text tokens (0: attention within the clip)."""

    kind: str  # spatial, temporal or text
    batch: int
    frames: int
    places: int
    text: int = 0

    @property
    def name(self) -> str:
        text = f" x {self.text}" if self.text else ""
        return f"{self.kind} {self.batch}x{self.frames}x{self.places}{text}"


SHAPES = [
    Shape("spatial", 8, 15, 920),
    Shape("spatial", 57, 15, 144),
    Shape("spatial", 2, 15, 3600),
    *(Shape("temporal", 8, frames, 920) for frames in (1, 5, 15, 30)),
    Shape("temporal", 2, 120, 920),
    Shape("temporal", 475, 1, 144),
    Shape("text", 8, 15, 920, text=300),
]
KERNELS = {
    "spatial": ("cudnn", "flash", "efficient", "math"),
    "temporal": ("ours", "products", "cudnn", "flash", "efficient", "math"),
    "text": ("varlen", "efficient", "cudnn", "math", "products"),
}


def items(options: Options) -> Iterator[Item]:
    for shape in SHAPES:
        for kernel in KERNELS[shape.kind]:
            yield Item(f"{shape.name} {kernel}", measure, (shape, kernel), 30.0)


def measure(options: Options, shape: Shape, kernel: str) -> dict[str, Any]:
    import torch

    if options.tiny:
        frames, places = min(shape.frames, 30), min(shape.places, 3)
        shape = Shape(shape.kind, min(shape.batch, 2), frames, places, min(shape.text, 9))
    trial = _Trial(shape, kernel, options.device)
    first_s = trial.run()
    base = torch.cuda.memory_allocated() if options.device == "cuda" else 0
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = sorted((trial.run() for _ in range(5)), key=sum)
    peak = torch.cuda.max_memory_allocated() - base if options.device == "cuda" else None
    smaller = Shape(shape.kind, shape.batch, shape.frames, max(1, shape.places - 1), shape.text)
    new_s = _Trial(smaller, kernel, options.device).run()
    forward_s, backward_s = times[2]
    error = trial.error()
    return {
        "forward_ms": forward_s * 1e3,
        "backward_ms": backward_s * 1e3,
        "peak_bytes": peak,
        "error": error,
        "first_s": list(first_s),
        "new_shape_s": list(new_s),
        "headline": f"forward {forward_s * 1e3:8.2f} ms  backward {backward_s * 1e3:8.2f} ms  "
        f"peak {(peak or 0) / 1e6:8.0f} MB  error {error:.1e}  new shape {sum(new_s):.2f} s",
    }


class _Trial:
    """One kernel on random tensors of a shape, forward and backward."""

    def __init__(self, shape: Shape, kernel: str, device: str) -> None:
        import torch

        self._shape, self._device = shape, device
        self._dtype = torch.bfloat16 if device == "cuda" else torch.float32
        generator = torch.Generator().manual_seed(0)
        b, t, s, tokens = shape.batch, shape.frames, shape.places, shape.text

        def random(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, HEADS, WIDTH, generator=generator).to(device, self._dtype)

        if tokens:
            q, kv = random(b, t * s), random(b, tokens, 2)
            parts = q, kv[:, :, 0], kv[:, :, 1]
        else:
            parts = random(b, t, s, 3).unbind(3)
        self.parts = [part.detach().requires_grad_() for part in parts]
        # Captions of 12 to all tokens, as those of a data set.
        self.lengths = [max(1, tokens * (1 + row % 5) // 5) for row in range(b)] if tokens else []
        self._attend = _kernel(shape.kind, kernel, self.lengths, device)
        self._grad = torch.randn_like(self.parts[0])

    def run(self) -> tuple[float, float]:
        """Seconds of a forward and a backward pass."""
        import torch

        marks = [self._now()]
        out = self._attend(*self.parts)
        marks.append(self._now())
        torch.autograd.grad(out, self.parts, self._grad)
        marks.append(self._now())
        return marks[1] - marks[0], marks[2] - marks[1]

    def error(self) -> float:
        """Largest relative difference of output and gradients from fp64, over the first clip."""
        import torch

        outs, exacts = [], []
        for kind, attend in (("given", self._attend), ("exact", None)):
            parts = self.parts
            if kind == "exact":
                parts = [p.detach()[:1].double().cpu().requires_grad_() for p in self.parts]
                attend = _kernel(self._shape.kind, "math", self.lengths[:1], "cpu")
            out = attend(*parts)
            grad = self._grad if kind == "given" else self._grad[:1].double().cpu()
            grads = torch.autograd.grad(out, parts, grad)
            (outs if kind == "given" else exacts).extend([out.detach(), *grads])
        pairs = [(a[:1].double().cpu(), b) for a, b in zip(outs, exacts, strict=True)]
        scale = [max(float(b.norm()), 1e-3 * float(pairs[0][1].norm())) for _, b in pairs]
        return max(float((a - b).norm()) / s for (a, b), s in zip(pairs, scale, strict=True))

    def _now(self) -> float:
        import torch

        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _kernel(kind: str, kernel: str, lengths: list[int], device: str) -> Callable[..., Any]:
    """Takes and gives [B, T, S, N, E]; for text queries [B, T S, N, E] and keys [B, L, N, E]."""
    import torch
    import torch.nn.functional as F
    from einops import rearrange
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if kernel == "ours":
        from tests.gpu.frames_attention import frames_attention, is_usable

        def ours(q: Any, k: Any, v: Any) -> Any:
            if not is_usable(q):
                raise RuntimeError("the Triton kernel cannot run here")
            return frames_attention(q, k, v)

        return ours
    if kernel == "varlen":
        return _varlen(lengths, device)
    order = {
        "spatial": "b t s n e -> (b t) n s e",
        "temporal": "b t s n e -> b (s n) t e",
        "text": "b s n e -> b n s e",
    }[kind]
    backends = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    keep = None
    if lengths:
        keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        keep = keep[:, None, None].to(device)

    def attend(q: Any, k: Any, v: Any) -> Any:
        sides, back = order.split(" -> ")
        sizes = dict(zip(sides.split(), q.shape, strict=True))
        if lengths:
            k, v = k[:, : max(lengths)], v[:, : max(lengths)]
        q, k, v = (rearrange(part, order) for part in (q, k, v))
        if kernel == "products":
            scores = (q @ k.mT) * WIDTH**-0.5
            if keep is not None:
                scores = scores.masked_fill(~keep, float("-inf"))
            out = scores.float().softmax(-1).to(v.dtype) @ v
        else:
            with sdpa_kernel(backends[kernel]):
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return rearrange(out, f"{back} -> {sides}", **{n: sizes[n] for n in "bts" if n in sizes})

    return attend


def _varlen(lengths: list[int], device: str) -> Callable[..., Any]:
    import itertools

    import torch

    def attend(q: Any, k: Any, v: Any) -> Any:
        from torch.nn.attention.varlen import varlen_attn

        batch, queries = q.shape[:2]
        ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32).to(device)
        q_ends = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=device)
        packed = [
            torch.cat([clip[:n] for clip, n in zip(part, lengths, strict=True)]) for part in (k, v)
        ]
        out = varlen_attn(q.flatten(0, 1), *packed, q_ends, ends, queries, max(lengths))
        return out.view(q.shape)

    return attend
