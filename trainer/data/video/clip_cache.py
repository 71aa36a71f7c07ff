"""Decoded clips kept in a decoding process, for data sets that fit into memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from numpy.typing import NDArray


class ClipCache:
    """Decoded clips, the least recently used dropped first, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.used_bytes = limit_bytes, 0
        self._clips: OrderedDict[tuple[Any, ...], tuple[NDArray[Any], float]] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> tuple[NDArray[Any], float] | None:
        found = self._clips.get(key)
        if found is not None:
            self._clips.move_to_end(key)
        return found

    def put(self, key: tuple[Any, ...], pixels: NDArray[Any], fps: float) -> None:
        if pixels.nbytes > self.limit_bytes:
            return
        self._clips[key] = (pixels.copy(), fps)
        self.used_bytes += pixels.nbytes
        while self.used_bytes > self.limit_bytes:
            _, (dropped, _) = self._clips.popitem(last=False)
            self.used_bytes -= dropped.nbytes
