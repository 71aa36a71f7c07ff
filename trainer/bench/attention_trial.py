"""One kernel of attention on one shape, forward and backward: seconds, bytes, error.

Every form is a call of `trainer.models.attention.calls`, so what is measured is what a block runs.
Those calls fall back where a kernel does not fit; a recorder sees which one ran. Runs in a child.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.bench.attention_shapes import AttentionShape
from trainer.bench.peaks import held_bytes, peak_bytes, reset_peak
from trainer.data.plan.costs import now
from trainer.models.attention import calls, frames, short
from trainer.models.attention.table import Table
from trainer.models.fused import split_heads

# B batch · T frames · S places · L caption tokens · N heads · E width of a head · I queries
_REPEATS, _NEW_SHAPES = 7, 3
_ENOUGH_S = 2.0  # of timed calls
_CPU = "the CPU's own kernel"
# Part of an operation's name, and the kernel it is; products and math are made of others.
_OPERATIONS = (
    ("frames_attention", "frames"),
    ("varlen_attn", "varlen"),
    ("flash_attention_for_cpu", _CPU),
    ("flash_attention", "flash"),
    ("efficient_attention", "efficient"),
    ("cudnn_attention", "cudnn"),
    ("aten::baddbmm", "products"),
)


@dataclass(frozen=True, slots=True)
class NotAvailable:
    """The kernel does not run here: an answer, no failure."""

    reason: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians in seconds; `new_shape_s` is forward and backward of a first call on a new shape."""

    forward_s: float
    backward_s: float
    peak_bytes: int  # beyond queries, keys and values
    error: float  # the largest of output and gradients, relative to fp64
    first_s: float  # of the process: with the loading of libraries
    new_shape_s: float

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


def attention_trial(
    shape: AttentionShape, kernel: str, device_name: str, progress: Callable[[int, int], None]
) -> Timing | NotAvailable:
    """Raises what torch raises, out of memory among it."""
    device = torch.device(device_name)
    if reason := why_not(shape, kernel, device):
        return NotAvailable(reason)
    trial = Trial(shape, kernel, device)
    first_s = sum(trial.run())
    if (ran := trial.ran()) != kernel:
        return NotAvailable(f"{ran} runs in its place for this shape and dtype")
    held = held_bytes(device)
    reset_peak(device)
    times: list[tuple[float, float]] = []
    while len(times) < _REPEATS and sum(map(sum, times)) < _ENOUGH_S:
        progress(len(times), _REPEATS)
        times.append(trial.run())
    peak = max(0, peak_bytes(device) - held)
    error = trial.error()
    del trial
    # Triton compiles again for some sizes, cuDNN plans for each one: the median tells them apart.
    new_s = []
    for more in range(1, _NEW_SHAPES + 1):
        new = replace(shape, places=shape.places + more)
        new_s.append(sum(Trial(new, kernel, device).run()))
    forward_s, backward_s = (statistics.median(side) for side in zip(*times, strict=True))
    return Timing(forward_s, backward_s, peak, error, first_s, statistics.median(new_s))


def why_not(shape: AttentionShape, kernel: str, device: torch.device) -> str:
    """What this machine or shape lacks for the kernel; empty when it can be tried."""
    if device.type == "cpu":
        return "" if kernel in ("products", "math") else "it needs a GPU"
    if kernel == "frames":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if shape.frames > frames.MOST_FRAMES:
            return f"it takes {frames.MOST_FRAMES} frames at most"
    if kernel == "varlen" and shape.width % 8:
        return "it takes heads of a multiple of 8"
    return ""


class Trial:
    """Random queries, keys and values as a block has them, in bf16 on a GPU and fp32 on a CPU."""

    def __init__(self, shape: AttentionShape, kernel: str, device: torch.device) -> None:
        self._shape, self._kernel, self._device = shape, kernel, device
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        generator = torch.Generator(device).manual_seed(0)
        b, t, s = shape.batch, shape.frames, shape.places

        def random(*sizes: int) -> Tensor:
            sizes = (*sizes, shape.heads, shape.width)
            return torch.randn(sizes, generator=generator, device=device, dtype=dtype)

        keep = None
        if shape.kind == "text":
            # Captions of all tokens (the first one) down to a fifth.
            lengths = [max(1, shape.text * (5 - row % 5) // 5) for row in range(b)]
            keep = torch.arange(shape.text) < torch.tensor(lengths)[:, None]
            kv = random(b, shape.text, 2)
            # Packed, real tokens stand in front; of random numbers all are alike.
            sides = kv.flatten(0, 1).unbind(1) if kernel == "varlen" else kv.unbind(2)
            parts = (random(b, t * s), *sides)
        else:
            qkv = random(b, t, s, 3).flatten(-3)
            parts = split_heads(qkv, shape.heads, None, None, shape.kind == "temporal")
        self.parts = [part.detach().requires_grad_() for part in parts]
        self._attend = _form(shape, kernel, keep, device)
        self._grad = torch.randn_like(self.parts[0], memory_format=torch.contiguous_format)

    def run(self) -> tuple[float, float]:
        """Seconds of a forward and a backward pass."""
        with _forced(self._kernel, self._device):
            begin = now(self._device)
            out = self._attend(*self.parts)
            middle = now(self._device)
            torch.autograd.grad(out, self.parts, self._grad)
            return middle - begin, now(self._device) - middle

    def ran(self) -> str:
        """The kernel that a forward pass runs."""
        with _forced(self._kernel, self._device), _Names() as names:
            self._attend(*self.parts)
        for part, kernel in _OPERATIONS:
            if any(part in name for name in names.found):
                return kernel
        return "math"

    def error(self) -> float:
        """Largest relative difference from fp64, over a few sequences of the first clip."""
        with _forced(self._kernel, self._device):
            out = self._attend(*self.parts)
            grads = torch.autograd.grad(out, self.parts, self._grad)
        few = functools.partial(_few, self._shape)
        exact = [few(part.detach()).double().requires_grad_() for part in self.parts]
        wanted = _exact(self._shape.kind, *exact)
        d_exact = torch.autograd.grad(wanted, exact, few(self._grad).double())
        pairs = list(zip((out, *grads), (wanted.detach(), *d_exact), strict=True))
        # With one key the gradients of queries and keys are 0.
        least = max(1e-3 * float(wanted.detach().norm()), 1e-30)
        return max(
            float((few(a.detach()).double() - b).norm()) / max(float(b.norm()), least)
            for a, b in pairs
        )


def _form(
    shape: AttentionShape, kernel: str, keep: Tensor | None, device: torch.device
) -> Callable[..., Tensor]:
    """Takes and gives [B, T, S, N, E]; for text [B, I, N, E] with keys [B, L, N, E], or packed."""
    table = replace(Table(), **{shape.kind: ((None, kernel),)})  # type: ignore[arg-type]
    if shape.kind == "spatial":
        return functools.partial(calls.within_frames, table=table)
    if shape.kind == "temporal":
        return functools.partial(calls.across_frames, table=table)
    assert keep is not None
    if kernel == "varlen":
        rows = torch.zeros(*keep.shape, 1, device=device)
        _, packed = calls.pack(rows, keep, shape.frames * shape.places)
        return lambda q, k, v: calls.to_packed_text(q, torch.stack([k, v], 1), packed)
    mask = keep.to(device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rearrange(part, "b i n e -> b n i e") for part in (q, k, v))
        return rearrange(calls.attend(q, k, v, mask, kernel), "b n i e -> b i n e")

    return attend


@contextlib.contextmanager
def _forced(kernel: str, device: torch.device) -> Iterator[None]:
    """On a CPU `calls` has a rule instead of a table: products up to MOST_KEYS keys, else torch."""
    if device.type != "cpu":
        yield
        return
    before = short.MOST_KEYS
    short.MOST_KEYS = 1 << 30 if kernel == "products" else 0
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
    finally:
        short.MOST_KEYS = before


class _Names(TorchDispatchMode):
    """Which operations run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(func.name())
        return func(*args, **(kwargs or {}))


def _few(shape: AttentionShape, part: Tensor) -> Tensor:
    """Of the first clip one frame, 32 places, or a caption; one head. All would not fit in fp64."""
    if part.ndim == 3:  # packed
        part = part[None, : shape.text]
    part = part[:1, ..., :1, :]
    if shape.kind == "text":
        return part
    return part[:, :1] if shape.kind == "spatial" else part[:, :, :32]


def _exact(kind: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(E)) v in full, arranged as `_form` takes and gives it."""
    order = {
        "spatial": "b t s n e -> b t n s e",
        "temporal": "b t s n e -> b s n t e",
        "text": "b i n e -> b n i e",
    }[kind]
    q, k, v = (rearrange(part, order) for part in (q, k, v))
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return rearrange(weights @ v, " -> ".join(reversed(order.split(" -> "))))
