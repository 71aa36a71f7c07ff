"""One rank of the test of skipped updates: each engine with and without steps that it skips."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from tests.trainer.engine.engine_ranks import CLIP, batch, loss_of, make_model
from trainer.config.load import Config
from trainer.engine.base import Engine, build_engine
from trainer.engine.shards import write
from trainer.guards.norm_history import FINITE

KINDS = {
    "zero2-fp32": ("colossal", "zero2", "fp32"),
    "zero2-bf16": ("colossal", "zero2", "bf16"),
    "zero1-fp32": ("colossal", "zero1", "fp32"),
    "ddp-fp32": ("colossal", "ddp", "fp32"),
    "native-fp32": ("native", "zero2", "fp32"),
    "native-bf16": ("native", "zero2", "bf16"),
}
# Batches of steps, each with its limit and what the loss of rank 1 is multiplied by.
Steps = list[tuple[int, float | None, float]]
UNTOUCHED: Steps = [(step, None, 1.0) for step in (1, 2, 3)]
WITH_SKIPS: Steps = [
    (0, 1e-9, 1.0),  # above the limit, before there is any state
    (1, FINITE, 1.0),
    (9, FINITE, math.nan),  # of one rank
    (8, 1e-9, 1.0),
    (2, 1e9, 1.0),
    (7, FINITE, math.inf),
    (3, FINITE, 1.0),
]


def train(engine: Engine, plugin: str, dtype: str, steps: Steps) -> list[str]:
    """Norms of the steps as this rank sees them, hexadecimal."""
    settings = Config(lr=1e-2, weight_decay=0.01, grad_clip=CLIP, dtype=dtype, plugin=plugin)
    model, norms = engine.wrap(make_model(), settings), []
    for number, limit, factor in steps:
        x = batch(number, engine.rank).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        loss = loss_of(model, x).float() * (factor if engine.rank == 1 else 1.0)
        engine.backward(loss)
        norms += engine.read(engine.step(limit))[0]
    return [norm.hex() for norm in norms]


def state_of(engine: Engine, folder: Path) -> dict[str, Any]:
    """Bytes of this rank's weights, masters and optimizer state, and what the optimizer counted."""
    state, said = engine.state(), {}
    if state is not None:
        folder.mkdir(exist_ok=True, parents=True)
        write(folder, state.rank, state.world, state.tensors, state.facts)
        said["steps"] = state.facts["steps"]
        said |= {name: tensor.numpy().tobytes().hex() for name, tensor in state.tensors.items()}
    for name, weight in engine.module.state_dict().items():
        local = getattr(weight, "_local_tensor", weight)
        said[f"weight {name}"] = local.float().numpy().tobytes().hex()
    return said


def main(folder: Path) -> None:
    engines: dict[str, Engine] = {}
    said: dict[str, Any] = {}
    for name, (library, plugin, dtype) in KINDS.items():
        if library not in engines:
            engines[library] = build_engine(library)
            if len(engines) == 1:
                engines[library].setup(seed=1, timeout_s=60)
        engine = engines[library]
        found: dict[str, Any] = {}
        for run, steps in (("plain", UNTOUCHED), ("skips", WITH_SKIPS)):
            norms = train(engine, plugin, dtype, steps)
            found[run] = {"norms": norms, "state": state_of(engine, folder / name / run)}
        said[name] = found
    next(iter(engines.values())).close()
    (folder / f"{engine.rank}.json").write_text(json.dumps(said))
