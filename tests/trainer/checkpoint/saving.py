"""Ranks in threads that save small checkpoints together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.async_saver import Saver
from trainer.config.load import Config
from trainer.engine.agreement import attempt
from trainer.engine.base import EngineState
from trainer.engine.shards import part_of
from trainer.errors import CheckpointError

FIRST_PART = "optimizer/rank-00000-of-00001.safetensors"


class Together:
    """The collectives of an engine between threads: what saving needs of one."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=120)
        self.said: list[Any] = [None] * world


class Rank:
    """One rank. Its optimizer state is `size` bytes."""

    def __init__(self, group: Together, rank: int, size: int = 1000) -> None:
        self.group, self.rank, self.size = group, rank, size
        self.world = len(group.said)
        self.weights: Callable[[], dict[str, Tensor]] = weights

    def gather_objects(self, value: Any) -> list[Any]:
        self.group.said[self.rank] = value
        self.group.barrier.wait()
        said = list(self.group.said)
        self.group.barrier.wait()
        return said

    def gather(self, values: list[float]) -> list[list[float]]:
        return self.gather_objects(list(values))

    def gather_errors(self, failure: str | None) -> list[str]:
        said = self.gather_objects(failure)
        return [f"rank {rank}: {text}" for rank, text in enumerate(said) if text]

    def barrier(self) -> None:
        self.gather_objects(None)

    def run_on_rank0(self, work: Callable[[], Any]) -> Any:
        value, failure = self.gather_objects(attempt(work) if self.rank == 0 else None)[0]
        if failure is not None:
            raise failure
        return value

    is_sharded = True
    device = torch.device("cpu")

    def master_params(self) -> list[tuple[str, Tensor]]:
        return list(self.average().items())

    def state(self) -> EngineState:
        tensors = {"w/exp_avg": torch.zeros(self.size // 4)}
        facts, shapes = {"steps": {}}, {"w": torch.Size([1000])}
        return EngineState(self.rank, self.world, tensors, facts, shapes)

    def weights_to_save(self) -> dict[str, Tensor] | None:
        return None if self.rank else self.weights()

    def average(self) -> dict[str, Tensor]:
        return {"w": part_of(torch.arange(1000.0), self.rank, self.world)}


def weights() -> dict[str, Tensor]:
    return {"w": torch.arange(1000.0)}


def in_threads(work: Callable[[int], None], ranks: int) -> None:
    """Call `work` with each rank, all at once, until the last has ended."""
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
        assert not thread.is_alive()


def save(run_dir: Path, step: int, *, sizes: tuple[int, ...] = (1000,), model: Callable[[], dict[str, Tensor]] = weights, **options: Any) -> list[Any]:  # fmt: skip
    """Each rank's result: the path, or the error it raised."""
    group = Together(len(sizes))
    results: list[Any] = [None] * len(sizes)

    def work(rank: int) -> None:
        engine = Rank(group, rank, sizes[rank])
        engine.weights = model
        saver = Saver(run_dir, engine, Config(**options))  # type: ignore[arg-type]
        try:
            done = saver.save(0, step, engine.average(), lambda: {"a.json": step})
            (saved,) = [*done, *saver.finish()]
            results[rank] = saved.path
        except CheckpointError as error:
            results[rank] = error

    in_threads(work, len(sizes))
    return results


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())
