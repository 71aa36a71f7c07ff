"""What is a spike that stays, and what looks like one and is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainer.guards.spikes import BEFORE, WINDOW, Spike, SpikeGuard


def run(
    value: Callable[[int], float], steps: int, kinds: Callable[[int], tuple[str, ...]] | None = None
) -> tuple[Spike | None, SpikeGuard]:
    """The first spike of losses with 10 % noise; the gradient norm is usual throughout."""
    draw, guard = np.random.default_rng(0), SpikeGuard()
    for step in range(1, steps + 1):
        loss = value(step) * float(np.exp(0.1 * draw.standard_normal()))
        kind = kinds(step) if kinds else ("a",)
        found = guard.end(step, kind, {"loss": loss, "grad_norm": 1.0})
        if found is not None:
            return found, guard
    return None, guard


def test_a_loss_that_stays_high_is_found_within_its_50_steps() -> None:
    found, _ = run(lambda step: 3.0 if step > 400 else 1.0, 600)
    assert found is not None
    assert 430 <= found.last <= 400 + WINDOW
    assert found.first <= 401
    assert found.text.startswith(f"the loss of steps {found.first} to {found.last} is ")
    assert found.text.endswith(f"times the median of the {BEFORE} steps before")


@pytest.mark.parametrize(("times", "is_spike"), [(10.0, True), (5.0, False)])
def test_a_gradient_norm_that_stays_far_above_is_found_too(times: float, is_spike: bool) -> None:
    guard = SpikeGuard()
    found = [
        guard.end(step, ("a",), {"loss": 1.0, "grad_norm": times if step > 300 else 1.0})
        for step in range(1, 401)
    ]
    spikes = list(filter(None, found))
    assert bool(spikes) is is_spike
    assert all(one.text.startswith("the norm of the gradients of steps ") for one in spikes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("falls at first", lambda step: 0.1 + 10.0 * 0.97**step),
        ("rises evenly", lambda step: 2.0 ** (step / 100)),
        ("ten huge steps", lambda step: 1000.0 if 400 < step <= 410 else 1.0),
        ("a little higher", lambda step: 1.3 if step > 400 else 1.0),
        ("lower", lambda step: 0.1 if step > 400 else 1.0),
    ],
)
def test_what_is_no_spike(name: str, value: Callable[[int], float]) -> None:
    assert run(value, 800)[0] is None, name


def test_another_mixture_of_kinds_is_no_spike() -> None:
    """From step 500 on nearly all steps are of the kind with 5 times the loss."""

    def kind(step: int) -> tuple[str, ...]:
        return ("high",) if step % 10 in ((0, 5) if step < 500 else range(1, 10)) else ("low",)

    found, guard = run(lambda step: 5.0 if kind(step) == ("high",) else 1.0, 900, kind)
    assert found is None
    assert len(guard.measures["loss"].recent) == BEFORE + WINDOW
    # without kinds the same losses are one
    assert run(lambda step: 5.0 if kind(step) == ("high",) else 1.0, 900)[0] is not None


def test_a_resumed_guard_finds_what_the_one_that_went_on_finds() -> None:
    _, guard = run(lambda step: 3.0 if step > 300 else 1.0, 320)
    again = SpikeGuard()
    again.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    found: list[list[Any]] = [[], []]
    for step in range(321, 361):
        values = {"loss": 3.0, "grad_norm": 1.0}
        found[0].append(guard.end(step, ("a",), values))
        found[1].append(again.end(step, ("a",), values))
    assert found[0] == found[1]
    assert any(found[0])
    assert again.state_dict() == guard.state_dict()


@pytest.mark.parametrize(
    "loss",
    [None, {}, {"norms": {}}, {"norms": {}, "recent": [[1, ["a"]]]}, {"norms": {}, "recent": [["1", ["a"], 1.0]]},
     {"norms": {}, "recent": [[1, ["a"], float("inf")]]}, {"norms": {"a": [-1.0]}, "recent": []}],
)  # fmt: skip
def test_a_damaged_state_is_named(loss: Any) -> None:
    state = SpikeGuard().state_dict() | {"loss": loss}
    with pytest.raises(ValueError, match=r"loss|norms"):
        SpikeGuard().load_state_dict(state)
