"""The interpreter that training runs on, and the working copy that it starts in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class PythonEnv:
    """An interpreter and the versions in its environment; None: not installed there."""

    executable: str
    prefix: str
    version: str
    packages: Mapping[str, str | None]
    torch_cuda: str | None
    installed: Mapping[str, str] = field(default_factory=dict)  # every distribution there


Interpreter = Literal["works", "missing", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class GitState:
    """The working copy that the launch starts in."""

    commit: str
    changed: tuple[str, ...]  # files with changes that are not committed
