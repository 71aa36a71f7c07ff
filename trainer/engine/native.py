"""The engine without ColossalAI: torch's FSDP2, fp32 parts of every parameter on the ranks.

Forward and backward gather one block at a time in working precision; optimizer and EMA work on this
rank's fp32 rows, and those go to disk as they are. Every engine's files tell the same by the same
names, so either may continue from the other's checkpoint, at any world size.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from trainer.engine.base import (
    Engine,
    EngineState,
    OptimizerSettings,
    ensure_environment,
    timeout_of,
)
from trainer.engine.joining import joining
from trainer.engine.shards import Facts, Shards
from trainer.errors import EngineError

_STATE = ("exp_avg", "exp_avg_sq")
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class NativeEngine(Engine):
    """One process under FSDP2. See `Engine` for the verbs."""

    name: ClassVar[str] = "native"
    forward_is_local: ClassVar[bool] = False  # a forward pass gathers parameters

    def __init__(self) -> None:
        ensure_environment()
        super().__init__()

    def setup(self, seed: int, timeout_s: float) -> None:
        warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
        if torch.cuda.is_available():
            self.device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(self.device)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        with joining(timeout_s):
            dist.init_process_group(backend, timeout=timeout_of(timeout_s))
        torch.manual_seed(seed)

    def wrap(self, model: nn.Module, settings: OptimizerSettings) -> nn.Module:
        if settings.plugin not in ("zero2", "fsdp"):
            raise EngineError(
                f"plugin {settings.plugin} is ColossalAI's; the native engine shards everything",
                hint='engine = "colossal", or leave plugin out',
            )
        self._settings, self._dtype = settings, _DTYPES[settings.dtype]
        model = model.to(self.device, torch.float32)
        shard = functools.partial(
            fully_shard,
            mesh=init_device_mesh(self.device.type, (self.world,)),
            mp_policy=MixedPrecisionPolicy(
                param_dtype=self._dtype,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,  # the model casts what it can afford to
            ),
        )
        for layers in [part for part in model.modules() if isinstance(part, nn.ModuleList)]:
            for layer in layers:
                shard(layer)
        shard(model)
        self._model = model
        trained = [parameter for _, parameter in self._trained()]
        self._optimizer = torch.optim.AdamW(
            trained,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,  # one kernel for all parameters, also on the CPU; needs no CUDA toolkit
        )
        return model

    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        # Every pass is reduced to this rank's fp32 rows: waiting would keep whole gradients.
        loss.backward()

    def step(self) -> float:
        limit = self._settings.grad_clip or float(
            "inf"
        )  # `inf` never clips and still gives the norm
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), limit)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    # --- views ---

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    @property
    def module(self) -> nn.Module:
        return self._model

    @property
    def is_sharded(self) -> bool:
        return True

    def weights(self) -> dict[str, Tensor] | None:
        return self._weights(frozenset())

    def weights_to_save(self) -> dict[str, Tensor] | None:
        """Nothing trained is gathered: of 240 million weights that took a step 0.2 to 4 s."""
        return self._weights(frozenset(name for name, _ in self._trained()))

    def _weights(self, told_only: frozenset[str]) -> dict[str, Tensor] | None:
        """The state on rank 0 (collective); of `told_only` shape and dtype, on the meta device."""
        found = {}
        for name, value in self._model.state_dict().items():
            if name in told_only:
                found[name] = torch.empty(value.shape, dtype=self._dtype, device="meta")
                continue
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if self.rank == 0:
                found[name] = whole.to(self._dtype) if whole.is_floating_point() else whole
        return found if self.rank == 0 else None

    def master_params(self) -> list[tuple[str, Tensor]]:
        return [(name, parameter.to_local().detach()) for name, parameter in self._trained()]

    def part(self, name: str, whole: Tensor) -> Tensor:
        return self._rows(self._parameter(name), whole)

    def full_params(self, parts: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, part in parts:
            like = self._parameter(name)
            placed = DTensor.from_local(
                part,
                like.device_mesh,
                [Shard(0)],
                run_check=False,
                shape=like.shape,
                stride=like.stride(),
            )
            yield name, placed.full_tensor()

    # --- state on disk ---

    def state(self) -> EngineState | None:
        tensors: dict[str, Tensor] = {}
        steps: dict[str, int] = {}
        for name, parameter in self._trained():
            own = self._optimizer.state.get(parameter, {})
            steps[name] = int(own.get("step", 0))
            values = {"master": parameter} | {kind: own[kind] for kind in _STATE if steps[name]}
            for kind, value in values.items():
                tensors[f"{name}/{kind}"] = self._local(value).detach().reshape(-1)
        shapes = {name: parameter.shape for name, parameter in self._trained()}
        facts = Facts(engine=self.name, steps=steps)
        return EngineState(self.rank, self.world, tensors, facts, shapes)

    @torch.no_grad()
    def read(self, directory: Path) -> None:
        shards = Shards(directory)
        steps = shards.facts["steps"]
        for name, parameter in self._trained():

            def rows(kind: str, name: str = name, parameter: DTensor = parameter) -> Tensor:
                whole = shards.read(f"{name}/{kind}", parameter.numel(), 0, 1)
                return self._rows(parameter, whole.view(parameter.shape).to(self.device))

            parameter.to_local().copy_(rows("master"))
            if steps.get(name):
                own = self._optimizer.state[parameter]
                for kind in _STATE:
                    own[kind] = DTensor.from_local(
                        rows(kind),
                        parameter.device_mesh,
                        [Shard(0)],
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )
                own["step"] = torch.tensor(float(steps[name]), device=self.device)

    def spread(self) -> None:
        """The parameters are the masters."""

    # --- small things ---

    def _trained(self) -> list[tuple[str, DTensor]]:
        return [
            (name, parameter)
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and isinstance(parameter, DTensor)
        ]

    def _parameter(self, name: str) -> DTensor:
        parameter = self._model.get_parameter(name)
        assert isinstance(parameter, DTensor)
        return parameter

    def _rows(self, parameter: DTensor, whole: Tensor) -> Tensor:
        """Of a whole tensor, the rows that this rank holds; FSDP2 cuts the first dimension."""
        each = -(-parameter.shape[0] // self.world)
        return whole[self.rank * each : (self.rank + 1) * each].contiguous()

    def _local(self, value: Tensor) -> Tensor:
        return value.to_local() if isinstance(value, DTensor) else value
