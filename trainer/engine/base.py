"""The interface between a training step and the library that spreads it over ranks.

A loop needs these methods: setup, wrap, backward, step, state, load, close, and `master_params`,
which the EMA follows. Collectives are here: every engine does them with torch.distributed.
"""

from __future__ import annotations

import abc
import importlib
import itertools
import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config.load import Config
from trainer.device import choose_device
from trainer.engine.agreement import agreed, attempt, common
from trainer.engine.listed_adamw import ListedAdamW
from trainer.engine.process_group import rank_of_run
from trainer.engine.shards import Facts, Shards
from trainer.errors import EngineError, TrainerError

T = TypeVar("T")
STATE = ("exp_avg", "exp_avg_sq")  # AdamW's, beside the master weights
_GOES_ON = "goes on"  # what rank 0 tells the others instead of a result
_WRAPPED = ("_model", "_optimizer", "_made", "_booster", "_update", "_parameters", "_masters")
_ENGINES = {"colossal": "ColossalEngine", "native": "NativeEngine"}  # by module


@dataclass(frozen=True, slots=True)
class EngineState:
    """What one rank contributes to a checkpoint, see `shards.write`."""

    rank: int
    world: int
    tensors: dict[str, Tensor]
    facts: Facts
    shapes: dict[str, torch.Size]  # of the whole parameters


def gathered(value: Any, world: int) -> list[Any]:
    """Every rank's picklable value, in rank order, on every rank (collective)."""
    if world == 1:
        return [value]
    every: list[Any] = [None] * world
    dist.all_gather_object(every, value)
    return every


class Engine(abc.ABC):
    """One process of a run. Collective verbs must be called by all ranks in the same order."""

    name: ClassVar[str]
    forward_is_local: ClassVar[bool] = True  # whether `module` computes without the other ranks
    timeout_s: float = math.inf  # of a collective
    backward_is_timed: bool = False  # whether `waited_s` or `on_computed` tell its waiting apart
    _config: Config
    _optimizer: Any
    _made: ListedAdamW  # the optimizer, whatever is around it
    _masters: list[tuple[str, Tensor]]  # `wrap` finds them once: 2 ms of a step with 971

    def __init__(self) -> None:
        own = rank_of_run()
        self.rank, self.world, self.local_rank = own.rank, own.world, own.local_rank
        self.device = choose_device(self.local_rank)
        # Called in `backward` when all that computes without the other ranks is launched, by an
        # engine that can tell it apart.
        self.on_computed: Callable[[], None] = lambda: None
        # torch 2.13 renamed collectives; ColossalAI and we, for older torch, use the old names.
        warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)

    # --- the verbs ---

    @abc.abstractmethod
    def setup(self, seed: int, timeout_s: float) -> None:
        """Join the process group. Raises `EngineError` when the group does not come together."""

    @abc.abstractmethod
    def wrap(self, model: nn.Module, config: Config) -> nn.Module:
        """Take over the model and make its optimizer; call the returned module from then on."""

    @abc.abstractmethod
    def twin(self, model: nn.Module) -> nn.Module:
        """A second, small model for passes alone, as `wrap` left the first (collective)."""

    def passing(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Around a microbatch's passes; collectives may wait for the one that `is_last`."""
        return nullcontext()

    @abc.abstractmethod
    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        """Add this rank's gradients, averaged over ranks, to those since the last step."""

    @abc.abstractmethod
    def backward_here(self, loss: Tensor) -> None:
        """Add this rank's gradients to sums of its own, in fp32, which the next `backward` takes:
        of clips of a microbatch before its last ones, within `passing(is_last=False)`."""

    def expect_chunks(self) -> None:  # noqa: B027 - most engines need not know
        """Microbatches may pass in several parts, in other numbers on other ranks."""

    @abc.abstractmethod
    def step(self, limit: float | None = None) -> Tensor:
        """Clip, update unless the norm is above `limit`, forget the gradients. Returns the norm
        before clipping, the same on all ranks, fp64 on the device, which reading would stop."""

    def measured_step(self, limit: float | None = None) -> tuple[Tensor, Tensor]:
        """The same, and the sum of squares of what it has changed in this rank's masters."""
        self._made.measures = True
        norm = self.step(limit)
        self._made.measures = False
        moved = self._made.moved
        return norm, torch.zeros_like(norm) if moved is None else moved

    def state(self) -> EngineState | None:
        """This rank's part of the optimizer's state, not copied; None where others hold it."""
        if not self.is_sharded and self.rank:
            return None  # every rank has the same
        tensors: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        for name, master, own in self._states():
            # A parameter without a gradient so far has only its master.
            counts |= {name: own["step"]} if "step" in own else {}
            values = {"master": master} | {kind: own[kind] for kind in STATE if kind in own}
            for kind, value in values.items():
                tensors[f"{name}/{kind}"] = value.detach().reshape(-1)
        steps = dict.fromkeys((name for name, _ in self._masters), 0)
        if counts:  # fused AdamW has its counts on the device: one transfer, not one for each
            found = torch.stack(list(counts.values())).tolist()
            steps |= {name: int(count) for name, count in zip(counts, found, strict=True)}
        return EngineState(
            *self._place, tensors, Facts(engine=self.name, steps=steps), self._shapes()
        )

    def load(self, directory: Path) -> None:
        """Read `state` of any world size, set the weights (collective). Raises CheckpointError."""
        self.together(lambda: self._read(directory))
        self._spread()

    @torch.no_grad()
    def _read(self, directory: Path) -> None:
        shards = Shards(directory)
        steps = shards.facts["steps"]
        for name, master, own in self._states():
            master.copy_(self._read_part(shards, name, "master").view(master.shape))
            if steps.get(name):
                for kind in STATE:
                    part = self._read_part(shards, name, kind).view(master.shape)
                    own[kind] = part.to(master.device)
                # fused AdamW wants its count where the parameter is
                own["step"] = torch.tensor(float(steps[name]), device=master.device)

    @contextmanager
    def computing_with(self, parts: Mapping[str, Tensor]) -> Iterator[None]:
        """`module` computes with these, as `master_params` has its own (collective). The values of
        both are exchanged, so that no copy of all is needed."""
        self._exchange(parts)
        try:
            yield
        finally:
            self._exchange(parts)

    @torch.no_grad()
    def _exchange(self, parts: Mapping[str, Tensor]) -> None:
        for name, master in self._masters:
            kept = master.clone()
            master.copy_(parts[name])
            parts[name].copy_(kept)
        self._spread()

    @property
    def _place(self) -> tuple[int, int]:
        """Rank and world of the state: of one rank where all have the same."""
        return (self.rank, self.world) if self.is_sharded else (0, 1)

    def _trained(self) -> list[tuple[str, Any]]:
        """Name and parameter of `module`."""
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    def _shapes(self) -> dict[str, torch.Size]:
        """Of the whole trained parameters."""
        return {name: parameter.shape for name, parameter in self._trained()}

    @abc.abstractmethod
    def _states(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Name, fp32 master and the optimizer's own state of each trained parameter."""

    @abc.abstractmethod
    def _read_part(self, shards: Shards, name: str, kind: str) -> Tensor:
        """What this rank holds of a parameter's master or state, in any shape."""

    @abc.abstractmethod
    def _spread(self) -> None:
        """Set the weights that the ranks compute with from the masters (collective)."""

    def _adamw(self, parameters: list[Any]) -> ListedAdamW:
        own = self._config
        numbers = (own.lr, own.adam_betas, own.adam_eps, own.weight_decay)
        # fused: one kernel for all parameters, also on the CPU; needs no CUDA toolkit
        self._made = ListedAdamW(parameters, *numbers, fused=True)
        return self._made

    def release(self) -> None:
        """Forget what `wrap` took and made, before another model is wrapped."""
        for name in _WRAPPED:
            self.__dict__.pop(name, None)

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    # --- views on the state ---

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups; a schedule sets their `lr`."""
        return self._optimizer.param_groups

    @property
    @abc.abstractmethod
    def module(self) -> nn.Module:
        """The model that was wrapped, without wrapping; its weights in working precision."""

    @abc.abstractmethod
    def weights_to_save(self) -> dict[str, Tensor] | None:
        """Rank 0's whole state in working precision, else None (collective); what is on the meta
        device is made of `master_params`, in its dtype."""

    def master_params(self) -> list[tuple[str, Tensor]]:
        """Name and fp32 master of each trained parameter: this rank's part, or the whole."""
        return list(self._masters)

    @property
    def is_sharded(self) -> bool:
        """Whether `master_params` are parts that differ between ranks."""
        return True

    @abc.abstractmethod
    def part(self, name: str, whole: Tensor) -> Tensor:
        """Of a whole parameter, what `master_params` holds of it here."""

    @abc.abstractmethod
    def full_params(self, parts: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The whole fp32 parameters from all ranks' parts, one after another (collective)."""

    @property
    def waited_s(self) -> float:
        """Seconds in gradient collectives so far; 0 where they do not block."""
        return 0.0

    # --- collectives for the loop ---

    def read(self, *values: Tensor) -> list[list[float]]:
        """The numbers of each, in one transfer from the device: waits for all that is launched."""
        flat = [value.detach().double().reshape(-1) for value in values]
        numbers = iter(torch.cat(flat).tolist())
        return [list(itertools.islice(numbers, len(value))) for value in flat]

    def gather(self, values: Iterable[float]) -> list[list[float]]:
        """Every rank's numbers, in rank order, on every rank; one small collective (fp64)."""
        if self.world == 1:  # without waiting for the device
            return [[float(value) for value in values]]
        mine = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        every = torch.empty(self.world * len(mine), dtype=mine.dtype, device=self.device)
        dist.all_gather_into_tensor(every, mine)
        return every.view(self.world, -1).tolist()

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's picklable value, in rank order, on every rank; for rare and small things."""
        return gathered(value, self.world)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable value on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def run_on_rank0(self, work: Callable[[], T]) -> T:
        """What rank 0's `work` returns, on every rank; all raise its failure (collective)."""
        value, failure = self.broadcast(attempt(work) if self.rank == 0 else (None, None))
        if failure is not None:
            raise agreed(failure)
        return value

    def run_long_on_rank0(self, work: Callable[[Callable[[], None]], T]) -> T:
        """The same for work that may take longer than ranks wait for each other, `timeout_s` of
        `setup`. It calls what it is given whenever it has made progress, and the others wait on;
        work without progress ends as before (collective)."""
        if self.rank:
            while (found := self.broadcast(None)) == _GOES_ON:
                pass
        else:
            told = time.monotonic()

            def goes_on() -> None:
                nonlocal told
                if time.monotonic() - told >= self.timeout_s / 4:
                    self.broadcast(_GOES_ON)
                    told = time.monotonic()

            found = self.broadcast(attempt(lambda: work(goes_on)))
        value, failure = found
        if failure is not None:
            raise agreed(failure)
        return value

    def together(self, work: Callable[[], T]) -> T:
        """What each rank's own `work` returns; if it fails on any, all raise that (collective)."""
        value, failure = attempt(work)
        self.raise_any(failure)
        return value  # type: ignore[return-value]

    def raise_any(self, failure: TrainerError | None, prefix: str = "") -> None:
        """Raise on all ranks what failed on any, with `prefix` before its text (collective)."""
        error = common(self.gather_objects(failure), prefix)
        if error is not None:
            raise error

    def gather_errors(self, failure: str | None) -> list[str]:
        """What went wrong on any rank, as `rank N: text`; empty when all is well (collective)."""
        texts = enumerate(self.gather_objects(failure))
        return [f"rank {rank}: {text}" for rank, text in texts if text]

    def ranks_on_this_host(self) -> int:
        """How many ranks share this machine's cores, whatever the launcher calls a node."""
        try:
            host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            host = socket.gethostname()
        return self.gather_objects(host).count(host)


def build_engine(name: str) -> Engine:
    """Import and make the engine of a name. Raises `EngineError` when it is not installed."""
    try:
        module = importlib.import_module(f"trainer.engine.{name}")
        return getattr(module, _ENGINES[name])()
    except ModuleNotFoundError as error:
        text = f"the engine {name} cannot be imported: no module {error.name}"
        hint = "install one of requirements/lock-*.txt with --no-deps"
        raise EngineError(text, hint=hint) from None


def set_threads(wanted: int | None, ranks_on_host: int, on_accelerator: bool) -> int:
    """Set torch's CPU threads; without OMP_NUM_THREADS, ranks that share cores get one each."""
    if wanted is None and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        wanted = max(1, cores // ranks_on_host) if on_accelerator or ranks_on_host == 1 else 1
    if wanted is not None:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()
