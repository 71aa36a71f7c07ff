"""Shapes of an epoch once before its first step, so that no step waits for a compiler.

A new shape may cost seconds: torch.compile and Triton make programs for it. All blocks share
theirs, so a twin of two blocks makes them, with the run's kernels and settings, in about 1/28 of
the time of a step of XL/2. Most shapes need no program of their own: of stage 1's 616 those of
`worth_warming` do (tests/gpu/null runs all of them afterwards, and nothing is made).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.plan.buckets import Bucket
from trainer.data.plan.costs import now
from trainer.device import random_numbers_kept
from trainer.diffusion.rectified_flow import RectifiedFlow
from trainer.engine.base import Engine
from trainer.models.peak import grid
from trainer.models.stdit import STDiT3
from trainer.runlog import units

# B batch · C channels · T,H,W latent frames, height, width · L text tokens
Size = tuple[int, int, int]
Shape = tuple[int, Size]  # batch, and size of a latent
_LARGE = 2**31  # elements: a program for tensors of more counts in 64 bits


def worth_warming(
    shapes: Iterable[Shape], compiled: bool, widest: int, patch: Size = (1, 2, 2)
) -> list[Shape]:
    """Those for which a program may be made, small ones first; `widest` is the largest number of
    values of a token.

    Our kernels are made for a number of frames. So are compiled programs, and for batches of one
    clip and of more, for large tensors, and for a number of places that is a multiple of 8 or is
    not (inductor then pads products): the first shape of a kind makes programs for itself alone,
    others for the sizes that differ, places and clips; the largest is there in case they are not.
    """
    kinds: dict[tuple[int, ...], list[Shape]] = {}
    for batch, (frames, height, width) in sorted(set(shapes), key=_volume):
        shape = batch, (frames, height, width)
        is_large = _volume(shape) * widest >= _LARGE
        kind = (frames, batch == 1, is_large) if compiled else (frames,)
        kinds.setdefault(kind, []).append(shape)

    def first(kind: list[Shape]) -> Iterator[Shape]:
        if not compiled:
            yield kind[0]
            return
        for is_ragged in (True, False):
            group = [shape for shape in kind if bool(_places(shape, patch) % 8) == is_ragged]
            others = [shape for shape in group[1:] if shape[0] != group[0][0]]
            yield from [*group[:1], *(others or group[1:])[:1]]

    found = {shape: None for kind in kinds.values() for shape in (*first(kind), kind[-1])}
    return sorted(found, key=_volume)


def _places(shape: Shape, patch: Size) -> int:
    return math.prod(grid(shape[1], patch)[1:])


def _volume(shape: Shape) -> int:
    batch, latent = shape
    return batch * math.prod(latent)


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a warm-up did."""

    shapes: int
    all_shapes: int  # of the epoch; the others need no program of their own
    seconds: float
    slowest: str  # bucket of the shape that took longest
    slowest_s: float
    blocks: int  # of the model, which share these programs
    programs: int  # that torch.compile made; 0 without it

    def __str__(self) -> str:
        shapes = f"{self.shapes} of {self.all_shapes} shapes in {units.duration(self.seconds)}"
        most = f"the slowest in {units.duration(self.slowest_s)} ({self.slowest})"
        made = f"{self.programs} programs for {self.blocks} blocks"
        return f"{shapes}, {most}; {made if self.programs else 'nothing is compiled by torch'}"


class WarmUp:
    """Remembers the shapes that were warmed up."""

    def __init__(
        self,
        model: STDiT3,
        flow: RectifiedFlow,
        engine: Engine,
        latent_size: Callable[[Size], Size],
        *,
        compiled: bool,
        has_masks: bool,
    ) -> None:
        self._model, self._flow, self._engine = model, flow, engine
        self._latent_size, self._compiled, self._has_masks = latent_size, compiled, has_masks
        self._known: dict[Shape, Bucket] = {}
        self._done: set[Shape] = set()

    def run(
        self, buckets: Iterable[Bucket], show: Callable[[int, int], None] = lambda done, all_: None
    ) -> Warmed | None:
        """Warm up for `buckets` what was not (collective); None when there is nothing.

        `show` gets the shapes done and their number. Raises what a pass over such a batch raises.
        """
        present, setting = {}, self._model.grad_checkpoint
        for bucket in buckets:
            latent = self._latent_size((bucket.frames, bucket.height, bucket.width))
            for part in setting.spans(bucket.batch_size, latent):  # what passes at once
                present[part.stop - part.start, latent] = bucket
        self._known |= present
        patch, config = self._model.config.patch_size, self._model.config
        widest = int(config.hidden_size * max(3, config.mlp_ratio)) // math.prod(patch)
        wanted = worth_warming(self._known, self._compiled, widest, patch)
        shapes = [shape for shape in wanted if shape not in self._done]
        if not shapes:
            return None
        began, took = time.perf_counter(), {}
        programs = self._programs()
        with random_numbers_kept(self._engine.device):
            twin = self._twin()
            for number, shape in enumerate(shapes):
                bucket = self._known[shape]
                show(number, len(shapes))
                start = now(self._engine.device)
                inputs = self._batch(*shape, bucket)
                for masked in (False, True) if self._has_masks else (False,):
                    self._pass(twin, *inputs, masked)
                took[bucket.name] = now(self._engine.device) - start
            del twin
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._done.update(shapes)
        slowest = max(took, key=lambda name: took[name])
        seconds = time.perf_counter() - began
        blocks, made = 2 * self._model.config.depth, self._programs() - programs
        counts = len(shapes), len(present)
        return Warmed(*counts, seconds, slowest, took[slowest], blocks, made)

    def _programs(self) -> int:
        """What torch.compile has made so far in this process."""
        if not self._compiled:
            return 0
        from torch._dynamo.utils import counters  # a second to import

        return counters["stats"]["unique_graphs"]

    def _twin(self) -> torch.nn.Module:
        """A spatial and a temporal block, embedders and last layer, set as the model is."""
        model = self._model
        with self._engine.device:
            twin = STDiT3(replace(model.config, depth=1))
        twin.enable_grad_checkpoint(model.grad_checkpoint, model.offload)
        twin.use_positions(model.positions)
        twin.use_attention(model.table)
        twin.use_fused(model.fused)
        twin.use_fp8(model.in_fp8)
        if self._compiled:
            twin.compile_blocks()
        return self._engine.twin(twin.train())

    def _pass(
        self,
        twin: torch.nn.Module,
        z_BCTHW: Tensor,
        conditions: Mapping[str, Tensor],
        mask_BT: Tensor,
        masked: bool,
    ) -> None:
        mask = mask_BT if masked else None
        self._flow.training_losses(twin, z_BCTHW, conditions, mask=mask).mean().backward()
        twin.zero_grad(set_to_none=True)

    def _batch(
        self, batch: int, latent: Size, bucket: Bucket
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Zeros of the shapes that a step's tensors have."""
        config, device = self._model.config, self._engine.device
        length = config.model_max_length
        sizes = {"fps": 24, "height": bucket.height, "width": bucket.width}
        z_BCTHW = torch.zeros(batch, config.in_channels, *latent, device=device)
        y_B1LC = torch.zeros(batch, 1, length, config.caption_channels, device=device)
        mask_BT = torch.ones(batch, latent[0], dtype=torch.bool, device=device)
        mask_BT[0, 0] = False
        values = {name: torch.full((batch,), float(v), device=device) for name, v in sizes.items()}
        mask_BL = torch.ones(batch, length, dtype=torch.int64)  # on the host, as a step has it
        return z_BCTHW, {"y": y_B1LC, "mask": mask_BL, **values}, mask_BT


def warm_up_for(config: Config, parts: Parts, engine: Engine) -> WarmUp | None:
    """For an accelerator: on a CPU the columns of captions are another shape in each batch."""
    if engine.device.type == "cpu":
        return None
    return WarmUp(
        parts.model,
        parts.flow,
        engine,
        parts.vae.latent_size,
        compiled=config.compile and not parts.model.fused,
        has_masks=any(parts.masks.ratios.values()),
    )
