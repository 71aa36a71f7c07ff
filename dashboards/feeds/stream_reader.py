"""One thread that reads many streams in pieces of bounded size.

A stream calls when it has data, from the thread of its connection. Between two rounds this one
sleeps a moment, so that a thousand lines a second cost a few dozen wake-ups and not a thousand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from clusterctl.remote.payload import PayloadStream

PIECE = 64 << 10  # bytes of one stream before the others have their turn
ROUND_S = 0.04
CHECK_S = 0.5  # how often `check` is called


class StreamReader:
    """Calls `take(key, data, wall_s, error)` from its thread: data and the wall clock when the
    last of it came, or the error that ended the stream. Its owner then closes the stream.
    """

    def __init__(
        self,
        take: Callable[[Any, bytes, float, BaseException | None], None],
        check: Callable[[], None],
    ) -> None:
        self._take, self._check = take, check
        self._lock = threading.Lock()
        self._streams: dict[Any, PayloadStream] = {}
        self._ready: dict[Any, float] = {}  # -> wall clock of the last call
        self._called = threading.Event()
        self._ending = False
        self._hot_until = 0.0
        self._thread = threading.Thread(target=self._run, name="watch-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, key: Any, stream: PayloadStream) -> None:
        """Read a stream from now on. `key` must be new."""
        with self._lock:
            self._streams[key] = stream
        stream.channel.on_readable(lambda: self._is_ready(key))
        self._is_ready(key)  # data that came while it was started causes no call

    def remove(self, key: Any) -> None:
        """Read a stream no more; a piece that is being read may still be taken."""
        with self._lock:
            self._streams.pop(key, None)

    def hurry(self, seconds: float) -> None:
        """No sleep between rounds for so long, because a round trip is measured."""
        self._hot_until = time.monotonic() + seconds

    def close(self) -> None:
        self._ending = True
        self._called.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _is_ready(self, key: Any) -> None:
        with self._lock:
            self._ready[key] = time.time()
        self._called.set()

    def _run(self) -> None:
        checked = time.monotonic()
        while not self._ending:
            self._called.wait(CHECK_S)
            self._called.clear()
            self._round()
            now = time.monotonic()
            if now - checked >= CHECK_S:
                checked = now
                self._check()
            if now >= self._hot_until:
                time.sleep(ROUND_S)

    def _round(self) -> None:
        """One piece of each stream that has something."""
        with self._lock:
            ready, self._ready = self._ready, {}
            streams = [(key, wall_s, self._streams.get(key)) for key, wall_s in ready.items()]
        for key, wall_s, stream in streams:
            if stream is None:
                continue
            try:
                data = stream.channel.read_some(PIECE)
                if len(data) == PIECE:
                    self._is_ready(key)  # more may wait, for which there is no second call
                if data:
                    self._take(key, data, wall_s, None)
            except Exception as error:  # noqa: BLE001 - stream boundary: it ends the stream
                self.remove(key)
                self._take(key, b"", wall_s, error)
