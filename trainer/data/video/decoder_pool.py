"""Several decoders at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from trainer.data.video.decode import Decoder

T = TypeVar("T")


class DecoderPool:
    """`workers` decoders, each with a thread of its own and a helper that starts when needed."""

    def __init__(self, workers: int, timeout_s: float, role: str, **options: Any) -> None:
        self._all = [Decoder(timeout_s, role=role, **options) for _ in range(workers)]
        self._idle = [*self._all]
        self._threads = ThreadPoolExecutor(workers, role)

    def submit(self, work: Callable[[Decoder], T]) -> Future[T]:
        """`work(decoder)` in one of the threads."""
        return self._threads.submit(self._run, work)

    def _run(self, work: Callable[[Decoder], T]) -> T:
        decoder = self._idle.pop()  # there are as many as threads
        try:
            return work(decoder)
        finally:
            self._idle.append(decoder)

    def close(self) -> None:
        """End the helpers; what has not begun is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for decoder in self._all:
            decoder.abort()
        self._threads.shutdown(wait=True)
        for decoder in self._all:
            decoder.close()
