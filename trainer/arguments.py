"""What the trainer's command lines share: the parser with --log-level, and types of numbers."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from trainer.runlog.output import configure

N = TypeVar("N", int, float)
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
LEVEL_VARIABLE = "TRAINER_LOG_LEVEL"


class Parser(ArgumentParser):
    """Of `python -m trainer.NAME`; parsing sets the log level."""

    def __init__(self, name: str, description: str, **options: Any) -> None:
        lines = RawDescriptionHelpFormatter
        super().__init__(
            f"python -m trainer.{name}", description=description, formatter_class=lines, **options
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        self.add_argument(  # last in the help
            "--log-level",
            type=_level,
            default=os.environ.get(LEVEL_VARIABLE, "info"),
            metavar="LEVEL",
            help=f"{', '.join(LEVELS)}; default ${LEVEL_VARIABLE}, else info",
        )
        found, rest = super().parse_known_args(args, namespace)
        configure(found.log_level)
        return found, rest


def _level(text: str) -> int:
    if text not in LEVELS:
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(LEVELS)}")
    return LEVELS[text]


def _number(kind: Callable[[str], N], holds: Callable[[N], bool], what: str) -> Callable[[str], N]:
    def convert(text: str) -> N:
        with contextlib.suppress(ValueError):
            number = kind(text)
            if holds(number):
                return number
        raise ArgumentTypeError(f"{text!r} must be {what}")

    return convert


def whole(least: int = 0) -> Callable[[str], int]:
    """A whole number from `least` on."""
    return _number(int, lambda number: number >= least, f"an integer of at least {least}")


above_0 = _number(float, lambda number: 0 < number < math.inf, "a number above 0")
finite = _number(float, math.isfinite, "a finite number")
