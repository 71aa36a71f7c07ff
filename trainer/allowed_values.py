"""What values a field may have beside its type: a range of numbers, or one of several words."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainer.errors import ConfigError

T = TypeVar("T")
_NAME = "allowed"  # in a field's metadata
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers within `bounds`, by the names above; of a tuple each."""

    bounds: Mapping[str, float]

    def holds(self, value: float) -> bool:
        inside = (_BOUNDS[name][1](value, bound) for name, bound in self.bounds.items())
        return math.isfinite(value) and all(inside)

    def __str__(self) -> str:
        limits = [f"{_BOUNDS[name][0]} {bound:,}" for name, bound in self.bounds.items()]
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
    return field(default=default, metadata={_NAME: Range(bounds)})


def choice(default: str | None, *others: str | None) -> Any:
    """A field with a Choice."""
    return field(default=default, metadata={_NAME: Choice((default, *others))})


def allowed(of: dataclasses.Field[Any]) -> Range | Choice | None:
    return of.metadata.get(_NAME)


def taken_from(kind: type[T], config: object) -> T:
    """A dataclass made of those of its fields that `config` has, among others."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{f.name: getattr(config, f.name) for f in fields if hasattr(config, f.name)})


def require_allowed(kind: Any, values: Mapping[str, Any], name_of: Callable[[str], str]) -> None:
    """Raises ConfigError, with the field's `name_of`, for a value that it may not have."""
    for of in dataclasses.fields(kind):
        rule, value = allowed(of), values.get(of.name)
        if of.name not in values or rule is None or (value is None and isinstance(rule, Range)):
            continue
        each = value if isinstance(value, (tuple, list)) else (value,)
        if not all(rule.holds(one) for one in each):
            raise ConfigError(f"{name_of(of.name)} must be {rule}; not {value!r}")
