"""Learning rates over the steps of a run. A schedule's state is two short values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """Upstream's names. Without `lr_schedule`, `warmup_steps` alone means a linear warmup."""

    lr: float = 1e-4
    warmup_steps: int | None = None
    lr_schedule: str | None = None  # constant, linear, 1cycle, cosine
    min_lr: float | None = None  # where 1cycle starts and cosine ends
    max_lr: float | None = None  # top of 1cycle
    cooldown_steps: int | None = None  # of 1cycle, from max_lr to lr
    anneal_strategy: str = "cos"  # of 1cycle: cos, linear
    max_steps: int | None = None  # where cosine ends


Rate = Callable[[int], float]  # number of steps taken so far -> learning rate of the next one


def rate_of(config: ScheduleConfig) -> Rate:
    """The rate by the steps taken. Raises ConfigError for a setting that is missing or unknown."""
    kind = config.lr_schedule or ("constant" if config.warmup_steps is None else "linear")
    if kind not in _RATES:
        raise ConfigError(f"lr_schedule {kind!r} must be one of {', '.join(_RATES)}")
    return _RATES[kind](config)


def _constant(config: ScheduleConfig) -> Rate:
    return lambda step: config.lr


def _linear(config: ScheduleConfig) -> Rate:
    """Constant after a linear warmup of any length."""
    warmup = config.warmup_steps or 0
    return lambda step: config.lr * min(1.0, (step + 1) / (warmup + 1))


def _one_cycle(config: ScheduleConfig) -> Rate:
    """Lambda's bump: min_lr up to max_lr over the warmup, down to lr over the cooldown, then lr."""
    if config.min_lr is None or config.max_lr is None:
        raise ConfigError("lr_schedule '1cycle' needs min_lr and max_lr")
    if config.anneal_strategy not in _ANNEAL:
        known = ", ".join(_ANNEAL)
        raise ConfigError(f"anneal_strategy {config.anneal_strategy!r} must be one of {known}")
    anneal, low, top = _ANNEAL[config.anneal_strategy], config.min_lr, config.max_lr
    warmup, cooldown = config.warmup_steps or 0, config.cooldown_steps or 0

    def rate(step: int) -> float:
        if step < warmup:
            return anneal(low, top, step / warmup)
        if step < warmup + cooldown:
            return anneal(top, config.lr, (step - warmup) / cooldown)
        return config.lr

    return rate


def _cosine(config: ScheduleConfig) -> Rate:
    """Linear warmup to lr, then half a cosine down to min_lr at max_steps."""
    if config.max_steps is None:
        raise ConfigError("lr_schedule 'cosine' needs max_steps")
    warmup, end, low = config.warmup_steps or 0, config.max_steps, config.min_lr or 0.0

    def rate(step: int) -> float:
        if step < warmup:
            return config.lr * (step + 1) / (warmup + 1)
        return _cos(config.lr, low, min(1.0, (step - warmup) / max(1, end - warmup)))

    return rate


def _cos(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _straight(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


_ANNEAL = {"cos": _cos, "linear": _straight}
_RATES = {"constant": _constant, "linear": _linear, "1cycle": _one_cycle, "cosine": _cosine}


class Schedule:
    """Sets the rate of every group of an optimizer or engine: at once, and after each `step()`."""

    def __init__(self, optimizer: Any, config: ScheduleConfig) -> None:
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
        steps = state.get("steps", state.get("last_epoch"))
        if not isinstance(steps, int):
            raise ValueError("this learning-rate state has no step count; start a new one")
        self._steps = steps
        self._apply()

    def _apply(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
