"""Millions of strings in little memory: kept as packed bytes, decoded when they are read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import compress, pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 14  # rows decoded at once


class Texts(Sequence[str]):
    """Strings that `part` makes."""

    @abstractmethod
    def part(self, start: int, stop: int) -> list[str]:
        """Strings start to stop - 1; 0 <= start <= stop <= len(self)."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self.part(start, max(start, stop))
            return [self[at] for at in range(start, stop, step)]
        at = range(len(self))[index]
        return self.part(at, at + 1)[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK]


class Unread(Texts):
    """Texts that were not kept."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def part(self, start: int, stop: int) -> list[str]:
        raise LookupError("only the numbers of this manifest were read")


class PackedTexts(Texts):
    """Strings as their bytes in one array and their ends [rows + 1, from 0]."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def part(self, start: int, stop: int) -> list[str]:
        ends = self._ends[start : stop + 1].tolist()
        data = self._data[ends[0] : ends[-1]].tobytes()
        bounds = pairwise(end - ends[0] for end in ends)
        return [data[a:b].decode("utf-8", "surrogateescape") for a, b in bounds]


class Packer:
    """Collects the strings of a `PackedTexts`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lengths: list[NDArray[Any]] = [np.zeros(1, np.int64)]

    def add(self, column: Any, keep: NDArray[np.bool_]) -> None:
        """Those strings of a list, or of a column of Arrow (a null is empty), that `keep` marks."""
        if isinstance(column, list):
            texts = column if keep.all() else compress(column, keep.tolist())
            # surrogateescape: file names are bytes
            encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
            self._data += b"".join(encoded)
            self._lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
            return
        import pyarrow as pa

        array = column.cast(pa.large_binary()).fill_null(b"")
        array = array if keep.all() else array.filter(pa.array(keep))
        if len(array):
            _, ends, data = array.buffers()
            own = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
            if own[-1] > own[0]:
                self._data += memoryview(data)[own[0] : own[-1]]
            self._lengths.append(np.diff(own))

    def texts(self) -> PackedTexts:
        self._data += b"\0"  # an array of no bytes cannot be made
        ends = np.cumsum(np.concatenate(self._lengths), dtype=np.int64)
        return PackedTexts(np.frombuffer(self._data, np.uint8), ends)
