"""Learning rates over steps. Upstream's numbers are in tests/parity."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

from trainer.config.keys import Config
from trainer.errors import ConfigError
from trainer.optim.lr_schedules import Schedule, rate_of


def optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    return torch.optim.AdamW(groups, lr=9.0)


def rates(count: int, **settings: Any) -> list[float]:
    rate = rate_of(Config(**settings))
    return [rate(step) for step in range(count)]


def test_without_settings_the_rate_is_constant() -> None:
    assert rates(3, lr=0.5) == [0.5] * 3


def test_warmup_rises_in_a_line_and_stays() -> None:
    assert rates(6, lr=1.0, warmup_steps=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_ends_at_its_minimum_and_stays_there() -> None:
    got = rates(14, lr=1.0, warmup_steps=2, lr_schedule="cosine", max_steps=10, min_lr=0.1)
    assert got[2] == 1.0
    assert got[6] == pytest.approx(0.55)
    assert got[10:] == pytest.approx([0.1] * 4)
    assert all(a > b for a, b in itertools.pairwise(got[2:11]))


def test_one_cycle_is_a_bump() -> None:
    cycle = {"lr_schedule": "1cycle", "min_lr": 0.1, "max_lr": 4.0, "lr": 1.0}
    got = rates(10, **cycle, warmup_steps=4, cooldown_steps=4)
    assert (got[0], got[4], got[8], got[9]) == pytest.approx((0.1, 4.0, 1.0, 1.0))
    straight = rates(6, **cycle, warmup_steps=2, cooldown_steps=2, anneal_strategy="linear")
    assert straight == pytest.approx([0.1, 2.05, 4.0, 2.5, 1.0, 1.0])


def test_every_group_has_the_rate_before_the_first_step_and_after_each() -> None:
    one = optimizer()
    schedule = Schedule(one, Config(lr=1.0, warmup_steps=1))
    assert [group["lr"] for group in one.param_groups] == [0.5, 0.5]
    schedule.step()
    assert [group["lr"] for group in one.param_groups] == [1.0, 1.0]


def test_a_resumed_schedule_goes_on_and_its_state_is_small_and_plain() -> None:
    settings = Config(lr=1.0, warmup_steps=50, grad_clip=1.0)
    schedule = Schedule(optimizer(), settings)
    for _ in range(7):
        schedule.step()
    state = json.loads(json.dumps(schedule.state_dict()))
    assert len(json.dumps(state)) < 100
    resumed = Schedule(optimizer(), settings)
    resumed.load_state_dict(state)
    assert resumed.lr == schedule.lr == pytest.approx(8 / 51)


BUMP: dict[str, Any] = {"lr_schedule": "1cycle", "min_lr": 1.6e-5, "max_lr": 6.4e-4, "lr": 1.6e-4, "warmup_steps": 400, "cooldown_steps": 400}  # fmt: skip


@pytest.mark.parametrize("stop", [0, 1, 399, 400, 401, 800, 5000])
def test_a_bump_resumes_anywhere_from_a_few_numbers(stop: int) -> None:
    """Upstream's state pickles the optimizer along: 12 MB for a model of a million parameters."""
    schedule = Schedule(optimizer(), Config(**BUMP))
    for _ in range(stop):
        schedule.step()
    state = json.loads(json.dumps(schedule.state_dict()))
    assert all(isinstance(value, (int, float)) for value in state.values())
    assert len(state) <= 4
    two = optimizer()
    resumed = Schedule(two, Config(**BUMP))
    resumed.load_state_dict(state)
    for _ in range(3):
        assert two.param_groups[0]["lr"] == schedule.lr
        schedule.step()
        resumed.step()


def test_the_rate_of_this_runs_config_wins_over_the_checkpoints() -> None:
    schedule = Schedule(optimizer(), Config(lr=1.0, warmup_steps=2))
    for _ in range(5):
        schedule.step()
    two = optimizer()
    Schedule(two, Config(lr=0.5, warmup_steps=2)).load_state_dict(schedule.state_dict())
    assert two.param_groups[0]["lr"] == 0.5  # and stays: upstream's comes back after one step


def test_upstreams_warmup_state_is_read() -> None:
    schedule = Schedule(optimizer(), Config(lr=1.0, warmup_steps=9))
    schedule.load_state_dict({"last_epoch": 4, "_step_count": 5})
    assert schedule.lr == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_schedule": "1cycle"}, "needs min_lr and max_lr"),
        ({"lr_schedule": "cosine"}, "needs max_steps"),
    ],
)
def test_missing_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rate_of(Config(**settings))
