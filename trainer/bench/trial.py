"""One measurement: a model, some training steps of one shape, seconds and bytes. Runs in a child.

Inputs are random latents and text features: loading and encoding are not in it. The optimizer is
AdamW on fp32 masters with gradient norm, clipping and EMA, over the share of the weights that one
of `shards` ranks holds; communication between ranks is not in it.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.diffusion.rectified_flow import RectifiedFlow
from trainer.models.flops import flops_by_part
from trainer.models.plain import plain_forward
from trainer.models.stdit import STDiT3, build_stdit
from trainer.optim.ema import EMA

# B batch · C channels · T,H,W latent frames, height, width · L text tokens
OURS, PLAIN = "ours", "plain"
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything a trial needs, plain data that another process can be given."""

    kind: str  # of the model
    options: dict[str, Any]
    path: str  # ours or plain
    batch: int
    latent: tuple[int, int, int]
    frames: int  # of the video
    height: int  # pixels
    width: int
    text_tokens: int  # real ones of each caption
    dtype: str  # bf16 or fp32
    device: str
    checkpointing: bool | int | str = False  # what STDiT3.enable_grad_checkpoint takes
    offload: bool = False  # activations that are kept wait in host memory
    compile: bool = False  # each block
    positions: str = "fp32-exact"
    masked: bool = False  # some frames are given, as with mask_ratios
    shards: int = 1
    threads: int | None = None
    warmup: int = 2
    steps: int = 5
    enough_s: float | None = None  # a step longer than this is measured once
    flow: RectifiedFlow = field(default_factory=RectifiedFlow)


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the timed steps, in seconds, and peaks in bytes."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    steps: int
    peak_bytes: int
    start_bytes: int  # before the first step: weights, masters, inputs
    parameters: int
    forward_flops: int  # of one pass over the batch
    recompute_flops: int  # what checkpointing runs a second time

    @property
    def model_flops(self) -> int:
        """Of forward and backward pass, recomputation not counted."""
        return 3 * self.forward_flops


def run_trial(spec: Spec, progress: Callable[[int, int], None]) -> Measured:
    """Build, warm up, measure. `progress(done, total)` counts steps. Raises what torch raises."""
    device = torch.device(spec.device)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    trainee = Trainee(spec, device)
    on_gpu = device.type == "cuda"
    start_bytes = torch.cuda.memory_allocated(device) if on_gpu else status_bytes("VmRSS")
    _reset_peak(device)
    times: list[tuple[float, ...]] = []
    for number in range(spec.warmup + spec.steps):
        progress(number, spec.warmup + spec.steps)
        seconds = trainee.step()
        if number >= spec.warmup:
            times.append(seconds)
        if spec.enough_s is not None and sum(seconds) > spec.enough_s:
            times = times or [seconds]  # no need to know it better
            break
    columns = zip(PHASES, zip(*times, strict=True), strict=True)
    phases: dict[str, Any] = {f"{name}_s": statistics.median(column) for name, column in columns}
    peak_bytes = torch.cuda.max_memory_allocated(device) if on_gpu else status_bytes("VmHWM")
    parts = flops_by_part(trainee.model.config, spec.batch, *spec.latent, spec.text_tokens)
    return Measured(
        **phases,
        step_s=statistics.median(sum(seconds) for seconds in times),
        steps=len(times),
        peak_bytes=peak_bytes,
        start_bytes=start_bytes,
        parameters=sum(p.numel() for p in trainee.model.parameters()),
        forward_flops=parts.total,
        recompute_flops=parts.recompute(trainee.recomputed),
    )


class Trainee:
    """A model with inputs and an optimizer."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self._spec, self._device = spec, device
        dtype = torch.bfloat16 if spec.dtype == "bf16" else torch.float32
        with device:  # initialising XL/2 on the host takes longer than a trial
            self.model = build_stdit(spec.kind, **spec.options).to(dtype).train()
        self.model.use_positions(spec.positions)
        self._call: Callable[..., Tensor] = self.model
        if spec.path == PLAIN:
            self._call = self._plain
            self.recomputed: frozenset[int] = frozenset(range(2 * self.model.config.depth))
        else:
            self.model.enable_grad_checkpoint(spec.checkpointing, spec.offload)
            shape = spec.batch, spec.latent, spec.text_tokens
            self.recomputed = self.model.recomputed_blocks(*shape)
            if spec.compile:
                self.model.compile_blocks()
        self._optimizer = ShardedAdamW(self.model, spec.shards)
        self._inputs = _inputs(spec, self.model, device, dtype)
        self._mask_BT: Tensor | None = None
        if spec.masked:  # what a frame mask costs, not how many frames it gives
            self._mask_BT = torch.ones(spec.batch, spec.latent[0], dtype=torch.bool, device=device)
            self._mask_BT[0, 0] = False

    def _plain(self, x: Tensor, t: Tensor, num_frames: Any = None, **kwargs: Any) -> Tensor:
        if "x_mask" in kwargs:  # the plain path knows frames of tokens only
            patch = self.model.config.patch_size[0]
            x_mask = nn.functional.pad(kwargs["x_mask"], (0, -x.shape[2] % patch))
            kwargs["x_mask"] = x_mask.unflatten(1, (-1, patch)).any(-1)
        return plain_forward(self.model, x, t, kwargs.pop("y"), recompute=True, **kwargs)

    def step(self) -> tuple[float, ...]:
        """Seconds of forward, backward and optimizer."""
        z_BCTHW, kwargs = self._inputs
        marks = [_now(self._device)]
        losses = self._spec.flow.training_losses(self._call, z_BCTHW, kwargs, mask=self._mask_BT)
        loss = losses.mean()
        marks.append(_now(self._device))
        loss.backward()
        marks.append(_now(self._device))
        del losses, loss
        self._optimizer.step()
        marks.append(_now(self._device))
        return tuple(after - before for before, after in itertools.pairwise(marks))


def _inputs(
    spec: Spec, model: STDiT3, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    config = model.config
    length = config.model_max_length
    y = torch.randn(spec.batch, 1, length, config.caption_channels, device=device, dtype=dtype)
    mask = torch.zeros(spec.batch, length, dtype=torch.int64, device=device)
    mask[:, : spec.text_tokens] = 1
    size = {"fps": 24, "height": spec.height, "width": spec.width, "num_frames": spec.frames}
    values = {
        name: torch.full((spec.batch,), float(value), device=device) for name, value in size.items()
    }
    z_BCTHW = torch.randn(spec.batch, config.in_channels, *spec.latent, device=device)
    return z_BCTHW, {"y": y, "mask": mask, **values}


class ShardedAdamW:
    """AdamW, clipping and EMA over the first 1/shards of the trained weights, one rank's part."""

    def __init__(self, model: nn.Module, shards: int) -> None:
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._masters: list[Tensor] = list(self._params)
        self._copies: list[tuple[Tensor, nn.Parameter, int]] = []  # master, weight, its elements
        if shards > 1 or any(p.dtype != torch.float32 for p in self._params):
            for p, count in _first_share(self._params, shards):
                self._copies.append((p.detach().flatten()[:count].float().clone(), p, count))
            self._masters = [master for master, _, _ in self._copies]
        self._adamw = torch.optim.AdamW(self._masters, lr=1e-5, weight_decay=0.01, fused=True)
        self._ema = EMA(self._named(), decay=0.99)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        return ((str(number), master) for number, master in enumerate(self._masters))

    @torch.no_grad()
    def step(self) -> None:
        """Norm, clip, update, EMA; gradients are gone afterwards."""
        grads = [p.grad for p in self._params if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(grads)).float().norm()
        torch._foreach_mul_(grads, (1.0 / norm.clamp(min=1.0)).to(grads[0].dtype))
        for master, p, count in self._copies:
            assert p.grad is not None
            master.grad = p.grad.flatten()[:count].float()
        self._adamw.step()
        for master, p, count in self._copies:
            p.view(-1)[:count].copy_(master)
        self._adamw.zero_grad(set_to_none=True)
        for p in self._params:
            p.grad = None
        self._ema.update(self._named())


def _first_share(params: list[nn.Parameter], shards: int) -> Iterator[tuple[nn.Parameter, int]]:
    left = -(-sum(p.numel() for p in params) // shards)
    for p in params:
        if left > 0:
            yield p, min(left, p.numel())
        left -= p.numel()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def status_bytes(name: str) -> int:
    """A line of this process's status (VmRSS), 0 where there is none."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Not every container allows it; the peak then has the building of the model in it.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is held now
