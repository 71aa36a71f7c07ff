"""The default engine: ColossalAI's Booster with LowLevelZero (stage 2 or 1) or DDP.

ColossalAI's own checkpoints rebuild the fp32 masters from the working weights: a bf16 run differs
by 1e-3 ten steps after a resume. This engine writes the masters with the optimizer state; a resumed
run continues bit by bit at the same world size (on a GPU only where its kernels are deterministic),
and starts at any other.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config.load import Config
from trainer.engine.base import Engine
from trainer.engine.colossal_import import import_colossalai, use_cpu, use_gpu
from trainer.engine.gradients import LocalSums, at_most, clip_in_place
from trainer.engine.process_group import joining
from trainer.engine.shards import Shards, part_of
from trainer.engine.zero_step import ZeroStep
from trainer.errors import EngineError

_STAGES = {"zero2": 2, "zero1": 1}
_GATHERED = 16 * 2**20  # elements gathered at once when parameters are put together


class ColossalEngine(Engine):
    """One process under ColossalAI. See `Engine` for the verbs."""

    name: ClassVar[str] = "colossal"

    def __init__(self) -> None:
        self._names = import_colossalai()  # before CUDA starts: it sets a variable for that
        super().__init__()
        self._waited_s = 0.0

    def setup(self, seed: int, timeout_s: float) -> None:
        if self.device.type == "cpu":
            use_cpu(self._names)
        else:
            use_gpu(self._names)
        # launch_from_torch passes no timeout on; gloo's is 30 minutes, upstream's loop's 24 hours.
        self.timeout_s, timeout = timeout_s, timedelta(seconds=timeout_s)
        plain = dist.init_process_group
        dist.init_process_group = functools.partial(plain, timeout=timeout)
        try:
            with joining(timeout_s):
                self._names.colossalai.launch_from_torch(seed=seed, verbose=False)
        finally:
            dist.init_process_group = plain

    def wrap(self, model: nn.Module, config: Config) -> nn.Module:
        self._config = config
        plugin = self._plugin(config)
        if not self.is_sharded:
            model = model.to(self.device)  # DDP moves a copy after the optimizer has seen it
        learning = [p for p in model.parameters() if p.requires_grad]
        # Before the hooks of ColossalAI, which take what a gradient is then.
        self._sums = LocalSums(learning)
        optimizer = self._adamw(learning)
        self._booster = self._names.Booster(plugin=plugin)
        self._model, self._optimizer, *_ = self._booster.boost(model, optimizer)
        self._parameters = [parameter for _, parameter in self._trained()]
        self._masters = self._find_masters()
        if self.is_sharded:
            self._time_collectives()
            self._update = ZeroStep(self._optimizer, config.grad_clip)
        return self._model

    def twin(self, model: nn.Module) -> nn.Module:
        dtype = next(self.module.parameters()).dtype
        return model.to(self.device, dtype)

    def _plugin(self, config: Config) -> Any:
        on_gpu = self.device.type == "cuda"
        if config.plugin == "ddp":
            if config.dtype != "fp32":
                text = "plugin ddp trains in fp32 only: ColossalAI's DDP has no bf16"
                raise EngineError(text, hint='use plugin = "zero2", or dtype = "fp32"')
            return self._names.TorchDDPPlugin(broadcast_buffers=False)
        return self._names.LowLevelZeroPlugin(
            stage=_STAGES[config.plugin],
            precision=config.dtype,
            max_norm=config.grad_clip,
            reduce_bucket_size_in_m=config.reduce_bucket_size_in_m,
            overlap_communication=on_gpu,  # the CPU has no second stream to overlap on
            # The model casts what it can afford to; bf16 has steps of 4 at timestep 1000.
            cast_inputs=False,
        )

    def _time_collectives(self) -> None:
        reduce, reduce_last = self._optimizer._run_reduction, self._optimizer._reduce_grad

        def timed() -> None:
            start = time.perf_counter()
            reduce()
            self._waited_s += time.perf_counter() - start

        def marked(partition_grad: bool) -> None:
            # On a GPU reductions are on a stream of their own, for which `backward` waits next.
            reduce_last(partition_grad)
            self.on_computed()

        self._optimizer._run_reduction, self._optimizer._reduce_grad = timed, marked
        self.backward_is_timed = True

    def passing(self, *, is_last: bool) -> contextlib.AbstractContextManager[None]:
        # DDP decides in the forward pass whether the backward pass after it will reduce. ZeRO-2
        # keeps no whole gradient to wait with: every pass is reduced to this rank's part.
        if self.is_sharded or is_last:
            return contextlib.nullcontext()
        quiet: contextlib.AbstractContextManager[None] = self._model.module.no_sync()
        return quiet

    def backward_here(self, loss: Tensor) -> None:
        if not self.is_sharded:
            loss.backward()  # in fp32 already, and within `passing` DDP does not reduce
            return
        self._optimizer.require_grad_sync = False  # its hooks leave the gradients where they are
        try:
            with self._sums.taking():
                loss.backward()
        finally:
            self._optimizer.require_grad_sync = True

    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        self._booster.backward(loss, self._optimizer)
        if self.is_sharded and not is_last:
            self._add_up_in_fp32()

    def _add_up_in_fp32(self) -> None:
        """ColossalAI adds the next pass to these parts; a bf16 sum would lose its last bits.

        Where it adds and allocates them: on a GPU that is the stream of its reductions.
        """
        (bucket,) = self._optimizer.pg_to_bucket_store.values()  # one process group
        with self._names.get_accelerator().stream(bucket.comm_stream):
            for store in self._optimizer.pg_to_grad_store.values():
                for parts in store._grads_of_params.values():
                    for gradients in parts.values():
                        gradients[:] = [gradient.float() for gradient in gradients]

    def step(self, limit: float | None = None) -> Tensor:
        if self.is_sharded:
            norm = self._update.step(limit)
        else:
            found = [p for p in self._parameters if p.grad is not None]
            gradients = [p.grad for p in found]
            norm = clip_in_place(gradients, self._config.grad_clip, self.device)
            if limit is not None and self.world > 1:
                # Every rank computes it from the same bits; ranks that take a step or not by
                # numbers of their own could differ on processors of two kinds.
                dist.broadcast(norm, src=0)
            self._optimizer.optim.update(found, gradients, at_most(norm, limit))
        self._optimizer.zero_grad()
        return norm

    # --- views ---

    @property
    def module(self) -> nn.Module:
        return self._model.unwrap()

    @property
    def is_sharded(self) -> bool:
        return self._config.plugin != "ddp"

    @property
    def waited_s(self) -> float:
        return self._waited_s

    def weights_to_save(self) -> dict[str, Tensor] | None:
        return dict(self.module.state_dict()) if self.rank == 0 else None

    def _find_masters(self) -> list[tuple[str, Tensor]]:
        if not self.is_sharded:
            return [(name, parameter.detach()) for name, parameter in self._trained()]
        master_of = self._optimizer.working_to_master_param
        return [(name, master_of[id(parameter)]) for name, parameter in self._trained()]

    def part(self, name: str, whole: Tensor) -> Tensor:
        return part_of(whole, self.rank, self.world) if self.is_sharded else whole

    def full_params(self, parts: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        if not self.is_sharded or self.world == 1:
            yield from self._trimmed(parts)
            return
        batch: dict[str, Tensor] = {}
        size = 0
        for name, part in parts:
            batch[name] = part
            size += part.numel() * self.world
            if size >= _GATHERED:
                yield from self._gathered(batch)
                batch, size = {}, 0
        if batch:
            yield from self._gathered(batch)

    def _gathered(self, batch: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        flat = torch.cat(list(batch.values()))
        every = flat.new_empty(self.world * flat.numel())  # gloo takes no second dimension
        dist.all_gather_into_tensor(every, flat)
        lengths = [part.numel() for part in batch.values()]
        columns = every.view(self.world, -1).split(lengths, dim=1)
        yield from self._trimmed(zip(batch, columns, strict=True))

    def _trimmed(self, padded: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters without the padding behind the last part."""
        shapes = self._shapes()
        for name, values in padded:
            yield name, values.reshape(-1)[: shapes[name].numel()].view(shapes[name])

    # --- state on disk ---

    def _read_part(self, shards: Shards, name: str, kind: str) -> Tensor:
        numel = self.module.get_parameter(name).numel()
        return shards.read(f"{name}/{kind}", numel, *self._place)

    @torch.no_grad()
    def _spread(self) -> None:
        for name, whole in self.full_params(self.master_params()):
            self.module.get_parameter(name).copy_(whole)

    def _states(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        inner, parameters = self._optimizer.optim, dict(self._trained())
        for name, master in self.master_params():
            # under DDP the optimizer's key is the parameter itself, not a detached view of it
            yield name, master, inner.state[master if self.is_sharded else parameters[name]]
