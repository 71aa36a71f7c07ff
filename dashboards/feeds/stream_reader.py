"""One thread that reads many streams in pieces of bounded size.

The kernel waits for a stream with a descriptor (a pipe); another one calls when it has data
(paramiko's thread). Between two rounds the thread sleeps a moment, so that a thousand lines a
second cost a few dozen wake-ups and not a thousand.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

from clusterctl.remote.payload import PayloadStream

PIECE = 64 << 10  # bytes of one stream before the others have their turn
ROUND_S = 0.04
CHECK_S = 0.5  # how often `check` is called


class Pump:
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
        self._new: list[tuple[Any, int | None]] = []
        self._gone: list[Any] = []
        self._descriptors: dict[Any, int] = {}  # the pump thread's own
        self._selector = selectors.DefaultSelector()
        self._bell_out, self._bell_in = os.pipe()
        for end in (self._bell_in, self._bell_out):
            os.set_blocking(end, False)
        self._selector.register(self._bell_out, selectors.EVENT_READ, None)
        self._rung = False
        self._ending = False
        self._hot_until = 0.0
        self._thread = threading.Thread(target=self._run, name="watch-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, key: Any, stream: PayloadStream) -> None:
        """Read a stream from now on. `key` must be new."""
        # A pipe, in tests; a channel of ssh has none.
        descriptor = stream.channel.fileno() if hasattr(stream.channel, "fileno") else None
        with self._lock:
            self._streams[key] = stream
            self._new.append((key, descriptor))
            # Data that came while it was started is in the stream and causes no call.
            self._ready[key] = time.time()
        if descriptor is None:
            stream.channel.on_readable(lambda: self._is_ready(key))
        self._ring()

    def remove(self, key: Any) -> None:
        """Read a stream no more; returns when its descriptor may be closed."""
        with self._lock:
            self._streams.pop(key, None)
            self._ready.pop(key, None)
            self._gone.append(key)
        self._ring()
        if threading.current_thread() is self._thread:
            self._change_registrations()
            return
        while self._thread.is_alive():
            with self._lock:
                if key not in self._gone:
                    return
            time.sleep(0.005)

    def hurry(self, seconds: float) -> None:
        """No sleep between rounds for so long, because a round trip is measured."""
        self._hot_until = time.monotonic() + seconds

    def close(self) -> None:
        self._ending = True
        self._ring()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._selector.close()
        with self._lock:
            for end in (self._bell_in, self._bell_out):
                with contextlib.suppress(OSError):
                    os.close(end)
            self._bell_in = self._bell_out = -1

    def _is_ready(self, key: Any) -> None:
        with self._lock:
            if key in self._streams:
                self._ready[key] = time.time()
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if self._rung or self._bell_in < 0:
                return
            self._rung = True
            with contextlib.suppress(OSError):
                os.write(self._bell_in, b"!")

    def _run(self) -> None:
        checked = time.monotonic()
        while not self._ending:
            selection = self._selector.select(CHECK_S)
            wall_s = time.time()
            for selected, _ in selection:
                if selected.data is None:
                    with self._lock:
                        self._rung = False
                        with contextlib.suppress(OSError):
                            os.read(self._bell_out, 64)
                else:
                    with self._lock:
                        self._ready[selected.data] = wall_s
            self._change_registrations()
            self._round()
            now = time.monotonic()
            if now - checked >= CHECK_S:
                checked = now
                self._check()
            if now >= self._hot_until:
                time.sleep(ROUND_S)

    def _change_registrations(self) -> None:
        with self._lock:
            new, self._new = self._new, []
            gone, self._gone = self._gone, []
        for key, descriptor in new:
            if descriptor is not None:
                os.set_blocking(descriptor, False)
                self._selector.register(descriptor, selectors.EVENT_READ, key)
                self._descriptors[key] = descriptor
        for key in gone:
            self._unregister(key)

    def _unregister(self, key: Any) -> None:
        descriptor = self._descriptors.pop(key, None)
        if descriptor is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(descriptor)

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
            except Exception as error:  # noqa: BLE001 - stream boundary: it ends the stream
                self._unregister(key)
                with self._lock:
                    self._streams.pop(key, None)
                self._take(key, b"", wall_s, error)
                continue
            if data:
                if len(data) == PIECE and key not in self._descriptors:
                    self._is_ready(key)  # more may wait, for which there is no second call
                self._take(key, data, wall_s, None)
