"""Positions: exact by definition, or as Open-Sora 1.2's bf16 runs had them."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.models.stdit_cases import batch, run, small_model
from trainer.errors import ConfigError
from trainer.models.fused import rotate
from trainer.models.positions import COMPAT, EXACT, RotaryFrequencies, grid_embedding
from trainer.models.stdit import STDiT3Config, build_stdit


def test_rotation_depends_on_the_distance_of_frames_only() -> None:
    rotation = RotaryFrequencies(8)(6)
    q, k = torch.randn(8), torch.randn(8)
    q, k = (rotate(x.expand(1, 6, 1, 1, 8), rotation).reshape(6, 8) for x in (q, k))
    scores = q @ k.T
    assert torch.allclose(scores[0, 2], scores[3, 5], atol=1e-5)
    assert not torch.allclose(scores[0, 2], scores[0, 3], atol=1e-3)


@pytest.mark.parametrize("mode", [EXACT, COMPAT])
def test_positions_do_not_depend_on_the_models_dtype(mode: str) -> None:
    model = RotaryFrequencies(72)
    exact = model(120, mode)
    rounded = model.bfloat16()(120, mode)
    assert torch.equal(exact[0], rounded[0])
    assert exact[0].dtype == torch.float32


@pytest.mark.parametrize(("frames", "radians"), [(15, 0.041), (30, 0.082), (120, 0.44)])
def test_bf16_turns_frames_by_what_was_measured_upstream(frames: int, radians: float) -> None:
    rope = RotaryFrequencies(72)
    angles = [torch.atan2(sin, cos) for cos, sin in (rope(frames), rope(frames, COMPAT))]
    off = (angles[0] - angles[1]).abs()
    off = torch.minimum(off, 2 * torch.pi - off)
    # cosines and sines are rounded too, which adds up to 2^-8
    assert float(off.max()) == pytest.approx(radians, abs=0.005)


def test_bf16_moves_the_grid_by_what_was_measured_upstream() -> None:
    scale = torch.tensor(1.0, dtype=torch.float64)
    cpu = torch.device("cpu")
    exact, compat = (grid_embedding(1152, 45, 80, scale, cpu, mode) for mode in (EXACT, COMPAT))
    assert float((exact - compat).abs().max()) == pytest.approx(0.106, abs=0.003)


def test_bf16_rounds_sizes_and_frame_rates() -> None:
    model, inputs = small_model(), batch()
    given = {"height": torch.full((2,), 854.0), "fps": torch.full((2,), 29.97)}
    seen = {"height": torch.full((2,), 856.0), "fps": torch.full((2,), 30.0)}
    assert not torch.equal(run(model, inputs, **given), run(model, inputs, **seen))
    model.use_positions(COMPAT)
    assert torch.equal(run(model, inputs, **given), run(model, inputs, **seen))


def test_the_mode_is_no_part_of_weights_or_their_config() -> None:
    model = small_model()
    names = list(model.state_dict())
    exact = run(model, batch())
    model.use_positions(COMPAT)
    assert list(model.state_dict()) == names
    assert not torch.equal(run(model, batch()), exact)
    assert not hasattr(STDiT3Config(), "positions")
    with pytest.raises(ConfigError, match="no 'positions'"):
        build_stdit("STDiT3", positions=COMPAT)
    with pytest.raises(ConfigError, match="fp32-exact, bf16-compat; not 'bf16'"):
        model.use_positions("bf16")
