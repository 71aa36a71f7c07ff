"""One measurement: a model, some training steps of one shape, seconds and bytes. Runs in a child.

Inputs are random latents and text features: loading and encoding are not in it. The optimizer is
AdamW on fp32 masters with gradient norm, clipping and EMA, over the share of the weights that one
of `shards` ranks holds; communication between ranks is not in it.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trainer.bench.peaks import held_bytes, peak_bytes, reset_peak
from trainer.bench.shapes import Shape, model_options
from trainer.config.load import Config
from trainer.data.plan.costs import now
from trainer.device import be_deterministic
from trainer.diffusion.rectified_flow import build_flow
from trainer.engine.gradients import LocalSums
from trainer.fits import Fit, cheapest, usable_bytes
from trainer.models.attention.table import read_table
from trainer.models.flops import flops_by_part
from trainer.models.peak import State, predicted_peak
from trainer.models.plain import plain_forward
from trainer.models.stdit import STDiT3, build_stdit
from trainer.optim.ema import EMA

# B batch · C channels · T,H,W latent frames, height, width · L text tokens
OURS, PLAIN, LAMBDA = "ours", "plain", "lambda"
OTHERS = (PLAIN, LAMBDA)  # what ours can be compared with
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything a trial needs, plain data that another process can be given."""

    config: Config
    shape: Shape
    device: str
    text_tokens: int  # real ones of each caption
    masked: bool = False  # some frames are given, as with mask_ratios
    path: str = OURS
    shards: int = 1
    warmup: int = 2
    steps: int = 5
    enough_s: float | None = None  # a step longer than this is measured once
    backend: str = "inductor"  # of torch.compile


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
    first_s: float  # the very first step: with compiling, planning, loading of kernels
    compiled_blocks: dict[str, int]  # spatial and temporal ones
    predicted_mb: float | None = None  # of `predicted_peak`, of our path

    @property
    def model_flops(self) -> int:
        """Of forward and backward pass, recomputation not counted."""
        return 3 * self.forward_flops


def run_trial(spec: Spec, progress: Callable[[int, int], None]) -> Measured:
    """Build, warm up, measure. `progress(done, total)` counts steps. Raises what torch raises."""
    if spec.config.deterministic:
        be_deterministic()
    device, shape = prepared(spec), spec.shape
    trainee = Trainee(spec, device)
    start_bytes = held_bytes(device)
    reset_peak(device)
    times: list[tuple[float, ...]] = []
    first_s = 0.0
    for number in range(spec.warmup + spec.steps):
        progress(number, spec.warmup + spec.steps)
        seconds = trainee.step()
        first_s = first_s or sum(seconds)
        if number >= spec.warmup:
            times.append(seconds)
        if spec.enough_s is not None and sum(seconds) > spec.enough_s:
            times = times or [seconds]  # no need to know it better
            break
    columns = zip(PHASES, zip(*times, strict=True), strict=True)
    phases: dict[str, Any] = {f"{name}_s": statistics.median(column) for name, column in columns}
    most_bytes = peak_bytes(device)
    sizes = (shape.batch_size, *shape.latent, spec.text_tokens)
    parts = flops_by_part(trainee.model.config, *sizes)
    return Measured(
        **phases,
        step_s=statistics.median(sum(seconds) for seconds in times),
        steps=len(times),
        peak_bytes=most_bytes,
        start_bytes=start_bytes,
        parameters=sum(p.numel() for p in trainee.model.parameters()),
        forward_flops=parts.total,
        recompute_flops=parts.recompute(trainee.recomputed),
        first_s=first_s,
        compiled_blocks=trainee.compiled_blocks(),
        predicted_mb=trainee.predicted_mb(spec),
    )


def prepared(spec: Spec) -> torch.device:
    """Where a trial runs, with its threads and its random numbers."""
    if spec.config.threads is not None:
        torch.set_num_threads(spec.config.threads)
    torch.manual_seed(0)
    return torch.device(spec.device)


class Trainee:
    """A model with inputs and an optimizer."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self._device, config, shape = device, spec.config, spec.shape
        dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
        with device:  # initialising XL/2 on the host takes longer than a trial
            self.model = build_stdit(config.model.type, **model_options(config)).to(dtype).train()
        self.model.use_positions(config.positions)
        self._flow = build_flow(config.scheduler)
        self._call: Callable[..., Tensor] = self.model
        if spec.path in OTHERS:
            self._call = functools.partial(self._plain, spec.path == LAMBDA)
            self.recomputed: frozenset[int] = frozenset(range(2 * self.model.config.depth))
        else:
            if config.attention_table is not None:
                self.model.use_attention(read_table(config.attention_table))
            self.model.enable_grad_checkpoint(config.grad_checkpoint, config.offload_activations)
            ways = {"fused": config.fused_blocks, "compiled": config.compile}
            ways["in_fp8"] = config.fp8_linears
            self.model.run_blocks_by(device.type, dtype.itemsize, **ways, backend=spec.backend)
            if self.model.grad_checkpoint.automatic:
                self._pass_what_fits(spec)
            sizes = shape.batch_size, shape.latent, spec.text_tokens
            self.recomputed = self.model.recomputed_blocks(*sizes)
        learning = (p for p in self.model.parameters() if p.requires_grad)
        self._sums = LocalSums(learning)  # of the parts of a microbatch, as in training
        self._optimizer = ShardedAdamW(self.model, spec.shards)
        self._inputs = _inputs(spec, self.model, device, dtype)
        self._noise_BCTHW = torch.randn_like(self._inputs[0])  # training has drawn it ahead
        self._mask_BT: Tensor | None = None
        if spec.masked:  # what a frame mask costs, not how many frames it gives
            sizes_BT = shape.batch_size, shape.latent[0]
            self._mask_BT = torch.ones(sizes_BT, dtype=torch.bool, device=device)
            self._mask_BT[0, 0] = False

    def compiled_blocks(self) -> dict[str, int]:
        """How many blocks of each kind torch.compile runs."""
        kinds = {"spatial": self.model.spatial_blocks, "temporal": self.model.temporal_blocks}
        return {
            kind: sum(block._compiled_call_impl is not None for block in blocks)
            for kind, blocks in kinds.items()
        }

    def predicted_mb(self, spec: Spec) -> float | None:
        """Tensors at the fullest moment of our step, from shapes alone, 10^6 bytes."""
        if spec.path != OURS:
            return None
        return self._bytes(spec, max(self.passes(spec.shape))) / 1e6

    def passes(self, shape: Shape) -> list[int]:
        """Clips that pass at once, one number for each pass of a step."""
        spans = self.model.grad_checkpoint.spans(shape.batch_size, shape.latent)
        return [span.stop - span.start for span in spans]

    def _pass_what_fits(self, spec: Spec) -> None:
        """In the parts that training would choose; one with all recomputed where nothing fits."""
        limit, shape, config = usable_bytes(self._device), spec.shape, self.model.config
        if limit is None or self._bytes(spec, shape.batch_size, 0) <= limit:
            return
        every, tokens = 2 * config.depth, shape.tokens(config.patch_size)
        needs = functools.partial(self._bytes, spec)
        fit = cheapest(needs, shape.batch_size, tokens, every, limit) or Fit(1, every)
        setting, latent = self.model.grad_checkpoint, shape.latent
        self.model.grad_checkpoint = replace(
            setting, at_once={latent: fit.clips}, at_least={latent: fit.blocks}
        )

    def _bytes(self, spec: Spec, clips: int, blocks: int | None = None) -> int:
        # Gradients are whole here, and no collective has a bucket of them.
        chunks = clips < spec.shape.batch_size
        state = State(world=spec.shards, plugin="zero1", reduce_bucket=0, chunks=chunks)
        how = self.model.grad_checkpoint
        if blocks is not None:
            how = replace(how, at_least={spec.shape.latent: blocks})
        sizes = clips, spec.shape.latent, spec.text_tokens
        peak = predicted_peak(self.model, *sizes, state, checkpoint=how, masked=spec.masked)
        return peak.total

    def _plain(
        self, fused: bool, x: Tensor, t: Tensor, num_frames: Any = None, **kwargs: Any
    ) -> Tensor:
        if "x_mask" in kwargs:  # the plain path knows frames of tokens only
            patch = self.model.config.patch_size[0]
            x_mask = nn.functional.pad(kwargs["x_mask"], (0, -x.shape[2] % patch))
            kwargs["x_mask"] = x_mask.unflatten(1, (-1, patch)).any(-1)
        return plain_forward(
            self.model, x, t, kwargs.pop("y"), recompute=True, fused=fused, **kwargs
        )

    def step(self) -> tuple[float, ...]:
        """Seconds of forward, backward and optimizer."""
        batch, _, frames, height, width = self._inputs[0].shape
        spans = self.model.grad_checkpoint.spans(batch, (frames, height, width))
        took = [0.0, 0.0]
        for span in spans:
            marks = [now(self._device)]
            loss = self._losses(span).sum() / batch
            marks.append(now(self._device))
            with self._sums.taking() if span is not spans[-1] else nullcontext():
                loss.backward()
            marks.append(now(self._device))
            del loss
            took = [sum(pair) for pair in zip(took, _between(marks), strict=True)]
        marks = [now(self._device)]
        self._optimizer.step()
        marks.append(now(self._device))
        return *took, *_between(marks)

    def _losses(self, clips: slice) -> Tensor:
        z_BCTHW, kwargs = self._inputs
        mask = None if self._mask_BT is None else self._mask_BT[clips]
        own = {name: value[clips] for name, value in kwargs.items()}
        noise = self._noise_BCTHW[clips]
        return self._flow.training_losses(self._call, z_BCTHW[clips], own, mask=mask, noise=noise)


def _between(marks: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(marks)]


def _inputs(
    spec: Spec, model: STDiT3, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    config, shape, batch = model.config, spec.shape, spec.shape.batch_size
    length = config.model_max_length
    y = torch.randn(batch, 1, length, config.caption_channels, device=device, dtype=dtype)
    mask = torch.zeros(batch, length, dtype=torch.int64)  # on the host, as in training
    mask[:, : spec.text_tokens] = 1
    size = {"fps": 24, "height": shape.height, "width": shape.width, "num_frames": shape.frames}
    values = {name: torch.full((batch,), float(v), device=device) for name, v in size.items()}
    z_BCTHW = torch.randn(batch, config.in_channels, *shape.latent, device=device)
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
