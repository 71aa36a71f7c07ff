"""Learning rates over the steps of a run. A schedule's state is two short values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainer.errors import ConfigError

Rate = Callable[[int], float]  # number of steps taken so far -> learning rate of the next one


def rate_of(config: Any) -> Rate:
    """The rate of a `Config` by the steps taken. Raises ConfigError for a setting that is missing.

    Without `lr_schedule` it is constant after a linear warmup.
    """
    return _RATES[config.lr_schedule or "linear"](config)


def _linear(config: Any) -> Rate:
    warmup = config.warmup_steps or 0
    return lambda step: config.lr * min(1.0, (step + 1) / (warmup + 1))


def _one_cycle(config: Any) -> Rate:
    """Lambda's bump: min_lr up to max_lr over the warmup, down to lr over the cooldown, then lr."""
    if config.max_lr is None:
        raise ConfigError("lr_schedule '1cycle' needs min_lr and max_lr")
    anneal, low, top = _ANNEAL[config.anneal_strategy], config.min_lr, config.max_lr
    warmup, cooldown = config.warmup_steps or 0, config.cooldown_steps or 0

    def rate(step: int) -> float:
        if step < warmup:
            return anneal(low, top, step / warmup)
        if step < warmup + cooldown:
            return anneal(top, config.lr, (step - warmup) / cooldown)
        return config.lr

    return rate


def _cosine(config: Any) -> Rate:
    """Linear warmup to lr, then half a cosine down to min_lr at max_steps."""
    if config.max_steps is None:
        raise ConfigError("lr_schedule 'cosine' needs max_steps")
    warmup, end, low = config.warmup_steps or 0, config.max_steps, config.min_lr

    def rate(step: int) -> float:
        if step < warmup:
            return config.lr * (step + 1) / (warmup + 1)
        return _cos(config.lr, low, min(1.0, (step - warmup) / max(1, end - warmup)))

    return rate


def _cos(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


_ANNEAL = {"cos": _cos, "linear": lambda start, end, share: start + (end - start) * share}
_RATES: dict[str, Callable[[Any], Rate]] = {
    "linear": _linear,
    "1cycle": _one_cycle,
    "cosine": _cosine,
}


class Schedule:
    """Sets the rate of every group of an optimizer or engine: at once, and after each `step()`."""

    def __init__(self, optimizer: Any, config: Any) -> None:
        self._optimizer, self.config = optimizer, config
        self._rate, self._steps = rate_of(config), 0
        self._apply()

    @property
    def lr(self) -> float:
        """Of the next step."""
        return self._rate(self._steps)

    def step(self) -> None:
        """Call after each optimizer step."""
        self._steps += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        return {"schema": 1, "steps": self._steps, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the saved steps (upstream: `last_epoch`) with this run's own settings."""
        self._steps = state["steps"] if "steps" in state else state["last_epoch"]
        self._apply()

    def _apply(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
