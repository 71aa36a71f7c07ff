"""Forward and backward pass of STDiT3 on the CPU: ours against the plain path, time and memory.

    python -m tests.bench.model [--size small|large] [--threads 2] [--steps 10] [--text 120]

Both paths run the same weights and inputs, step by step in turn, in one process: a load of the
machine meets both. Printed are medians and minima of the wall and of the processor time, what the
matrix products alone take (same shapes, same process: what no code can go under), and where the
rest goes. Peaks are those of new processes, one a path, above the resident size before the first
step. The plain path is trainer.models.plain: explicit fp32 softmax in self-attention, modulation
twice, nothing recomputed. Open-Sora 1.2's own code needed 0.717 s and 722 MB above its start for
the small case on two threads of such a machine at a load of 1.3.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.bench import forked, tiny
from trainer.models.flops import forward_flops
from trainer.models.plain import plain_forward
from trainer.models.stdit import STDiT3, STDiT3Config

# B batch · C channels · T,H,W latent frames, height, width · L text tokens · D width
SIZES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "tiny": ({"depth": 1, "hidden_size": 32, "num_heads": 2, "caption_channels": 16}, (4, 4, 4)),
    "small": ({"depth": 4, "hidden_size": 288, "num_heads": 8, "caption_channels": 512}, (8, 16, 16)),
    "large": ({"depth": 6, "hidden_size": 576, "num_heads": 8, "caption_channels": 1024}, (8, 32, 32)),
}  # fmt: skip
BATCH, TEXT, WARMUP = 2, 120, 2
PATHS = ("ours", "plain")
PARTS = {
    "linear layers": ("mm", "addmm"),
    "attention": (
        "bmm",
        "baddbmm",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "activation": ("sigmoid", "lerp"),
    "norms and softmax": (
        "native_layer_norm",
        "native_layer_norm_backward",
        "linalg_vector_norm",
        "rsqrt",
        "_softmax",
        "_softmax_backward_data",
    ),
    "copies": ("copy", "cat", "fill", "where"),
    "by element": ("mul", "add", "addcmul", "sum", "div", "neg", "pow"),
}  # fmt: skip


class Case:
    """A model with inputs, and one step of it along either path."""

    def __init__(self, size: str, text: int) -> None:
        torch.manual_seed(0)
        options, self.latent = SIZES[size]
        self.config = STDiT3Config(model_max_length=TEXT, class_dropout_prob=0.0, **options)
        self.model = STDiT3(self.config).train()
        x = torch.randn(BATCH, 4, *self.latent)
        mask = torch.zeros(BATCH, TEXT, dtype=torch.int64)
        mask[:, :text] = 1
        x_mask = torch.ones(BATCH, self.latent[0], dtype=torch.bool)
        x_mask[:, :2] = False
        y = torch.randn(BATCH, 1, TEXT, self.config.caption_channels)
        self._inputs = (x, torch.tensor([100.0, 700.0]), y, mask, x_mask)
        pixels = torch.full((BATCH,), 8.0 * self.latent[1])
        self._sizes = {"fps": torch.full((BATCH,), 24.0), "height": pixels, "width": pixels}
        self._target = torch.randn(BATCH, self.config.out_channels, *self.latent)

    def step(self, path: str) -> None:
        """Forward, backward, gradients dropped."""
        out = self.forward(path)
        (out - self._target).square().mean().backward()
        self.model.zero_grad(set_to_none=True)

    def forward(self, path: str) -> Tensor:
        if path == "plain":
            return plain_forward(self.model, *self._inputs, **self._sizes)
        return self.model(*self._inputs, **self._sizes)

    def products(self) -> Callable[[], None]:
        """The matrix products of the linear layers in a step, and nothing else."""
        width = self.config.hidden_size
        frames, places = self.latent[0], self.latent[1] * self.latent[2] // 4
        tokens, texts = BATCH * frames * places, BATCH * TEXT
        shapes = [(tokens, width, width)] * 3 + [
            (tokens, width, 3 * width),
            (texts, width, 2 * width),
        ]
        shapes += [(tokens, width, 4 * width), (tokens, 4 * width, width)]
        made = [(torch.randn(n, i), torch.randn(o, i), torch.randn(n, o)) for n, i, o in shapes]

        def run() -> None:
            for _ in range(2 * self.config.depth):
                for x, weight, grad in made:
                    torch.mm(x, weight.t())
                    torch.mm(grad, weight)
                    torch.mm(grad.t(), x)

        return run


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(case: Case, steps: int) -> dict[str, list[tuple[float, float]]]:
    products = case.products()
    runs: dict[str, Callable[[], None]] = {
        **{path: lambda path=path: case.step(path) for path in PATHS},  # type: ignore[misc]
        "products": products,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(WARMUP + steps):
        for name, run in runs.items():
            seconds = timed(run)
            if number >= WARMUP:
                times[name].append(seconds)
    return times


def shares(case: Case) -> dict[str, float]:
    """Processor time of our step by kind of operation, as shares of 1."""
    # Not torch.profiler: it imports the compiler, 2 s of it.
    with torch.autograd.profiler.profile() as seen:
        for _ in range(3):
            case.step("ours")
    events = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    whole = sum(events.values())
    found = {
        part: sum(us for key, us in events.items() if operation(key) in names) / whole
        for part, names in PARTS.items()
    }
    return {**found, "everything else": 1 - sum(found.values())}


def operation(key: str) -> str:
    """Name without namespace, in place or not."""
    return key.removeprefix("aten::").rstrip("_") if key.startswith("aten::") else ""


def peak_mb(path: str, args: argparse.Namespace) -> float:
    """Of a new process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = (path, args.size, args.text, args.threads)
    return float(forked.results(own_peak_mb, arguments, [environment])[0])


def own_peak_mb(path: str, size: str, text: int, threads: int) -> float:
    torch.set_num_threads(threads)
    case = Case(size, text)
    before = status_kb("VmRSS")
    for _ in range(4):
        case.step(path)
    return (status_kb("VmHWM") - before) / 1000


def status_kb(name: str) -> int:
    """Not getrusage: its peak starts with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--text", type=int, default=TEXT, help="real tokens of each caption")
    parser.add_argument("--json", type=Path)
    args = tiny.parse(parser, argv, size="tiny", threads=1, steps=1)
    torch.set_num_threads(args.threads)
    case = Case(args.size, args.text)
    with torch.no_grad():
        apart = float((case.forward("ours") - case.forward("plain")).abs().max())
    times = measure(case, args.steps)
    peaks = {path: peak_mb(path, args) for path in PATHS}
    flops = 3 * forward_flops(case.config, BATCH, *case.latent, args.text)
    print(f"{args.size}, {args.threads} threads, {args.steps} steps, load {os.getloadavg()[0]:.1f}; "
          f"outputs differ by {apart:.1e}")  # fmt: skip
    print(
        f"{'':10}{'median s':>10}{'min s':>10}{'median CPU s':>14}{'min CPU s':>11}{'peak MB':>9}"
    )
    report: dict[str, Any] = {"schema": 1, "flops": flops, "load": os.getloadavg(), "paths": {}}
    for name, seconds in times.items():
        wall, processor = zip(*seconds, strict=True)
        row = [statistics.median(wall), min(wall), statistics.median(processor), min(processor)]
        peak = peaks.get(name)
        report["paths"][name] = {"seconds": row, "peak_mb": peak}
        shown = f"{peak:9.0f}" if peak is not None else ""
        print(f"{name:10}{row[0]:10.3f}{row[1]:10.3f}{row[2]:14.3f}{row[3]:11.3f}{shown}")
    ours, plain = (report["paths"][path]["seconds"] for path in PATHS)
    print(f"plain / ours: {plain[0] / ours[0]:.2f} (median), {plain[1] / ours[1]:.2f} (min), "
          f"{plain[3] / ours[3]:.2f} (min CPU); peak ours / plain {peaks['ours'] / peaks['plain']:.2f}")  # fmt: skip
    print(f"{flops / 1e9:.1f} GFLOP a step: {flops / ours[1] / 1e9:.0f} GFLOP/s at the fastest")
    report["shares"] = shares(case)
    print("where ours goes: " + ", ".join(f"{k} {v:.0%}" for k, v in report["shares"].items()))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
