"""The engine without ColossalAI: torch's FSDP2, fp32 parts of every parameter on the ranks.

Forward and backward gather one block at a time in working precision; optimizer and EMA work on this
rank's fp32 rows, and those go to disk as they are. Either engine continues from the other's
checkpoint, at any world size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from trainer.config.load import Config
from trainer.engine.base import Engine
from trainer.engine.gradients import at_most, clip_in_place
from trainer.engine.process_group import joining
from trainer.engine.shards import Shards
from trainer.errors import EngineError

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class NativeEngine(Engine):
    """One process under FSDP2. See `Engine` for the verbs."""

    name: ClassVar[str] = "native"
    forward_is_local: ClassVar[bool] = False  # a forward pass gathers parameters

    def setup(self, seed: int, timeout_s: float) -> None:
        backend = "gloo"
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            backend = "nccl"
        self.timeout_s = timeout_s
        with joining(timeout_s):
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        torch.manual_seed(seed)

    def wrap(self, model: nn.Module, config: Config) -> nn.Module:
        if config.plugin not in ("zero2", "fsdp"):
            text = f"plugin {config.plugin} is ColossalAI's; the native engine shards everything"
            raise EngineError(text, hint='engine = "colossal", or leave plugin out')
        self._config, self._dtype, self._is_reducing = config, _DTYPES[config.dtype], True
        self._model = self.twin(model)
        self._parameters = self._trained()
        # This rank's rows as plain tensors: of 971 DTensors an update takes 110 ms, of these 8 ms.
        self._masters = [(name, p.to_local().detach()) for name, p in self._parameters]
        self._optimizer = self._adamw([master for _, master in self._masters])
        return self._model

    def twin(self, model: nn.Module) -> nn.Module:
        model = model.to(self.device, torch.float32)
        policy = MixedPrecisionPolicy(
            param_dtype=self._dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # the model casts what it can afford to
        )
        mesh = init_device_mesh(self.device.type, (self.world,))
        shard = functools.partial(fully_shard, mesh=mesh, mp_policy=policy)
        for layers in [part for part in model.modules() if isinstance(part, nn.ModuleList)]:
            for layer in layers:
                shard(layer)
        shard(model)
        leave_on_host(model)
        return model

    def expect_chunks(self) -> None:
        # Whole weights stay until the step's last backward pass: one gathering of each block then,
        # and one reduction, however many passes a rank makes in between.
        self._root.set_reshard_after_forward(False)

    @property
    def _root(self) -> Any:
        return self._model

    def backward_here(self, loss: Tensor) -> None:
        self._reduces(False)
        loss.backward()

    def _reduces(self, now: bool) -> None:
        """Whether a backward pass reduces gradients and lets whole weights go."""
        if now != self._is_reducing:
            self._root.set_requires_gradient_sync(now)
            self._root.set_reshard_after_backward(now)
            self._is_reducing = now

    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        self._reduces(True)
        # Every pass is reduced to this rank's fp32 rows: waiting would keep whole gradients.
        loss.backward()

    @torch.no_grad()
    def step(self, limit: float | None = None) -> Tensor:
        masters, gradients = [], []
        for (_, parameter), (_, master) in zip(self._parameters, self._masters, strict=True):
            if (gradient := parameter.grad) is not None:
                masters.append(master)
                gradients.append(gradient._local_tensor)  # 1 ms of 971 less than to_local()
                parameter.grad = None
        clip, group = self._config.grad_clip, dist.group.WORLD
        norm = clip_in_place(gradients, clip, self.device, group)
        self._optimizer.update(masters, gradients, at_most(norm, limit))
        return norm

    # --- views ---

    @property
    def module(self) -> nn.Module:
        return self._model

    def weights_to_save(self) -> dict[str, Tensor] | None:
        """Nothing trained is gathered: of 240 million weights that took a step 0.2 to 4 s."""
        found, trained = {}, self._shapes()
        for name, value in self._model.state_dict().items():
            if name in trained:
                found[name] = torch.empty(value.shape, dtype=self._dtype, device="meta")
                continue
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if self.rank == 0:
                found[name] = whole.to(self._dtype) if whole.is_floating_point() else whole
        return found if self.rank == 0 else None

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Its rows: FSDP2 cuts the first dimension."""
        each = -(-whole.shape[0] // self.world)
        return whole[self.rank * each : (self.rank + 1) * each].contiguous()

    def full_params(self, parts: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, part in parts:
            like: Any = self._model.get_parameter(name)
            whole = {"shape": like.shape, "stride": like.stride()}
            rows = DTensor.from_local(part, like.device_mesh, [Shard(0)], run_check=False, **whole)
            yield name, rows.full_tensor()

    # --- state on disk ---

    def _states(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        for name, master in self._masters:
            yield name, master, self._optimizer.state[master]

    def _read_part(self, shards: Shards, name: str, kind: str) -> Tensor:
        parameter = self._model.get_parameter(name)
        whole = shards.read(f"{name}/{kind}", parameter.numel(), 0, 1)
        return self.part(name, whole.view(parameter.shape).to(self.device))

    def _spread(self) -> None:
        """The parameters are the masters; a pass without gradients leaves gathered ones behind."""
        root: Any = self._model
        root.reshard()


class _OnHost:
    """A tensor that FSDP2 does not find among inputs."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def leave_on_host(root: nn.Module) -> None:
    """Inputs stay where they are, as with the other engine. FSDP2 moves those of a root to its
    device, where nothing of a caption's mask can be read without waiting for all that is queued:
    text would not be packed."""

    def hide(value: Any) -> Any:
        is_on_host = isinstance(value, Tensor) and value.device.type == "cpu"
        return _OnHost(value) if is_on_host and not value.requires_grad else value

    def show(value: Any) -> Any:
        return value.tensor if isinstance(value, _OnHost) else value

    def each(change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda _, args, named: (
            tuple(map(change, args)),
            {name: change(value) for name, value in named.items()},
        )

    # FSDP2's own hook, which moves them, is between the two.
    root.register_forward_pre_hook(each(hide), prepend=True, with_kwargs=True)
    root.register_forward_pre_hook(each(show), with_kwargs=True)
