"""What the card can do at best: bytes/s of a copy, FLOP/s of XL/2's own products, bf16 and fp8."""

from __future__ import annotations

import itertools
import math
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
    for dtype, product in (("bf16", _bf16), ("fp8", _fp8)):
        total_flops = total_s = 0.0
        for name, kind, sizes in _products(options):

            def work(product: Any = product, kind: str = kind, sizes: Any = sizes) -> Any:
                seconds = timed(product(kind, *sizes, device), device)
                flops = 2.0 * math.prod(sizes)
                found = {"sizes": "x".join(map(str, sizes)), "product_s": seconds}
                return {**found, "flops": flops, "flops_per_s": flops / seconds}

            found = figures.attempt(f"{dtype} {name} {kind}", work)
            if found is not None and name != "square":
                total_flops += found["flops"]
                total_s += found["product_s"]
        if total_s:
            best[dtype] = total_flops / total_s / 1e12
    parts = [] if copied is None else [f"copy {copied['bytes_per_s'] / 1e12:.3g} TB/s"]
    parts += [f"{dtype} {tflops:.3g} TFLOP/s over the layers" for dtype, tflops in best.items()]
    return ", ".join(parts)


def _products(options: Options) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """(layer, which of its products, rows, inputs, outputs): each shape of a step once."""
    for layer, *sizes in layers(options.tiny):
        for kind in ("forward", "dgrad", "wgrad"):
            yield layer, kind, (sizes[0], sizes[1], sizes[2])
    side = 64 if options.tiny else SQUARE
    yield "square", "forward", (side, side, side)


def layers(tiny: bool) -> Iterator[tuple[str, int, int, int]]:
    """(name, rows, inputs, outputs) of a block's linear layers; of equal ones the first."""
    import torch

    from trainer.models.stdit import STDiT3Block
    from trainer.models.stdit_config import PRESETS, STDiT3Config

    small = {"hidden_size": 64, "num_heads": 2} if tiny else {}
    config = STDiT3Config(**{**PRESETS["STDiT3-XL/2"], **small})
    with torch.device("meta"):
        block = STDiT3Block(config, False)
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


def _bf16(kind: str, rows: int, inputs: int, outputs: int, device: torch.device) -> Any:
    """As autograd calls them: x w^T, g w and g^T x, with a weight w [outputs, inputs]."""
    import torch

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device, dtype=torch.bfloat16)

    if kind == "forward":
        x, w = random(rows, inputs), random(outputs, inputs)
        return lambda: x @ w.T
    g = random(rows, outputs)
    if kind == "dgrad":
        w = random(outputs, inputs)
        return lambda: g @ w
    x = random(rows, inputs)
    return lambda: g.T @ x


def _fp8(kind: str, rows: int, inputs: int, outputs: int, device: torch.device) -> Any:
    """One scale for each tensor. Neither the casts nor the transposed copies that the kernel's
    layout (a row-major, b column-major) needs of dgrad and wgrad are in the time."""
    import torch

    m, n, k = {
        "forward": (rows, outputs, inputs),
        "dgrad": (rows, inputs, outputs),
        "wgrad": (outputs, inputs, rows),
    }[kind]
    a, b = (torch.randn(size, k, device=device).to(torch.float8_e4m3fn) for size in (m, n))
    one = torch.ones((), device=device)
    how: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
    return lambda: torch._scaled_mm(a, b.T, **how, use_fast_accum=kind == "forward")


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
