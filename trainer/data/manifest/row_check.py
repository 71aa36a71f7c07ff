"""Which rows training leaves out of a manifest, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import NUMBERS, WrongRow

_LARGEST = 2**31 - 1
_FASTEST = 10_000  # frames a second; above is a wrong cell, not a fast camera


Column = Callable[[str], Any]  # from a name to a list of cells (csv) or an array of Arrow


class RowCheck:
    """Collects wrong rows, each with its first reason; `keep` marks the others."""

    def __init__(self, lines: Sequence[int], wrong: list[WrongRow]) -> None:
        self.keep = np.ones(len(lines), bool)
        self._lines, self._wrong = lines, wrong

    def columns(self, names: Sequence[str], column: Column) -> dict[str, Any]:
        """num_frames, height, width and fps of all rows, wrong ones too; checks path and text."""
        found: dict[str, Any] = {name: self._whole(name, column(name)) for name in NUMBERS}
        found["fps"] = self._rates(column("fps") if "fps" in names else None)
        if "path" in names:
            self._paths(column("path"))
        texts = column("text") if "text" in names else None
        if isinstance(texts, list):  # texts of Arrow are UTF-8
            for index, text in enumerate(texts):
                if not (text.isascii() or is_utf8(text)):  # a call less for most of a million
                    self._refuse(index, "text is not UTF-8")
        return found

    def _refuse(self, index: int, reason: str) -> None:
        if self.keep[index]:
            self.keep[index] = False
            self._wrong.append(WrongRow(self._lines[index], reason))

    def _whole(self, name: str, values: Any) -> NDArray[np.int32]:
        """Whole numbers from 1; `51.0` is one, because table programs write integers that way."""
        numbers = floats(values)
        good = (numbers >= 1) & (numbers <= _LARGEST) & (numbers == np.floor(numbers))
        for index in np.flatnonzero(~good).tolist():
            shown = repr(_python(values[index]))[:60]
            self._refuse(index, f"{name} is {shown}, not a whole number from 1")
        return np.where(good, numbers, 1).astype(np.int32)

    def _rates(self, values: Any) -> NDArray[np.float32]:
        """Frames a second; NaN for an empty cell: decoding reads the rate of the file itself."""
        if values is None:
            return np.full(len(self.keep), np.nan, np.float32)
        numbers = rates(values)
        odd = ~((numbers > 0) & (numbers <= _FASTEST))
        if str(getattr(values, "type", "")).startswith(
            ("int", "uint", "float", "double", "halffloat")
        ):
            odd &= ~np.isnan(numbers)  # NaN and null are not stated; a csv may have words there
        for index in np.flatnonzero(odd).tolist():
            shown = repr(_python(values[index]))[:60]
            if shown.strip("'").lower() not in ("", "nan", "none", "0/0"):
                self._refuse(index, f"fps is {shown}, not between 0 and {_FASTEST}")
        return np.clip(numbers, 0, _FASTEST).astype(np.float32)

    def _paths(self, values: Any) -> None:
        if isinstance(values, list):
            doubtful = [index for index, path in enumerate(values) if not path or "\0" in path]
        else:  # without making the strings
            import pyarrow.compute as pc

            empty = pc.equal(pc.fill_null(pc.binary_length(values), 0), 0)
            odd = pc.or_(empty, pc.fill_null(pc.match_substring(values, "\0"), False))
            doubtful = np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist()
        for index in doubtful:
            self._refuse(index, path_fault(_python(values[index])))


def path_fault(path: str | None) -> str:
    """Why this is not a valid path; "" for one that is."""
    if not path:
        return "path is empty"
    return "path holds a NUL character" if "\0" in path else ""


def _python(value: Any) -> Any:
    """A value of Arrow as Python's own."""
    return value.as_py() if hasattr(value, "as_py") else value


def floats(values: Any) -> NDArray[np.float64]:
    """Each value as a float, NaN where it is not a number."""
    if hasattr(values, "to_numpy"):  # of Arrow
        try:
            return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
        except (TypeError, ValueError):
            values = values.to_pylist()
    try:
        return np.fromiter(map(float, values), np.float64, len(values))  # 0.1 s a million
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values], np.float64)


def rates(values: Any) -> NDArray[np.float64]:
    """As `floats`, of frames a second, which ffprobe writes as a fraction: 30000/1001."""
    if isinstance(values, list) or "string" in str(getattr(values, "type", "")):
        texts = values if isinstance(values, list) else values.to_pylist()
        if any("/" in str(text) for text in texts):
            return np.array([_rate(text) for text in texts], np.float64)
    return floats(values)


def _rate(value: Any) -> float:
    above, sign, below = str(value).partition("/")
    if not sign:
        return _float(value)
    divisor = _float(below)
    return _float(above) / divisor if divisor > 0 else math.nan  # 0/0: unknown, as ffprobe says it


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def is_utf8(text: str) -> bool:
    """Whether a text has no bytes that were not UTF-8."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
