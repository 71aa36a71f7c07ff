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
_RULE = "rule"  # in a field's metadata
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be, or each value of a tuple."""

    words: str
    holds: Callable[[Any], bool]


def number(default: Any, **bounds: float) -> Any:
    """A field of finite numbers within `bounds`; None, where the type has it, is always allowed."""
    limits = [(*_BOUNDS[name], bound) for name, bound in bounds.items()]
    words = " and ".join(f"{words} {bound:,}" for words, _, bound in limits)

    def holds(value: float | None) -> bool:
        if value is None:
            return True
        return math.isfinite(value) and all(compare(value, bound) for _, compare, bound in limits)

    return field(default=default, metadata={_RULE: Rule(words or "a finite number", holds)})


def choice(default: str | None, *others: str | None) -> Any:
    """A field with one of these values."""
    values = (default, *others)
    rule = Rule(f"one of {', '.join(map(str, values))}", values.__contains__)
    return field(default=default, metadata={_RULE: rule})


def allowed(of: dataclasses.Field[Any]) -> Rule | None:
    return of.metadata.get(_RULE)


def require_allowed(kind: Any, values: Mapping[str, Any], name_of: Callable[[str], str]) -> None:
    """Raises ConfigError, with the field's `name_of`, for a value that it may not have."""
    for of in dataclasses.fields(kind):
        rule = allowed(of)
        if rule is None or of.name not in values:
            continue
        value = values[of.name]
        each = value if isinstance(value, (tuple, list)) else (value,)
        if not all(map(rule.holds, each)):
            raise ConfigError(f"{name_of(of.name)} must be {rule.words}; not {value!r}")
