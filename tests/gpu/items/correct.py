"""Blocks forward and backward in every way that training runs them, against fp64 on the device.

A gradient may err 1.5 times as much as that of the plain path (no fused kernels, eager) with the
same weights in the same dtype on the same card. A fixed limit would be wrong: healthy bf16 reaches
7e-3 for the output and 2e-2 for the weights of q_norm and k_norm. Linear layers in fp8 are beside
those that a CPU simulates, with the same weights in the same dtype.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    import torch

TIMES = 1.5  # the error of the plain path
FLOORS = {"bf16": 1e-2, "fp32": 1e-5}  # of the tensor's norm; below it no error counts
# A gradient that is 0 in fp64 may have this share of the root mean square of the others' median.
ZERO = 1e-3
EAGER: dict[str, dict[str, Any]] = {  # by our kernels on a GPU
    "eager": {},
    "all recomputed": {"checkpoint": "all"},
    "every second pair recomputed": {"checkpoint": "every 2"},
    "activations in host memory": {"offload": True},
    "given frames": {"given": True},
    "padded captions": {"padded": True},
    "one frame": {"frames": 1},
    "34 frames": {"frames": 34},
    "torch's operations": {"fused": False},
    "torch's operations, given frames": {"fused": False, "given": True},
    "torch's operations, one frame": {"fused": False, "frames": 1},
}
# On cards that have it.
FP8: dict[str, dict[str, Any]] = {
    "fp8": {"in_fp8": True},
    "fp8, given frames, recomputed": {"in_fp8": True, "given": True, "checkpoint": "all"},
}
# One model, whose programs serve from the third shape on.
COMPILED: dict[str, dict[str, Any]] = {
    "compiled, first shape": {},
    "compiled, second shape": {"frames": 7, "rows": 10},
    "compiled, third shape": {"frames": 9, "rows": 6},
    "compiled, given frames": {"given": True},
    "compiled, all recomputed": {"checkpoint": "all"},
    "compiled, padded captions": {"padded": True},
}
Tensors = dict[str, "torch.Tensor"]


def eager(options: Options, figures: Figures) -> str:
    """All ways without a compiler, in one process."""
    return _ways(options, figures, {**EAGER, **(FP8 if has_fp8(options) else {})}, None)


def compiled(options: Options, figures: Figures) -> str:
    """All ways with one; a rehearsal traces the blocks as it does, without generating code."""
    return _ways(options, figures, COMPILED, "aot_eager" if options.tiny else "inductor")


def has_fp8(options: Options) -> bool:
    """Whether linear layers run in fp8 on the device."""
    from trainer.errors import EngineError
    from trainer.models.block import fp8

    try:
        fp8.require(options.device, 2, ours=True)
    except EngineError:
        return False
    return True


def _ways(options: Options, figures: Figures, ways: Mapping[str, Any], backend: str | None) -> str:
    import torch

    dtype = "bf16" if options.device == "cuda" else "fp32"
    models = Models(torch.device(options.device), dtype, 2, options.tiny)
    if backend is not None:
        models.compile(backend)
    worst = 0.0
    for name, how in ways.items():
        found = figures.attempt(name, lambda how=how: judged(models, how))
        if found is not None:
            worst = max(worst, found["share_of_limit"])
            figures.judge(name, found["wrong"])
    return f"{len(ways)} ways, worst error {worst:.0%} of what is allowed"


def judged(models: Models, how: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one way; `wrong` is empty when all tensors are right."""
    begin = time.perf_counter()
    given = models.run(models.model, how)
    ran_s = time.perf_counter() - begin
    beside = models.simulated(how) if how.get("in_fp8") else models.plain(how)
    return compare(given, beside, models.run(models.exact, how), models.dtype) | {"run_s": ran_s}


def compare(given: Tensors, plain: Tensors, exact: Tensors, dtype: str) -> dict[str, Any]:
    """Errors of a way against fp64, beside what the plain path (in fp8 a CPU) reaches."""
    if not _typical(exact) > 1e-30:  # NaN, too
        return {"share_of_limit": math.inf, "wrong": "the gradients of fp64 are 0, or no numbers"}
    errors = _errors(given, exact)
    beside = _errors(plain, exact)
    # Of a norm's 72 weights an error is known to a tenth: the largest of its kind is steadier.
    kinds: dict[str, float] = {}
    for name, error in beside.items():
        kinds[_kind(name)] = max(error, kinds.get(_kind(name), 0.0))
    shares = {
        name: errors[name] / max(TIMES * kinds[_kind(name)], FLOORS[dtype]) for name in errors
    }
    shares |= {f"{name} (0)": share for name, share in _zeros(given, exact).items()}
    missing = sorted(exact.keys() ^ given.keys())
    worst = max(shares, key=lambda name: shares[name] if shares[name] == shares[name] else 1e9)
    wrong = ""
    if missing:
        wrong = f"there is no gradient, or one too many, of {', '.join(missing)}"
    elif not shares[worst] <= 1:
        name = worst.removesuffix(" (0)")
        wrong = f"{worst} differs by {errors.get(name, shares[worst]):.1e}"
        wrong += f", the plain path by {beside[name]:.1e}" if name in beside else ", it must be 0"
    return {
        "worst": worst,
        "error": errors.get(worst, shares[worst]),
        "plain": beside.get(worst, 0.0),
        "share_of_limit": shares[worst],
        "output": errors.get("output", math.nan),
        "plain_output": beside.get("output", math.nan),
        "wrong": wrong,
        "errors": errors,
        "plain_errors": beside,
    }


def _errors(given: Tensors, exact: Tensors) -> dict[str, float]:
    """Relative to the norm, of what is not 0."""
    least = ZERO * _typical(exact)
    return {
        name: float((given[name].double() - wanted).norm() / wanted.norm())
        for name, wanted in exact.items()
        if name in given and _rms(wanted) > least
    }


def _zeros(given: Tensors, exact: Tensors) -> dict[str, float]:
    """Of what is 0, or nearly, in fp64: its error as a share of what it may be."""
    allowed = ZERO * _typical(exact)
    return {
        name: _rms(given[name].double() - wanted) / allowed
        for name, wanted in exact.items()
        if name in given and _rms(wanted) <= allowed
    }


def _kind(name: str) -> str:
    """A weight without its block: spatial_blocks.0.attn.q_norm.weight is attn.q_norm.weight."""
    return name.split(".", 2)[2] if "_blocks." in name else name


def _typical(exact: Tensors) -> float:
    return statistics.median(_rms(wanted) for name, wanted in exact.items() if name != "output")


def _rms(values: torch.Tensor) -> float:
    return float(values.norm()) / values.numel() ** 0.5


class Models:
    """The model in question and the same weights in fp64, on one device."""

    def __init__(self, device: torch.device, dtype: str, depth: int, tiny: bool) -> None:
        import torch

        from trainer.models.stdit import STDiT3, build_stdit

        self.device, self.dtype, self._is_compiled = device, dtype, False
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        sizes = {"hidden_size": 64, "num_heads": 2} if tiny else {}
        off: dict[str, Any] = {"class_dropout_prob": 0.0, "drop_path": 0.0, "qk_norm": True}
        torch.manual_seed(0)
        with device:
            exact = build_stdit("STDiT3-XL/2", **off, depth=depth, **sizes).train()
        for parameter in exact.parameters():  # upstream's start makes temporal blocks the identity
            if not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.02)
        self.exact = exact.to(kind).double()  # the weights that the model in question has
        with device:
            self.model = STDiT3(exact.config).train()
        self.model.load_state_dict(exact.state_dict())
        self.model.to(kind)

    def compile(self, backend: str) -> None:
        self.model.compile_blocks(backend)
        self._is_compiled = True

    def run(self, model: Any, how: Mapping[str, Any]) -> Tensors:
        """Output and gradients of a model for inputs that depend on `how` alone."""
        is_exact = model is self.exact
        recompute = "off" if is_exact else how.get("checkpoint", "off")
        model.use_fused(how.get("fused", True) and not is_exact and not self._is_compiled)
        model.use_fp8(how.get("in_fp8", False) and not is_exact)
        model.enable_grad_checkpoint(recompute, not is_exact and how.get("offload", False))
        return self._passed(model, how)

    def plain(self, how: Mapping[str, Any]) -> Tensors:
        """Of the plain path with the model's weights: scores in full, no fused kernel.

        torch's own products compute half precision in fp32 unless told so; no kernel does that.
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from trainer.models.plain import plain_forward

        inputs, grad = self._inputs(self.model, how)
        x, times, y = (inputs.pop(name) for name in ("x", "t", "y"))
        if inputs["x_mask"] is not None:
            inputs["x_mask"] = inputs["x_mask"].to(self.device)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        try:
            with sdpa_kernel([SDPBackend.MATH]):
                out = plain_forward(self.model, x, times, y, **inputs)
                return self._backward(self.model, out, grad)
        finally:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)

    def simulated(self, how: Mapping[str, Any]) -> Tensors:
        """Of the model on the CPU, whose products are of matrices rounded to fp8 there."""
        from trainer.models.stdit import STDiT3

        model = STDiT3(self.exact.config).train().to(next(self.model.parameters()).dtype)
        model.load_state_dict(self.model.state_dict())
        model.use_fp8(True)
        return {name: value.to(self.device) for name, value in self._passed(model, how).items()}

    def _passed(self, model: Any, how: Mapping[str, Any]) -> Tensors:
        inputs, grad = self._inputs(model, how)
        x, times, y, mask, x_mask = (inputs.pop(name) for name in ("x", "t", "y", "mask", "x_mask"))
        return self._backward(model, model(x, times, y, mask, x_mask, **inputs), grad)

    @staticmethod
    def _backward(model: Any, out: torch.Tensor, grad: torch.Tensor) -> Tensors:
        out.backward(grad.to(out.dtype))
        found = {"output": out.detach()}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[name], parameter.grad = parameter.grad, None
        return found

    def _inputs(self, model: Any, how: Mapping[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
        import torch

        config, frames, rows = model.config, how.get("frames", 5), how.get("rows", 8)
        dtype = next(self.model.parameters()).dtype  # fp64 gets the rounded numbers, too
        device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(1)

        def random(*shape: int) -> torch.Tensor:
            values = torch.randn(*shape, generator=generator).to(device, dtype)
            return values.to(next(model.parameters()).dtype)

        length = config.model_max_length
        x = random(2, config.in_channels, frames, rows, 12)
        y = random(2, 1, length, config.caption_channels)
        tokens = (length // 3, length // 5) if how.get("padded") else (length,) * 2
        mask = (torch.arange(length) < torch.tensor(tokens)[:, None]).long()  # on the host
        x_mask = None
        if how.get("given"):
            x_mask = torch.ones(2, frames, dtype=torch.bool)
            x_mask[0, 0] = False
        values = {
            name: torch.full((2,), value, device=device)
            for name, value in (("fps", 24.0), ("height", 8.0 * rows), ("width", 96.0))
        }
        times = torch.tensor([100.0, 700.0], device=device)
        inputs = {"x": x, "t": times, "y": y, "mask": mask, "x_mask": x_mask, **values}
        return inputs, random(2, config.out_channels, frames, rows, 12)
