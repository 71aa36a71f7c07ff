"""What the head adds to files of the run directory, in order, also after a disk was full."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from pathlib import Path

from trainer.runlog import run_files

KEPT_BYTES = 16 << 20  # of all files: hours of events, or what ranks print in some minutes


class Appended:
    """What a file does not take now is kept, and written before what is added later: in the end no
    line is lost or torn. Beyond KEPT_BYTES it is left out and counted."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._kept: dict[str, deque[bytes]] = {}
        self._size = 0
        self._left_out: Counter[str] = Counter()

    @property
    def is_behind(self) -> bool:
        """Whether something is kept that is in no file yet."""
        return bool(self._kept)

    def add(self, name: str, data: bytes) -> str:
        """Add to a file below the folder. Why it does not take it; "" where it does, and where the
        reason has been told."""
        with self._lock:
            for other in [*self._kept]:
                if self._write(other):
                    break  # most likely this disk is full still
            if name not in self._kept:
                self._kept[name] = deque([data])
                self._size += len(data)
                return self._write(name)
            if self._size + len(data) > KEPT_BYTES:
                self._left_out[name] += len(data)
            else:
                self._kept[name].append(data)
                self._size += len(data)
            return ""

    def flush(self) -> str:
        """Write what is kept: why a file does not take it, "" where all is written."""
        with self._lock:
            whys = [(name, self._write(name)) for name in [*self._kept]]
            return next((f"{name}: {why}" for name, why in whys if why), "")

    def left_out(self) -> dict[str, int]:
        """Bytes of each file that are in none, once all others are; told once."""
        with self._lock:
            found = {} if self._kept else dict(self._left_out)
            for name in found:
                del self._left_out[name]
            return found

    def _write(self, name: str) -> str:
        """Write all that is kept for a file; why not."""
        chunks = self._kept[name]
        try:
            descriptor = run_files.open_to_append(self._folder / name)
            try:
                while chunks:
                    count = os.write(descriptor, chunks[0])
                    self._size -= count
                    if count == len(chunks[0]):
                        chunks.popleft()
                    else:
                        chunks[0] = chunks[0][count:]
            finally:
                os.close(descriptor)
        except OSError as error:
            return error.strerror or str(error)
        del self._kept[name]
        return ""
