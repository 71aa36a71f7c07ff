"""Millions of strings in little memory: kept as packed bytes, decoded when they are read."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, pairwise
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
    """Strings in parts, each its bytes in one array and its ends [rows + 1, from 0]."""

    def __init__(self, parts: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(ends) - 1 for _, ends in parts)]  # rows before each

    def __len__(self) -> int:
        return self._starts[-1]

    def part(self, start: int, stop: int) -> list[str]:
        found: list[str] = []
        at = bisect_right(self._starts, start) - 1
        while len(found) < stop - start:
            first, (packed, all_ends) = self._starts[at], self._parts[at]
            ends = all_ends[max(0, start - first) : stop - first + 1].tolist()
            data = packed[ends[0] : ends[-1]].tobytes()
            bounds = pairwise(end - ends[0] for end in ends)
            found += [data[a:b].decode("utf-8", "surrogateescape") for a, b in bounds]
            at += 1
        return found


class Packer:
    """Collects the strings of a `PackedTexts`."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def add(self, column: Any, keep: NDArray[np.bool_]) -> None:
        """Those strings of a list, or of a column of Arrow (a null is empty), that `keep` marks."""
        if isinstance(column, list):
            texts = column if keep.all() else compress(column, keep.tolist())
            # surrogateescape: file names are bytes
            encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
            ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64)
            self._parts.append((np.asarray(memoryview(b"".join(encoded))), ends))
            return
        import pyarrow as pa

        array = column.cast(pa.large_binary()).fill_null(b"")
        array = array if keep.all() else array.filter(pa.array(keep))
        if len(array):
            _, own, data = array.buffers()
            ends = np.frombuffer(own, np.int64)[array.offset : array.offset + len(array) + 1]
            packed = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
            self._parts.append((packed[ends[0] : ends[-1]], ends - ends[0]))

    def texts(self) -> PackedTexts:
        return PackedTexts(self._parts)
