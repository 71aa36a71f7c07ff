"""Millions of strings in little memory: packed bytes of a csv, columns of a parquet file."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class PackedTexts(Sequence[str]):
    """Strings as one run of bytes and their ends: 8 bytes beside each, where Python needs 57."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("q", [0])

    def extend(self, texts: Iterable[str]) -> None:
        # surrogateescape: file names are bytes
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        ends = itertools.accumulate(map(len, encoded), initial=self._ends.pop())
        self._ends.extend(ends)
        self._data += b"".join(encoded)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(at) for at in range(*index.indices(len(self)))]
        at = int(index)
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self._text(at)

    def _text(self, at: int) -> str:
        return self._data[self._ends[at] : self._ends[at + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return map(self._text, range(len(self)))


class MappedTexts(Sequence[str]):
    """Strings as one run of bytes [N] and their ends [rows + 1, from 0]; others may share both."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1 or stop <= start:
                return [self[at] for at in range(start, stop, step)]
            ends = self._ends[start : stop + 1].tolist()
            data = self._data[ends[0] : ends[-1]].tobytes()
            bounds = [(a - ends[0], b - ends[0]) for a, b in itertools.pairwise(ends)]
            return [data[a:b].decode("utf-8", "surrogateescape") for a, b in bounds]
        at = int(index)
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(index)
        part = self._data[self._ends[at] : self._ends[at + 1]]
        return part.tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 1 << 14):
            yield from self[start : start + (1 << 14)]


class ArrowColumn(Sequence[Any]):
    """A column of a parquet file, made into Python's values one at a time."""

    def __init__(self, column: Any) -> None:
        self.column = column  # pyarrow.ChunkedArray

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.column[index].to_pylist()
        return self.column[int(index)].as_py()

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), 1 << 14):
            yield from self[start : start + (1 << 14)]


class ArrowTexts(ArrowColumn):
    """As `ArrowColumn`; null is the empty text."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        found = super().__getitem__(index)
        return [text or "" for text in found] if isinstance(index, slice) else found or ""
