"""Numbers on the trainer's command lines, as types of argparse."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(least: int = 0) -> Callable[[str], int]:
    """A whole number from `least` on."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ArgumentTypeError(f"{text!r} must be an integer of at least {least}")
        return number

    return convert


def above_0(text: str) -> float:
    """A finite number above 0."""
    number = finite(text, "a number above 0")
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} must be a number above 0")
    return number


def finite(text: str, what: str = "a finite number") -> float:
    """Any number but nan and inf."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} must be {what}")
    return number
