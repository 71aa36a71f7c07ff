"""What values a config's key may have beside its type: a range of numbers, or one of some words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import ConfigError

_NAME = "allowed"  # in a field's metadata


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers; of a tuple each."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = [
            ("at least", self.least),
            ("above", self.above),
            ("at most", self.most),
            ("below", self.below),
        ]
        limits = [f"{words} {bound:,}" for words, bound in bounds if bound is not None]
        return " and ".join(limits) or "a finite number"


@dataclass(frozen=True, slots=True)
class Choice:
    """Words, or None."""

    values: tuple[str | None, ...]

    def holds(self, value: str | None) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


def number(default: Any, **bounds: float) -> Any:
    """A field with a Range; None, where the type has it, is always allowed."""
    return field(default=default, metadata={_NAME: Range(**bounds)})


def choice(default: str | None, *others: str | None) -> Any:
    """A field with a Choice."""
    return field(default=default, metadata={_NAME: Choice((default, *others))})


def allowed(of: dataclasses.Field[Any]) -> Range | Choice | None:
    return of.metadata.get(_NAME)


def require_allowed(kind: Any, values: Mapping[str, Any], name_of: Callable[[str], str]) -> None:
    """Each of `values` is one that this field of the dataclass `kind` may have.

    `name_of` a field is its place and name for people. Raises ConfigError.
    """
    for of in dataclasses.fields(kind):
        rule, value = allowed(of), values.get(of.name)
        if of.name not in values or rule is None or (value is None and isinstance(rule, Range)):
            continue
        each = value if isinstance(value, (tuple, list)) else (value,)
        if not all(rule.holds(one) for one in each):
            raise ConfigError(f"{name_of(of.name)} must be {rule}; not {value!r}")
