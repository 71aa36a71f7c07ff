"""Our attention kernels against fp64 on the device: over frames, and over packed captions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.gpu.items.ceilings import timed
from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    import torch

# Clips, frames, places; heads and width are XL/2's. Each is a bucket of stage 1, or its half.
FRAMES = [
    (475, 1, 144),
    (20, 5, 920),
    (8, 15, 920),
    (475, 15, 16),
    (8, 17, 920),
    (4, 30, 920),
    (2, 60, 920),
    (1, 120, 920),
]
HEADS, WIDTH = 16, 72
LENGTHS = (1, 2, 17, 60, 128, 150, 299, 300)  # of captions that lie end to end
# Relative to the largest value. The kernel's arithmetic, with its roundings to bf16, errs by 5e-3 at
# most for these numbers of frames (computed on a CPU).
LIMITS = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 2e-6}
_LEAST = 1e-30  # of what an error is relative to
SIDES = ("output", "d_q", "d_k", "d_v")


def frames(options: Options, figures: Figures) -> str:
    """Each number of frames: errors, whether two runs give the same bits, seconds."""
    import torch

    name = "bf16" if options.device == "cuda" else "fp32"
    worst = 0.0
    for batch, count, places in FRAMES:
        shape = (min(batch, 2), count, 3) if options.tiny else (batch, count, places)

        def work(shape: tuple[int, ...] = shape) -> dict[str, Any]:
            return _of_frames((*shape, HEADS, WIDTH), name, torch.device(options.device))

        title = f"{count} frames, batch {batch}"
        if (found := figures.attempt(title, work)) is None:
            continue
        errors = {side: found[side] for side in SIDES}
        worst = max(worst, *errors.values())
        bad = [f"{side} {error:.1e}" for side, error in errors.items() if not error <= LIMITS[name]]
        if not found["same_bits"]:
            bad.append("two runs differ")
        figures.judge(title, ", ".join(bad))
    return f"largest error {worst:.1e} of the largest value, allowed {LIMITS[name]:g}"


def _of_frames(shape: tuple[int, ...], name: str, device: torch.device) -> dict[str, Any]:
    import torch

    from trainer.models.attention import calls
    from trainer.models.attention.table import Table

    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[name]
    parts, grad = frames_inputs(shape, dtype, device)
    table = Table(temporal=((None, "frames"),))

    def attend() -> tuple[torch.Tensor, ...]:
        out = calls.across_frames(*parts, table)
        return out.detach(), *torch.autograd.grad(out, parts, grad)

    given, again = attend(), attend()
    same = all(torch.equal(one, other) for one, other in zip(given, again, strict=True))
    del again
    errors = dict(zip(SIDES, frames_errors(given, parts, grad), strict=True))
    seconds = timed(attend, device, repeats=5)
    return {**errors, "same_bits": same, "attention_s": seconds, "shape": str(shape)}


def frames_inputs(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values [B, T, S, N, E] as slices of one projection, and a gradient."""
    import torch

    batch, count, places, heads, width = shape
    sizes = (batch, count, places, 3, heads, width)
    qkv = torch.randn(sizes, dtype=dtype, device=device)
    parts = [part.detach().requires_grad_() for part in qkv.unbind(3)]
    return parts, torch.randn(shape, dtype=dtype, device=device)


def frames_errors(
    given: tuple[torch.Tensor, ...], parts: list[torch.Tensor], grad: torch.Tensor
) -> list[float]:
    """Of output and gradients against fp64, relative to the largest value.

    With one frame the gradients of queries and keys are 0: relative to those of the values then.
    """
    import torch

    exact = [part.detach().double().requires_grad_() for part in parts]
    q, k, v = (part.permute(0, 2, 3, 1, 4) for part in exact)  # [B, S, N, T, E]
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    out = (weights @ v).permute(0, 3, 1, 2, 4)
    wanted = [out.detach(), *torch.autograd.grad(out, exact, grad.double())]
    least = max(1e-3 * float(wanted[-1].abs().max()), _LEAST)
    return [
        float((a.double() - b).abs().max()) / max(float(b.abs().max()), least)
        for a, b in zip(given, wanted, strict=True)
    ]


def text(options: Options, figures: Figures) -> str:
    """Text attention over packed captions against one clip at a time and against fp64."""
    import torch

    device = torch.device(options.device)
    found = figures.attempt("packed", lambda: _packed_text(options, device))
    if found is None:
        return "it could not be measured"
    allowed = max(1.5 * found["one_by_one"], LIMITS["bf16" if options.device == "cuda" else "fp32"])
    wrong = not found["packed"] <= allowed
    figures.judge("packed", f"{found['packed']:.1e}, allowed {allowed:.1e}" if wrong else "")
    return (
        f"error {found['packed']:.1e} packed, {found['one_by_one']:.1e} one clip at a time; "
        f"{found['packed_s'] * 1e3:.2f} and {found['one_by_one_s'] * 1e3:.2f} ms"
    )


def _packed_text(options: Options, device: torch.device) -> dict[str, Any]:
    import torch

    from trainer.models.attention.calls import pack, packs_text
    from trainer.models.layers import CrossAttention

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    width = 64 if options.tiny else HEADS * WIDTH
    lengths = tuple(min(length, 9) for length in LENGTHS) if options.tiny else LENGTHS
    places = 6 if options.tiny else 15 * 920
    module = CrossAttention(width, 2 if options.tiny else HEADS).to(device, dtype)
    exact = CrossAttention(width, module.heads).to(device, torch.float64)
    exact.load_state_dict(module.state_dict())
    x = torch.randn(len(lengths), 1, places, width, device=device, dtype=dtype)
    y = torch.randn(len(lengths), max(lengths), width, device=device, dtype=dtype)
    grad = torch.randn_like(x)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    packs = packs_text(device, dtype, module.table, max(lengths), width // module.heads)

    def together(kind: Any = dtype) -> tuple[torch.Tensor, ...]:
        inputs = [part.to(kind).requires_grad_() for part in (x, y)]
        words: Any = inputs[1], keep.to(device)
        if packs:
            words = pack(inputs[1], keep, places)
        out = module(inputs[0], *words)
        return out.detach(), *torch.autograd.grad(out, inputs, grad.to(kind))

    def one_by_one(of: Any = module, kind: Any = dtype) -> tuple[torch.Tensor, ...]:
        inputs = [part.to(kind).requires_grad_() for part in (x, y)]
        rows = [
            of(inputs[0][n : n + 1], inputs[1][n : n + 1, :length], None)
            for n, length in enumerate(lengths)
        ]
        out = torch.cat(rows)
        return out.detach(), *torch.autograd.grad(out, inputs, grad.to(kind))

    wanted = one_by_one(exact, torch.float64)

    def error(given: tuple[torch.Tensor, ...]) -> float:
        pairs = zip(given, wanted, strict=True)
        return max(float((a.double() - b).norm()) / max(float(b.norm()), _LEAST) for a, b in pairs)

    return {
        "packed": error(together()),
        "one_by_one": error(one_by_one()),
        "packed_s": timed(together, device, repeats=3),
        "one_by_one_s": timed(one_by_one, device, repeats=3),
        "is_packed": packs,
        "lengths": str(lengths),
    }
