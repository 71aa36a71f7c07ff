"""What a step costs the host beside forward and backward: 971 parameters, as STDiT3-XL/2 has."""

from __future__ import annotations

import hashlib
import json
import math
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
from trainer.engine.step_figures import StepFigures
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

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]


class Block(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.full((WIDTH,), 0.01 * n) for n in range(count))

    def forward(self, x: Tensor) -> Tensor:
        # times 1: gradients of a sum are views of one row, which clipping would change 17 times
        return x + (torch.stack(list(self.weights)) * 1.0).sum(0)


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
    on_device = torch.stack(step.update(run, LIMIT, measured=run.measured))
    numbers = run.engine.read(loss, torch.zeros(2, 4), on_device)
    run.ema.update(run.engine.master_params())
    run.engine.gather([*numbers[2], *StepFigures().numbers()])


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
    run = SimpleNamespace(engine=engine, ema=EMA(engine.master_params(), 0.99), measured=False)
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
    run.measured, loss = True, backward(engine, model, dtype)
    with Calls() as calls:
        after_backward(run, loss)
    found["measured"] = dict(calls.by_name)
    lists.clear()
    with (
        mock.patch.object(Tensor, "tolist", lambda own: lists.append(len(own)) or plain(own)),
        Calls() as calls,
    ):
        state = engine.state()
    assert state is not None
    found["save"] = {"reads": calls.by_name[_READS], "lists": lists, "steps": state.facts["steps"]}
    for measured in (False, True):
        engine.release()
        found[f"weights measured {measured}"] = weights_after(engine, config, dtype, measured)
    engine.close()
    said.write_text(json.dumps(found))


def weights_after(engine: Engine, config: Config, dtype: torch.dtype, measured: bool) -> Any:
    """Checksum of the weights after some steps, and what was measured against what happened."""
    model = engine.wrap(Model().to(dtype), config)
    run = SimpleNamespace(engine=engine, ema=EMA(engine.master_params(), 0.99), measured=measured)
    compared = []
    for _ in range(3):
        loss = backward(engine, model, dtype)
        before = {name: master.clone() for name, master in engine.master_params()}
        _, square, moved, apart = step.update(run, LIMIT, measured=measured)
        after = dict(engine.master_params())
        change = sum((after[n] - before[n]).double().square().sum().item() for n in after)
        gap = sum(
            (after[n] - v).double().square().sum().item() for n, v in run.ema.state_dict().items()
        )
        run.ema.update(engine.master_params())
        compared.append([moved.item(), change, apart.item(), gap, square.item(), loss.item()])
    digest = hashlib.sha256()
    for _, master in engine.master_params():
        digest.update(master.numpy().tobytes())
    return {"sha256": digest.hexdigest(), "compared": compared}


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
def test_a_step_reads_from_the_device_once(costs: dict[str, Any], kind: str) -> None:
    """Loss, norm and weights together, no number by itself; a rank alone exchanges nothing."""
    found = costs[kind]
    assert found["calls"].get(_READS, 0) == 0
    assert found["lists"] == [13]


@pytest.mark.parametrize("kind", KINDS)
def test_a_measured_step_reads_nothing_more_and_launches_few_calls(
    costs: dict[str, Any], kind: str
) -> None:
    found = costs[kind]
    assert found["measured"].get(_READS, 0) == 0
    assert 0 < sum(found["measured"].values()) - sum(found["calls"].values()) <= 20


@pytest.mark.parametrize("kind", KINDS)
def test_measuring_changes_no_bit_and_measures_what_happened(
    costs: dict[str, Any], kind: str
) -> None:
    without, measured = (costs[kind][f"weights measured {on}"] for on in (False, True))
    assert measured["sha256"] == without["sha256"]
    for moved, change, apart, gap, *same in measured["compared"]:
        assert moved == pytest.approx(change, rel=1e-4)
        assert apart == pytest.approx(gap, rel=1e-4)
        assert 0 < apart < moved * 20
        assert all(math.isfinite(value) for value in same)
    assert [row[4:] for row in measured["compared"]] == [row[4:] for row in without["compared"]]
    assert all(math.isnan(row[0]) for row in without["compared"])


@pytest.mark.parametrize("kind", KINDS)
def test_python_does_little_for_each_parameter(costs: dict[str, Any], kind: str) -> None:
    assert costs[kind]["python"] <= PYTHON_MAX


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_reads_all_step_counts_at_once(costs: dict[str, Any], kind: str) -> None:
    save = costs[kind]["save"]
    assert (save["reads"], save["lists"]) == (0, [PARAMETERS])
    assert set(save["steps"].values()) == {5}
    assert len(save["steps"]) == PARAMETERS
