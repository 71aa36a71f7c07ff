"""How a run uses the model: switches of the config that reach it, and never come from weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.components import Parts, build_parts, make_tiny_text_encoder
from trainer.config.load import Config, load
from trainer.models.block.stdit_block import STDiT3Block

TINY = ["--model.depth", "1", "--model.hidden-size", "32", "--model.num-heads", "2"]


def parts(folder: Path, *words: str, empty: bool = False) -> Parts:
    config: Config = load("demo", [*TINY, *words])
    make_tiny_text_encoder(config, folder, ["a digit"])
    return build_parts(config, folder, empty=empty)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def test_the_plain_demo_recomputes_nothing_and_is_exact(folder: Path) -> None:
    model = parts(folder).model
    assert model.grad_checkpoint.every == 0
    assert not model.offload
    assert model.positions == "fp32-exact"


@pytest.mark.long
def test_switches_reach_the_model(folder: Path) -> None:
    words = ["--grad-checkpoint", "every 2", "--offload-activations", "--positions", "bf16-compat"]
    model = parts(folder, *words).model
    assert model.grad_checkpoint.every == 2
    assert model.offload
    assert model.positions == "bf16-compat"
    budget = parts(folder, "--grad-checkpoint", "24 MB").model.grad_checkpoint
    assert budget.budget_bytes == 24_000_000


def test_an_empty_model_has_its_switches_and_no_memory(folder: Path) -> None:
    model = parts(folder, "--grad-checkpoint", "all", empty=True).model
    assert model.grad_checkpoint.every == 1
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.long
def test_compile_reaches_every_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("trainer.models.compiling.require_compiler", seen.append)
    monkeypatch.setattr(STDiT3Block, "compile", lambda block, backend: seen.append(backend))
    parts(folder, "--compile")
    assert seen[1:] == ["inductor"] * 2
    parts(folder)
    assert len(seen) == 3


def test_products_in_fp8_are_of_training(folder: Path) -> None:
    """Sampling and evaluation of its weights run in the working precision, on any machine."""
    words = ["--fp8-linears", "--model.num-heads", "2"]
    assert not parts(folder, *words).model.in_fp8
    config = load("demo", [*TINY, *words])
    assert build_parts(config, folder, in_fp8=config.fp8_linears).model.in_fp8
