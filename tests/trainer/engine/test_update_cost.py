"""What a step costs the host beside forward and backward: 971 parameters, as STDiT3-XL/2 has."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ports import free_port
from tests.trainer.ranks import environment, fork, wait
from trainer import step
from trainer.config.load import Config
from trainer.engine.base import Engine, build_engine
from trainer.optim.ema import EMA

LIMIT = 1e6  # of the gradient norm: the guard is on
LIMIT_S = 150  # a guard, not a measure: machines may be busy
PARAMETERS, BLOCKS, WIDTH = 971, 56, 16
_READS = "aten._local_scalar_dense.default"  # `item`, `float`, `bool` of a tensor
# A launch is about 5 us of the host: 5 ms are 1,000 launches. On a GPU a foreach call of XL/2 is
# about 60 of them, 8 to 10 are here, so that few others may be.
CALLS_MAX = 60
FOREACH_MAX = 10
# Of Python, 0.1 to 0.3 us each: what a loop over all parameters calls, some twelve times
PYTHON_MAX = 14 * PARAMETERS

pytestmark = pytest.mark.timeout(200)


class Block(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.full((WIDTH,), 0.01 * n) for n in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.stack(list(self.weights)).sum(0)


class Model(nn.Module):
    """Of as many parameters, each of a few numbers."""

    def __init__(self) -> None:
        super().__init__()
        each, rest = divmod(PARAMETERS, BLOCKS)
        self.blocks = nn.ModuleList(Block(each + (n < rest)) for n in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Calls(TorchDispatchMode):
    """Counts what is dispatched: of a foreach call one, of a loop one for each tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.by_name[str(func)] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def python_calls() -> Iterator[list[int]]:
    """Counts calls of functions, those in C among them."""
    counted = [0]

    def count(_frame: Any, event: str, _what: Any) -> None:
        counted[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(None)


def after_backward(run: Any, loss: Tensor) -> None:
    """What `step.step` does between the last backward pass and its record."""
    numbers = run.engine.read(loss, *step.update(run, LIMIT))
    run.ema.update(run.engine.master_params())
    run.engine.gather([*numbers, *[0.0] * 18])


def backward(engine: Engine, model: nn.Module, dtype: torch.dtype) -> Tensor:
    loss = model(torch.ones(4, WIDTH, dtype=dtype)).float().square().mean()
    engine.backward(loss)
    return loss


def measure(kind: str, plugin: str, dtype_name: str, said: Path) -> None:
    """In a process of its own: what a step and a save ask for."""
    engine = build_engine(kind)
    engine.setup(seed=1, timeout_s=60)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype_name]
    config = Config(lr=1e-3, grad_clip=0.1, dtype=dtype_name, plugin=plugin)
    model = engine.wrap(Model().to(dtype), config)
    run = SimpleNamespace(engine=engine, ema=EMA(engine.master_params(), 0.99))
    for _ in range(2):  # the state of the optimizer is made in the first
        after_backward(run, backward(engine, model, dtype))
    found: dict[str, Any] = {"trained": len(engine.master_params())}
    loss, lists = backward(engine, model, dtype), []
    plain = Tensor.tolist
    with (
        mock.patch.object(Tensor, "tolist", lambda own: lists.append(len(own)) or plain(own)),
        Calls() as calls,
    ):
        after_backward(run, loss)
    found |= {"calls": dict(calls.by_name), "lists": list(lists)}
    loss = backward(engine, model, dtype)
    with python_calls() as counted:
        after_backward(run, loss)
    found["python"] = counted[0]
    lists.clear()
    with (
        mock.patch.object(Tensor, "tolist", lambda own: lists.append(len(own)) or plain(own)),
        Calls() as calls,
    ):
        state = engine.state()
    assert state is not None
    found["save"] = {"reads": calls.by_name[_READS], "lists": lists, "steps": state.facts["steps"]}
    engine.close()
    said.write_text(json.dumps(found))


KINDS = {
    "zero2-bf16": ("colossal", "zero2", "bf16"),
    "zero2-fp32": ("colossal", "zero2", "fp32"),
    "ddp": ("colossal", "ddp", "fp32"),
    "native": ("native", "zero2", "bf16"),
}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("costs")
    processes = [
        fork(measure, *kind, folder / f"{name}.json", env=environment(0, 1, free_port()), log=folder / f"{name}.log")
        for name, kind in KINDS.items()
    ]  # fmt: skip
    codes = wait(processes, LIMIT_S)
    logs = "\n".join((folder / f"{name}.log").read_text() for name in KINDS)
    assert codes == [0] * len(KINDS), logs
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_launches_no_more_for_971_parameters_than_for_a_few(
    costs: dict[str, Any], kind: str
) -> None:
    found = costs[kind]
    assert found["trained"] == PARAMETERS
    assert sum(found["calls"].values()) <= CALLS_MAX, found["calls"]
    lists = {n: c for n, c in found["calls"].items() if "_foreach" in n or "_fused" in n}
    assert 5 <= sum(lists.values()) <= FOREACH_MAX, lists


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_reads_from_the_device_twice(costs: dict[str, Any], kind: str) -> None:
    """Loss, norm and weights together, then what the ranks have exchanged; no number by itself."""
    found = costs[kind]
    assert found["calls"].get(_READS, 0) == 0
    assert found["lists"] == [3, 21]


@pytest.mark.parametrize("kind", KINDS)
def test_python_does_little_for_each_parameter(costs: dict[str, Any], kind: str) -> None:
    assert costs[kind]["python"] <= PYTHON_MAX


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_reads_all_step_counts_at_once(costs: dict[str, Any], kind: str) -> None:
    save = costs[kind]["save"]
    assert (save["reads"], save["lists"]) == (0, [PARAMETERS])
    assert set(save["steps"].values()) == {4}
    assert len(save["steps"]) == PARAMETERS
