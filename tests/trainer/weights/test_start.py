"""A run's start from --ckpt-path: what the ranks agree on and what is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.models.stdit_weights import noisy, pixart, small
from trainer import train
from trainer.build_run import _start
from trainer.config.load import Config, load
from trainer.engine.base import Engine
from trainer.errors import CheckpointError
from trainer.runlog.output import configure


class Ranks:
    """This rank and another, which says what it is told to."""

    rank = 0

    def __init__(self, other: CheckpointError | None = None) -> None:
        self.other = other

    def gather_objects(self, mine: Any) -> list[Any]:
        return [mine, self.other]

    together, raise_any = Engine.together, Engine.raise_any


class Journal:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, name: str, text: str, **data: Any) -> None:
        self.events.append((name, text, data))


def start(config: Config, ranks: Ranks, model: torch.nn.Module) -> Journal:
    configure()
    journal = Journal()
    _start(config, SimpleNamespace(model=model), ranks, journal)  # type: ignore[arg-type]
    return journal


@pytest.fixture
def half(tmp_path: Path) -> Path:
    tensors = {name: t for name, t in noisy().state_dict().items() if "_blocks.1." not in name}
    torch.save(tensors, tmp_path / "half.pth")
    return tmp_path / "half.pth"


def config_of(tmp_path: Path, *words: str) -> Config:
    (tmp_path / "c.py").write_text("model = dict(type='STDiT3')")
    return load(tmp_path / "c.py", words)


def test_the_report_is_printed_folded_and_kept_as_an_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": pixart()}, tmp_path / "x.pth")
    model = small()
    journal = start(config_of(tmp_path, "--ckpt-path", str(tmp_path / "x.pth")), Ranks(), model)
    ((name, text, data),) = journal.events
    assert name == "weights"
    assert text == f"PixArt-α from {tmp_path / 'x.pth'}: 46 of 46 tensors, 43 are new"
    assert data["report"]["loaded"]["spatial_blocks.[0-1]"] == 30
    assert "new" in capsys.readouterr().out
    assert torch.equal(model.spatial_blocks[1].mlp.fc1.weight, pixart()["blocks.1.mlp.fc1.weight"])


@pytest.mark.long
def test_half_a_model_needs_allow_partial(tmp_path: Path, half: Path) -> None:
    words = ["--ckpt-path", str(half)]
    with pytest.raises(CheckpointError, match="55 of 89 tensors fit") as caught:
        start(config_of(tmp_path, *words), Ranks(), small())
    assert caught.value.on_all_ranks
    assert "--allow-partial" in str(caught.value.hint)
    model = small()
    start(config_of(tmp_path, *words, "--allow-partial"), Ranks(), model)
    want = noisy().state_dict()["spatial_blocks.0.mlp.fc1.weight"]
    assert torch.equal(model.state_dict()["spatial_blocks.0.mlp.fc1.weight"], want)


@pytest.mark.long
def test_a_failure_of_another_rank_stops_this_one_with_one_sentence(tmp_path: Path) -> None:
    torch.save(dict(noisy().state_dict()), tmp_path / "m.pth")
    config = config_of(tmp_path, "--ckpt-path", str(tmp_path / "m.pth"))
    with pytest.raises(CheckpointError, match=r"^rank 1: node-2 has no such file$"):
        start(config, Ranks(CheckpointError("node-2 has no such file")), small())
    both = config_of(tmp_path, "--ckpt-path", str(tmp_path / "nowhere.pth"))
    said = f"there are no weights at {tmp_path / 'nowhere.pth'}"
    with pytest.raises(CheckpointError, match=f"^{said}$"):  # once, though both ranks say it
        start(both, Ranks(CheckpointError(said)), small())


@pytest.mark.long
def test_weights_that_cannot_be_read_are_said_before_a_run_directory_is_made(tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "cut.pth").write_bytes(b"PK\x03\x04 and no more")
    for name in ("cut.pth", "nowhere.pth"):
        with pytest.raises(CheckpointError, match=name):
            train._check_files(config_of(tmp_path, "--ckpt-path", str(tmp_path / name)))
    train._check_files(
        config_of(tmp_path, "--text-encoder.type", "tiny_t5", "--vae.type", "identity")
    )


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf")])
def test_a_tensor_that_is_not_finite_is_named_and_nothing_is_set(
    tmp_path: Path, wrong: float
) -> None:
    weights, name = dict(noisy().state_dict()), "spatial_blocks.0.mlp.fc1.weight"
    weights[name] = weights[name].clone()
    weights[name][1, 2] = wrong
    torch.save(weights, tmp_path / "m.pth")
    config, model = config_of(tmp_path, "--ckpt-path", str(tmp_path / "m.pth")), small()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=rf"not finite \(NaN or infinity\), in {name} of "):
        start(config, Ranks(), model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
