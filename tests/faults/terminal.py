"""A terminal for one command after another: keys go in, all that is shown goes to a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INTERRUPT = b"\x03"  # Ctrl-C
ENDS_S = 10.0  # for the rest of the output after the last command


class Terminal:
    """`close` it after its last command."""

    def __init__(self, shown: Path) -> None:
        self._keys, self._end = os.openpty()
        self._shown = shown
        self._modes = termios.tcgetattr(self._end)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def start(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "clusterctl", *words],
            cwd=cwd, env=env, stdin=self._end, stdout=self._end, stderr=self._end,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY),
        )  # fmt: skip

    def press(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    @property
    def is_as_before(self) -> bool:
        """Whether echo and lines are as they were before the first command."""
        return self._local_modes(termios.tcgetattr(self._end)) == self._local_modes(self._modes)

    @staticmethod
    def _local_modes(attributes: list[Any]) -> list[Any]:
        return attributes[:4]  # the rest are speeds and keys

    def close(self) -> None:
        os.close(self._end)
        self._thread.join(ENDS_S)
        os.close(self._keys)

    def _copy(self) -> None:
        with self._shown.open("ab") as file, contextlib.suppress(OSError):  # EIO: all have ended
            while data := os.read(self._keys, 1 << 16):
                file.write(data)
                file.flush()
