"""A value that could not be read, with its reason; and the raw text that values are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that could not be read, and why; or there is none (`is_absence`)."""

    reason: str
    is_absence: bool = field(default=False, compare=False)  # this card, driver or machine has none

    def __str__(self) -> str:
        return self.reason


Maybe = Union[T, Unknown]  # noqa: UP007 - a generic alias of 3.10 needs Union

NOT_ASKED = Unknown("not asked", is_absence=True)


def known(values: Iterable[Maybe[T]]) -> list[T]:
    """The values that could be had."""
    return [value for value in values if not isinstance(value, Unknown)]


def then(value: Maybe[T], use: Callable[[T], Maybe[S]]) -> Maybe[S]:
    """What `use` makes of a value; an Unknown stays as it is."""
    return value if isinstance(value, Unknown) else use(value)


def or_none(value: Maybe[T]) -> T | None:
    return None if isinstance(value, Unknown) else value


@dataclass(frozen=True, slots=True)
class Section:
    """The raw text that one tool or file on a node gave."""

    state: Literal["ended", "missing", "timeout", "error"]
    rc: int | None
    out: str
    err: str
    seconds: float
    truncated: bool = False  # more was printed than is kept: of a log the end, else the beginning

    @property
    def why_not(self) -> str:
        """One line for a section that gave no usable text."""
        errors = [line.strip() for line in self.err.splitlines() if line.strip()]
        if self.state != "ended":
            return errors[-1] if errors else self.state
        lines = errors or [line.strip() for line in self.out.splitlines() if line.strip()]
        if self.rc != 0:
            return f"exit {self.rc}: {lines[0]}" if lines else f"exit {self.rc} without a message"
        return "its output is longer than what is kept" if self.truncated else "it printed nothing"


def to_json(value: Any) -> Any:
    """Plain data of facts: an unknown value is null, its reason is in `unknown` beside it."""
    if isinstance(value, Unknown):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        reasons = {name: one.reason for name, one in values.items() if isinstance(one, Unknown)}
        data = {name: to_json(one) for name, one in values.items()}
        return {**data, "unknown": reasons} if reasons else data
    if isinstance(value, Mapping):
        return {str(key): to_json(content) for key, content in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(content) for content in value]
    return value
