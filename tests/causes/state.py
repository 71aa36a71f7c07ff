"""A state of a job of which the first cause is known, and what was said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

CRASH, HANG, WELL = "crash logs", "hangs", "healthy or idle"
GROUPS = (CRASH, HANG, WELL)
RIGHT, MISSED, WRONG, NOT_MEASURED = "right", "missed", "WRONG", "-"


@dataclass(frozen=True)
class Answer:
    """`result`: right (also "cannot tell" where nobody could), missed (nobody was named, or not the
    kind), WRONG (somebody else, or anybody in a healthy job), or not measured."""

    group: str
    name: str
    result: str
    said: str

    @property
    def line(self) -> str:
        return f"{self.result:6} {self.group:16} {self.name}: {self.said}"


States = Callable[[], Iterator[Answer]]


def result(is_right: bool, is_wrong: bool) -> str:
    return WRONG if is_wrong else RIGHT if is_right else MISSED
