"""Blocks forward and backward against fp64 on the CPU, in every way that training runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Item, Options

if TYPE_CHECKING:
    import torch

BUDGET_S = 180.0
LIMIT = {"cuda": 1e-2, "cpu": 1e-4}  # of bf16 and of fp32, relative to the norm
WAYS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compile": True},
    "all recomputed": {"checkpoint": "all"},
    "every second pair recomputed": {"checkpoint": "every 2"},
    "compiled, all recomputed": {"compile": True, "checkpoint": "all"},
    "activations in host memory": {"offload": True},
    "given frames": {"given": True},
    "padded captions": {"padded": True},
    "one frame": {"frames": 1},
    "34 frames": {"frames": 34},
}


def items(options: Options) -> Iterator[Item]:
    for name, how in WAYS.items():
        yield Item(f"block {name}", compare, (how,), 120.0)


def compare(options: Options, how: dict[str, Any]) -> dict[str, Any]:
    import torch

    from trainer.models.stdit import STDiT3, build_stdit

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_heads": 2, "depth": 2} if options.tiny else {"depth": 2}
    exact = build_stdit("STDiT3-XL/2", class_dropout_prob=0.0, drop_path=0.0, **sizes).train()
    for parameter in exact.parameters():  # upstream's start makes temporal blocks the identity
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.02)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    exact.to(dtype).double()  # the weights that the model in question has
    model = STDiT3(exact.config).train()
    model.load_state_dict(exact.state_dict())
    model.to(options.device, dtype)
    model.enable_grad_checkpoint(how.get("checkpoint", "off"), how.get("offload", False))
    if how.get("compile"):
        # A rehearsal traces the blocks as a compiler does, without generating code.
        model.compile_blocks("aot_eager" if options.tiny else "inductor")
    given = _run(model, options.device, how)
    wanted = _run(exact, "cpu", how)
    errors = {name: _error(given[name], wanted[name]) for name in wanted}
    worst = max(errors, key=errors.__getitem__)
    limit = LIMIT[options.device]
    if not errors[worst] <= limit:
        raise AssertionError(f"{worst} differs by {errors[worst]:.1e}, allowed is {limit:g}")
    headline = f"output {errors['output']:.1e}  worst gradient {worst} {errors[worst]:.1e}"
    return {"errors": errors, "limit": limit, "headline": headline}


def _run(model: Any, device: str, how: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Output and gradients of a model for inputs that depend on `how` alone."""
    import torch

    config, frames = model.config, how.get("frames", 5)
    dtype = next(model.parameters()).dtype
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    length = config.model_max_length
    x = random(2, config.in_channels, frames, 8, 12)
    y = random(2, 1, length, config.caption_channels)
    mask = torch.zeros(2, length, dtype=torch.int64)
    for row, tokens in enumerate(
        (length // 3, length // 5) if how.get("padded") else (length,) * 2
    ):
        mask[row, :tokens] = 1
    x_mask = None
    if how.get("given"):
        x_mask = torch.ones(2, frames, dtype=torch.bool)
        x_mask[0, 0] = False
    times = torch.tensor([100.0, 700.0], device=device)
    values = {
        name: torch.full((2,), value, device=device)
        for name, value in (("fps", 24.0), ("height", 64.0), ("width", 96.0))
    }
    out = model(x, times, y, mask, x_mask, **values)
    out.backward(random(*out.shape).to(out.dtype))
    found = {"output": out.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad
    return found


def _error(given: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = given.detach().double().cpu() - wanted.detach().double().cpu()
    return float(difference.norm() / wanted.double().norm().clamp(min=1e-12))
