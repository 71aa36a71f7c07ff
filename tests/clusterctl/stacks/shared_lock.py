"""A lock of several processes that is waited for at 100 % CPU, in C: work of a length that a test decides."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None)  # its calls let go of the interpreter
_spin = _libc["pthread_spin_lock"]
_spin.argtypes, _spin.restype = (ctypes.c_void_p, ctypes.py_object), None


class SharedLock:
    """glibc's spin lock in a file that all of them map."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        if fresh:
            path.write_bytes(bytes(64))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 64)
        self._word = ctypes.c_int.from_buffer(self._memory)
        self._at = ctypes.byref(self._word)
        if fresh:
            _libc.pthread_spin_init(self._at, 1)

    @property
    def spin(self) -> Callable[..., None]:
        """Takes the lock, given anything; called from C it shows no Python frame."""
        return functools.partial(_spin, self._at)

    def take(self) -> None:
        self.spin(None)

    def give(self) -> None:
        _libc.pthread_spin_unlock(self._at)

    def is_held(self) -> bool:
        if _libc.pthread_spin_trylock(self._at) != 0:
            return True
        self.give()
        return False
