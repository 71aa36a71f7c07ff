"""The table of clips: csv or parquet, one row a clip, checked before anything else is done with it.

Columns every manifest has: path, text, num_frames, height, width. fps is used when it is there,
other columns are not read. Row order is part of the identity of a data set: `fingerprint` is a
SHA-256 over the rows in order, and `marks` narrows a difference between two to a few rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.errors import TrainerError

NUMBERS = ("num_frames", "height", "width")
PROBED = (*NUMBERS, "aspect_ratio", "fps", "resolution")  # what `probe` adds
REQUIRED = ("path", "text", *NUMBERS)
COLUMNS = (*REQUIRED, "aspect_ratio", "fps", "resolution")  # as `probe` writes them
SUFFIXES = (".csv", ".parquet")
MAX_WRONG_ROWS = 100
FIELD_LIMIT = 1 << 24  # characters of a cell: a quote that is never closed must not eat the memory
_MARKS = 512


class ManifestError(TrainerError):
    """A manifest that cannot be used; names file, column or line, and what makes it right."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row that was left out."""

    line: int  # of the file, first is 1; in parquet the row, first is 1
    reason: str

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}"


@dataclass(frozen=True)
class Manifest:
    """N clips. Arrays are [N]; numbers are frames, pixels and frames a second (NaN: not stated)."""

    source: Path
    root: Path  # relative paths start here
    paths: Sequence[str]
    texts: Sequence[str]
    num_frames: NDArray[np.int32]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    fps: NDArray[np.float32]
    wrong: tuple[WrongRow, ...] = ()  # rows that were left out

    def __len__(self) -> int:
        return len(self.paths)

    def locate(self, row: int) -> str:
        """Path of a row's file."""
        path = self.paths[row]
        return path if path.startswith("/") else f"{self.root}/{path}"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over path, num_frames, height, width and text of all rows, and their count.

        Paths count as they are written, so that a data set that moved as a whole stays the same.
        """
        return _digest_to(self, 1 << 14)[-1] if len(self) else hashlib.sha256(b"0").hexdigest()

    def marks(self, stride: int) -> list[str]:
        """Short hashes of the first stride, 2 x stride, … rows: where two data sets part."""
        return [mark[:8] for mark in _digest_to(self, stride)]

    @cached_property
    def own_marks(self) -> tuple[int, list[str]]:
        """A stride that gives at most 512 marks (4 KB in a state file), and the marks.

        Kept: every checkpoint states them, and they take a pass over all rows.
        """
        stride = max(1, math.ceil(len(self) / _MARKS))
        return stride, self.marks(stride)


def _digest_to(manifest: Manifest, stride: int) -> list[str]:
    """SHA-256 of rows 0..stride, 0..2 stride, …, 0..N; the content of a row is unambiguous."""
    digest = hashlib.sha256()
    found = []
    for start in range(0, len(manifest), stride):
        rows = slice(start, start + stride)
        for strings in (manifest.paths[rows], manifest.texts[rows]):
            encoded = [text.encode("utf-8", "surrogateescape") for text in strings]
            digest.update(np.fromiter(map(len, encoded), "<i4", len(encoded)).tobytes())
            digest.update(b"".join(encoded))
        for numbers in (manifest.num_frames, manifest.height, manifest.width):
            digest.update(numbers[rows].astype("<i4").tobytes())
        found.append(digest.copy().hexdigest())
    return found


def check_suffix(path: Path, hint: str | None = None) -> None:
    """Raise ManifestError for a name that is neither csv nor parquet."""
    if path.suffix not in SUFFIXES:
        kinds = " or ".join(SUFFIXES)
        raise ManifestError(
            f"{path}: a manifest is {kinds}, not {path.suffix or 'this'}", hint=hint
        )
