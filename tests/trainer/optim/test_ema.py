"""The average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.optim.ema import EMA


def weights(value: float, dtype: torch.dtype = torch.float32) -> list[tuple[str, Tensor]]:
    return [
        ("a", torch.full((3,), value, dtype=dtype)),
        ("b", torch.full((2, 2), -value, dtype=dtype)),
    ]


def test_it_moves_by_the_decay() -> None:
    ema = EMA(weights(1.0), 0.9, ramp=False)
    ema.update(weights(2.0))
    assert torch.allclose(ema.state_dict()["a"], torch.full((3,), 1.1))
    assert torch.allclose(ema.state_dict()["b"], torch.full((2, 2), -1.1))


def test_a_decay_of_9999_moves_under_bf16_weights() -> None:
    ema = EMA(weights(1.0, torch.bfloat16), 0.9999, ramp=False)
    for _ in range(100):
        ema.update(weights(2.0, torch.bfloat16))
    assert ema.state_dict()["a"].dtype == torch.float32
    assert ema.state_dict()["a"][0] == pytest.approx(1 + 1 - 0.9999**100, rel=1e-4)


def test_no_update_makes_a_double_or_a_copy_of_the_model() -> None:
    """Upstream's float64 sum and its loop over parameters cost seconds a step at 1.2 billion."""
    values = [(f"p{i}", torch.randn(64, 64)) for i in range(200)]
    ema = EMA(values, 0.99)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ema.update(values)
    names = [event.name for event in profile.events()]
    assert [name for name in names if "foreach" in name] == ["aten::_foreach_lerp_"]
    assert not set(names) & {"aten::to", "aten::clone", "aten::_to_copy", "aten::empty_like"}


def test_weights_of_mixed_dtypes_are_followed_in_fp32() -> None:
    mixed = [("a", torch.full((3,), 2.0).bfloat16()), ("b", torch.full((2, 2), -2.0))]
    ema = EMA(weights(1.0), 0.9, ramp=False)
    ema.update(reversed(mixed))
    assert torch.allclose(ema.state_dict()["a"], torch.full((3,), 1.1))
    assert torch.allclose(ema.state_dict()["b"], torch.full((2, 2), -1.1))
    with pytest.raises(KeyError):
        ema.update([])


def test_the_ramp_forgets_a_random_start() -> None:
    ramped, plain = EMA(weights(100.0), 0.99), EMA(weights(100.0), 0.99, ramp=False)
    for _ in range(60):
        ramped.update(weights(1.0))
        plain.update(weights(1.0))
    assert abs(ramped.state_dict()["a"][0] - 1) < 0.01
    assert plain.state_dict()["a"][0] > 50


def test_it_keeps_a_copy_of_its_own() -> None:
    source = weights(1.0)
    ema = EMA(source, 0.5)
    source[0][1].zero_()
    assert ema.state_dict()["a"][0] == 1.0


def test_a_resumed_average_goes_on_as_if_never_stopped() -> None:
    whole = EMA(weights(0.0), 0.99)
    for step in range(10):
        whole.update(weights(float(step)))
        if step == 4:
            state, updates = {k: v.clone() for k, v in whole.state_dict().items()}, whole.updates
    resumed = EMA(weights(5.0), 0.99)
    resumed.load_state_dict(state, updates)
    for step in range(5, 10):
        resumed.update(weights(float(step)))
    assert torch.equal(resumed.state_dict()["a"], whole.state_dict()["a"])


def test_other_weights_are_refused() -> None:
    ema = EMA(weights(1.0), 0.9)
    with pytest.raises(KeyError, match=r"1 unknown \['c'\]"):
        ema.load_state_dict({**dict(weights(1.0)), "c": torch.zeros(1)}, 1)
    with pytest.raises(ValueError, match="EMA of a has shape"):
        ema.load_state_dict({**dict(weights(1.0)), "a": torch.zeros(5)}, 1)
