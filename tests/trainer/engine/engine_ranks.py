"""One rank of the engine's tests: several plugins one after another, what they did as JSON.

A model of odd sizes is trained beside its twin under plain torch, which sees both ranks' batches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.load import Config
from trainer.engine.base import Engine, build_engine
from trainer.engine.shards import write
from trainer.errors import TrainerError

STEPS = 4
CLIP = 0.05  # far below the norms here


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 1, bias=False))
    model[0].bias.requires_grad_(False)  # one that is not trained
    return model.to(dtype)


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def plain(world: int) -> tuple[list[float], dict[str, Tensor]]:
    """Norms and weights of a single process that averages over the ranks' batches."""
    model = make_model()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    norms = []
    for step in range(STEPS):
        losses = [loss_of(model, batch(step, rank)) for rank in range(world)]
        torch.stack(losses).mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    return norms, model.state_dict()


def train(
    engine: Engine, plugin: str, dtype: str, each: int = 1, chunks: int = 1
) -> tuple[list[float], nn.Module]:
    """In `each` equal microbatches a step, which pass in `chunks` parts."""
    settings = Config(lr=1e-2, weight_decay=0.01, grad_clip=CLIP, dtype=dtype, plugin=plugin)
    model = engine.wrap(make_model(), settings)
    if chunks > 1:
        engine.expect_chunks()
    norms = []
    for step in range(STEPS):
        x = batch(step, engine.rank).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        for left, part in zip(range(each - 1, -1, -1), x.chunk(each), strict=True):
            parts = part.chunk(chunks)
            for of_part in parts[:-1]:
                with engine.passing(is_last=False):
                    engine.backward_here(loss_of(model, of_part).float() / each / len(parts))
            with engine.passing(is_last=not left):
                loss = loss_of(model, parts[-1]).float() / each / len(parts)
                engine.backward(loss, is_last=not left)
        norms.append(float(engine.step()))
    return norms, model


def in_small_buckets(engine: Any) -> list[float]:
    """Norms of a run whose weights are gathered in several buckets, one of them a single weight."""
    wrap = engine.wrap

    def small(*args: Any) -> nn.Module:
        model = wrap(*args)
        engine._update._buckets = engine._update._make_buckets(12)
        return model

    engine.wrap = small
    try:
        return train(engine, "zero2", "fp32")[0]
    finally:
        engine.wrap = wrap


def marks(engine: Engine, plugin: str) -> int:
    """How often the engine says that a backward pass has come to where it waits for others."""
    marked: list[None] = []
    engine.on_computed = lambda: marked.append(None)
    train(engine, plugin, "fp32", each=3)
    engine.on_computed = lambda: None
    return len(marked)


def reductions(engine: Engine, each: int) -> int:
    """How often DDP's gradients were reduced in steps of `each` microbatches."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    counted: list[int] = []

    def count(group, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
        counted.append(bucket.index())
        return allreduce_hook(group, bucket)

    wrap = engine.wrap

    def hooked(*args: Any) -> nn.Module:
        model = wrap(*args)
        model.module.register_comm_hook(None, count)
        return model

    engine.wrap = hooked  # type: ignore[method-assign]
    train(engine, "ddp", "fp32", each)
    engine.wrap = wrap  # type: ignore[method-assign]
    return len(counted)


def save(engine: Engine, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if (state := engine.state()) is not None:
        write(folder, state.rank, state.world, state.tensors, state.facts)
    engine.gather([0.0])  # wait for the others


def state_of(engine: Engine) -> dict[str, Tensor]:
    """On every rank."""
    whole = dict(engine.full_params(engine.master_params()))
    saved = (engine.weights_to_save() or {}).items()
    return engine.broadcast({k: whole[k].to(v.dtype) if v.is_meta else v for k, v in saved})


def difference(weights: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((weights[k].float() - other[k].float()).abs().max()) for k in weights)


def native(colossal: Engine, folder: Path, weights: dict[str, Tensor]) -> dict[str, Any]:
    """The same under FSDP2, in the process group that is there; and each reads the other's state."""
    from trainer.engine.native import NativeEngine

    said: dict[str, Any] = {}
    engine = NativeEngine()
    for dtype in ("fp32", "bf16"):
        norms, _ = train(engine, "zero2", dtype)
        saved = folder / f"native-{dtype}"
        save(engine, saved)
        said[f"native-{dtype}"] = {
            "norms": norms,
            "apart": difference(state_of(engine), weights),
            "masters_apart": difference(dict(engine.full_params(engine.master_params())), weights),
            "parts": sum(part.numel() for _, part in engine.master_params()),
            "files": sorted(path.name for path in saved.iterdir()),
        }
    norms, _ = train(engine, "zero2", "fp32", each=3)
    said["native-fp32-in-3"] = {"norms": norms, "apart": difference(state_of(engine), weights)}
    for dtype, each in (("fp32", 1), ("fp32", 3), ("bf16", 1)):
        norms, _ = train(engine, "zero2", dtype, each, chunks=2 + (each == 1 and engine.rank))
        apart = difference(state_of(engine), weights)
        said[f"native-{dtype}-in-{each}-chunked"] = {"norms": norms, "apart": apart}
    settings = Config(lr=1e-2, grad_clip=CLIP, dtype="fp32", plugin="zero2")
    going_on = []
    for other, source in (
        (engine, "zero2-fp32"),
        (colossal, "native-fp32"),
        (colossal, "zero2-fp32"),
    ):
        model = other.wrap(make_model(), settings)
        other.load(folder / source)
        for step in range(STEPS, STEPS + 3):
            other.backward(loss_of(model, batch(step, other.rank)))
            other.step()
        going_on.append(state_of(other))
    said["native_from_colossal"] = difference(going_on[0], going_on[2])
    said["colossal_from_native"] = difference(going_on[1], going_on[2])
    return said


def main(folder: Path) -> None:
    engine = build_engine("colossal")
    engine.setup(seed=1, timeout_s=60)
    said: dict[str, Any] = {"compile": torch.compile.__module__, "peft": "peft" in sys.modules}
    norms, weights = plain(engine.world)
    said["plain"] = norms
    for plugin, dtype in (("zero2", "fp32"), ("zero1", "fp32"), ("ddp", "fp32"), ("zero2", "bf16")):
        norms, _ = train(engine, plugin, dtype)
        saved = folder / f"{plugin}-{dtype}"
        save(engine, saved)
        said[f"{plugin}-{dtype}"] = {
            "norms": norms,
            "apart": difference(state_of(engine), weights),
            "masters_apart": difference(dict(engine.full_params(engine.master_params())), weights),
            "lrs": [group["lr"] for group in engine.param_groups],
            "trained": [name for name, _ in engine.master_params()],
            "files": sorted(path.name for path in saved.iterdir()),
        }
    for plugin, dtype in (("zero2", "fp32"), ("zero1", "fp32"), ("ddp", "fp32"), ("zero2", "bf16")):
        norms, _ = train(engine, plugin, dtype, each=3)
        apart = difference(state_of(engine), weights)
        said[f"{plugin}-{dtype}-in-3"] = {"norms": norms, "apart": apart}
        for each in (1, 3):
            # Not as many on each rank: nothing that ranks do together may depend on it.
            norms, _ = train(engine, plugin, dtype, each, chunks=2 + (each == 1 and engine.rank))
            apart = difference(state_of(engine), weights)
            said[f"{plugin}-{dtype}-in-{each}-chunked"] = {"norms": norms, "apart": apart}
    norms = in_small_buckets(engine)
    said["small-buckets"] = {
        "norms": norms,
        "apart": difference(state_of(engine), weights),
        "buckets": [len(bucket.masters) for bucket in engine._update._buckets],  # type: ignore[attr-defined]
    }
    said["marks"] = [marks(engine, plugin) for plugin in ("zero2", "zero1", "ddp")]
    said["reductions"] = [reductions(engine, 1), reductions(engine, 3)]
    # what another kind of run wrote, at this world size, and back
    fresh = engine.wrap(make_model(), Config(dtype="fp32", plugin="zero2"))
    engine.load(folder / "ddp-fp32")
    said["from_ddp"] = difference(fresh.unwrap().state_dict(), weights)
    said |= native(engine, folder, weights)
    said["waited"] = engine.waited_s
    said["gathered"] = engine.gather([engine.rank, 0.5])
    said["agree"] = engine.gather_errors("disk full" if engine.rank == engine.world - 1 else None)
    said["broadcast"] = engine.broadcast(f"of rank {engine.rank}")
    said["host"] = engine.ranks_on_this_host()
    try:
        engine.run_on_rank0(lambda: (folder / "nowhere" / "x").read_text())
    except TrainerError as error:
        said["alone"] = str(error)
    for name, work in (("one", lambda: 1 / (1 - engine.rank)), ("both", lambda: (folder / "nowhere").stat())):  # fmt: skip
        try:
            engine.together(work)
        except TrainerError as error:
            said[f"together-{name}"] = [str(error), error.on_all_ranks]
    said["together"] = engine.together(lambda: engine.rank)
    try:
        engine.load(folder / ("zero2-fp32" if engine.rank else "nowhere"))
    except TrainerError as error:
        said["load"] = [str(error), error.on_all_ranks]
    engine.close()
    (folder / f"{engine.rank}.json").write_text(json.dumps(said))
