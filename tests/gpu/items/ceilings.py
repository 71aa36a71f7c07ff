"""What the card can do at best: bytes/s of a copy, FLOP/s of XL/2's own products, bf16 and fp8."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    import torch

REPEATS = 12
ROWS, CAPTION_ROWS = 110_400, 8 * 300  # tokens of 360p:51 at its batch of 8 clips, and of captions
SQUARE = 8192


def ceilings(options: Options, figures: Figures) -> str:
    """First the copy, then each product in bf16, then in fp8."""
    import torch

    device = torch.device(options.device)
    copied = figures.attempt("copy", lambda: _copy(options, device))
    best = {}
    for kind, product in (("bf16", _bf16), ("fp8", _fp8)):
        total_flops = total_s = 0.0
        for name, sizes in _products(options):
            found = figures.attempt(
                f"{kind} {name}", lambda p=product, s=sizes: _timed_product(p, s, device)
            )
            if found is not None and name != "square":
                total_flops += found["flops"]
                total_s += found["product_s"]
        if total_s:
            best[kind] = total_flops / total_s / 1e12
    parts = [] if copied is None else [f"copy {copied['bytes_per_s'] / 1e12:.2f} TB/s"]
    parts += [f"{kind} {tflops:.0f} TFLOP/s over the layers" for kind, tflops in best.items()]
    return ", ".join(parts)


def _products(options: Options) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """(name, (M, N, K)) of [M, K] @ [K, N]: a step's products of a layer, each shape once."""
    for layer, rows, k, n in layers(options.tiny):
        yield f"{layer} forward", (rows, n, k)
        yield f"{layer} dgrad", (rows, k, n)
        yield f"{layer} wgrad", (n, k, rows)
    side = 64 if options.tiny else SQUARE
    yield "square", (side, side, side)


def layers(tiny: bool) -> Iterator[tuple[str, int, int, int]]:
    """(name, rows, inputs, outputs) of a block's linear layers; of equal ones the first."""
    import torch

    from trainer.models.stdit import STDiT3Block
    from trainer.models.stdit_config import PRESETS, STDiT3Config

    small = {"hidden_size": 64, "num_heads": 2} if tiny else {}
    config = STDiT3Config(**{**PRESETS["STDiT3-XL/2"], **small})
    with torch.device("meta"):
        block = STDiT3Block(config, False, 0.0)
    seen = set()
    for name, module in block.named_modules():
        if isinstance(module, torch.nn.Linear):
            rows = CAPTION_ROWS if "kv_linear" in name else ROWS
            sizes = (min(rows, 64) if tiny else rows, module.in_features, module.out_features)
            if sizes not in seen:
                seen.add(sizes)
                yield name, *sizes


def _copy(options: Options, device: torch.device) -> dict[str, Any]:
    """Within the device; every byte is read and written."""
    import torch

    size = 1 << 20 if options.tiny else 4 << 30
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = timed(lambda: target.copy_(source), device)
    return {"copy_s": seconds, "bytes_per_s": 2 * size / seconds}


def _timed_product(
    product: Callable[..., Callable[[], Any]], sizes: tuple[int, int, int], device: torch.device
) -> dict[str, Any]:
    m, n, k = sizes
    seconds = timed(product(m, n, k, device), device)
    flops = 2.0 * m * n * k
    return {"sizes": f"{m}x{k}x{n}", "product_s": seconds, "flops": flops} | {
        "flops_per_s": flops / seconds
    }


def _bf16(m: int, n: int, k: int, device: torch.device) -> Callable[[], Any]:
    """As autograd calls them: a weight [N, K] is read transposed."""
    import torch

    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    return lambda: a @ b.T


def _fp8(m: int, n: int, k: int, device: torch.device) -> Callable[[], Any]:
    """One scale for each tensor, which is quantised before: the cast is not in the time."""
    import torch

    a = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    scales: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
    return lambda: torch._scaled_mm(a, b.T, **scales, use_fast_accum=True)


def timed(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Median seconds of a call, by events on the device."""
    import torch

    from trainer.data.plan.costs import now

    for _ in range(2):
        work()
    if device.type != "cuda":
        times = []
        for _ in range(3):
            begin = now(device)
            work()
            times.append(now(device) - begin)
        return max(1e-9, statistics.median(times))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize(device)
    pairs = itertools.pairwise(marks)
    return max(1e-9, statistics.median(a.elapsed_time(b) for a, b in pairs) / 1e3)
