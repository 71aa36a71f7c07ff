"""Captions to features, with a real T5 made offline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainer.data import digits
from trainer.errors import ConfigError
from trainer.models.text import TextEncoder, build_tiny_t5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_t5(tmp_path_factory.mktemp("t5") / "tiny", digits.prompts(), d_model=64)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> TextEncoder:
    return TextEncoder.from_folder(folder, max_length=8)


def test_features_are_padded_to_one_length_with_their_mask(encoder: TextEncoder) -> None:
    y, mask = encoder.encode(["handwritten digit three moving left", "digit three"])
    assert y.shape == (2, 1, 8, 64)
    assert mask.dtype == torch.int64
    assert mask.sum(1).tolist() == [6, 3]  # words and the end token
    assert encoder.channels == 64


def test_the_untrained_encoder_keeps_the_word(encoder: TextEncoder) -> None:
    y, _ = encoder.encode([f"handwritten digit {word} moving up" for word in digits.WORDS])
    words_ND = torch.nn.functional.normalize(y[:, 0, 2], dim=-1)
    alike = words_ND @ words_ND.T
    assert torch.allclose(alike, torch.eye(10), atol=0.05)
    same, _ = encoder.encode(["digit seven", "moving seven left"])
    assert torch.allclose(same[0, 0, 1], same[1, 0, 1], atol=0.05)


def test_features_have_the_scale_that_was_asked_for(folder: Path, tmp_path: Path) -> None:
    for scale in (1.0, 4.0):
        small = build_tiny_t5(tmp_path / str(scale), ["one two"], d_model=16, feature_scale=scale)
        y, _ = TextEncoder.from_folder(small, 3).encode(["one two"])
        assert y.square().mean().sqrt() == pytest.approx(scale, rel=0.05)


def test_unknown_words_become_one_token_and_long_captions_are_cut(encoder: TextEncoder) -> None:
    y, mask = encoder.encode(["purple", "elephants", "one " * 30])
    assert torch.equal(y[0], y[1])
    assert mask[2].sum() == 8


def test_the_same_texts_give_the_same_encoder(folder: Path, tmp_path: Path) -> None:
    again = build_tiny_t5(tmp_path / "again", digits.prompts(), d_model=64)
    assert features(again).equal(features(folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]  # nothing half-written


def features(path: Path) -> Tensor:
    return TextEncoder.from_folder(path, 8).encode(["handwritten digit nine moving down"])[0]


def test_building_does_not_disturb_the_callers_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    build_tiny_t5(tmp_path / "t5", ["a b"], d_model=16)
    assert torch.rand(3).equal(want)


def test_a_folder_that_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        TextEncoder.from_folder(tmp_path, 8)
