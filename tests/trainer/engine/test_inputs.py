"""A model gets its inputs where the loop has them, with every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from tests.ports import free_port
from tests.trainer.ranks import environment, fork, wait
from trainer.config.load import Config
from trainer.engine.base import build_engine

LIMIT_S = 150  # a guard, not a measure: machines may be busy
pytestmark = pytest.mark.timeout(200)
ELSEWHERE = torch.device("meta")  # of FSDP2's root, as if its device were a GPU


class Model(nn.Module):
    """Notes where its inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.devices: dict[str, str] = {}

    def forward(self, x: Tensor, **named: Tensor) -> Tensor:
        self.devices = {name: v.device.type for name, v in {"x": x, **named}.items()}
        return self.weight.sum()


def moving() -> Any:
    """FSDP2 moves inputs of a root on an accelerator with this function of torch's."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
    from torch.distributed.utils import _to_kwargs

    plain = FSDPState._root_pre_forward

    def moved(own: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        (args,), (kwargs,) = _to_kwargs(*plain(own, module, args, kwargs), ELSEWHERE, False)
        return args, kwargs

    return mock.patch.object(FSDPState, "_root_pre_forward", moved)


def look(kind: str, plugin: str, said: Path) -> None:
    """In a process of its own."""
    engine = build_engine(kind)
    engine.setup(seed=1, timeout_s=60)
    inputs = {
        "mask": torch.ones(2, 6, dtype=torch.int64),
        "on_device": torch.ones(2, device=ELSEWHERE),
        "learned": torch.ones(2, requires_grad=True),
    }
    with moving():
        model = Model()
        out = engine.wrap(model, Config(dtype="fp32", plugin=plugin))(torch.ones(2), **inputs)
        engine.backward(out)
        engine.close()
    said.write_text(json.dumps(model.devices))


@pytest.mark.parametrize(("kind", "plugin"), [("native", "fsdp"), ("colossal", "zero2")])
def test_what_is_on_the_host_stays_there(kind: str, plugin: str, tmp_path: Path) -> None:
    said, log = tmp_path / "said.json", tmp_path / "log"
    env = environment(0, 1, free_port())
    assert wait([fork(look, kind, plugin, said, env=env, log=log)], LIMIT_S) == [0], log.read_text()
    learned = "meta" if kind == "native" else "cpu"  # FSDP2 has its hooks on what has a gradient
    found = json.loads(said.read_text())
    assert found == {"x": "cpu", "mask": "cpu", "on_device": "meta", "learned": learned}
