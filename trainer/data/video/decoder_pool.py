"""Several decoders at once, which wait together while the storage of the clips fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from trainer.data.video import outage
from trainer.data.video.decode import MEMORY_BYTES, Decoder, DecoderBroken
from trainer.data.video.outage import Outage
from trainer.runlog import units

T = TypeVar("T")


class Try(NamedTuple):
    """What came of reading a clip once."""

    error: str  # "" when it was read
    storage_fails: bool
    gone: str  # the folder that is missing


class DecoderPool:
    """`workers` decoders, each with a thread of its own and a helper that starts when needed."""

    def __init__(
        self, workers: int, timeout_s: float, role: str, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._all = [Decoder(timeout_s, 0, role, memory_bytes) for _ in range(workers)]
        self._idle = [*self._all]
        self._threads = ThreadPoolExecutor(workers, role)
        self._readable: str | None = None  # the clip that was read last
        self._given_up: set[str] = set()  # folders that are missing while other clips are read
        self._is_out = False

    def submit(self, work: Callable[[Decoder], T]) -> Future[T]:
        """`work(decoder)` in one of the threads."""
        return self._threads.submit(self._run, work)

    def _run(self, work: Callable[[Decoder], T]) -> T:
        decoder = self._idle.pop()  # there are as many as threads
        try:
            return work(decoder)
        finally:
            self._idle.append(decoder)

    def until_read(
        self, decoder: Decoder, path: str, read: Callable[[], T], judge: Callable[[T], Try]
    ) -> T:
        """What `read` returns, asked again while the storage fails: LONG_OUT_S where no clip can be
        read, and some seconds where others can: then it is this one. Raises DecoderBroken when the
        storage has failed so long: nothing may be said of any clip then."""
        waiting: Outage | None = None
        is_last = False
        while True:
            decoder.has_read |= self._readable is not None
            found = read()
            error, storage_fails, gone = judge(found)
            if not error:
                self._readable, self._is_out = path, False
            elif gone and self._readable is not None:
                storage_fails = True  # also where this helper has read nothing yet
            if not storage_fails or gone in self._given_up or is_last:
                if is_last and gone:
                    self._given_up.add(gone)
                return found
            is_alive = self._readable is None or self._is_readable(decoder)
            if not (is_alive or self._is_out):
                self._is_out = True
                limit = f"waiting for it up to {units.duration(outage.LONG_OUT_S)}"
                print(f"{path}: {error}: the storage fails, {limit}", file=sys.stderr)
            waiting = waiting or Outage(out_s=outage.LONG_OUT_S)
            if waiting.lasts(is_alive):
                continue
            if not is_alive:
                raise DecoderBroken(
                    f"{path}: {error}: no clip could be read for "
                    f"{units.duration(outage.LONG_OUT_S)}",
                    hint="is its folder there? Finished work is kept; run the same command again "
                    "to continue",
                )
            is_last = True  # the storage may have come back since this clip was asked for

    def _is_readable(self, decoder: Decoder) -> bool:
        """Whether the clip that was read last still can be."""
        return "error" not in decoder.ask({"what": "probe", "path": self._readable})

    def close(self) -> None:
        """End the helpers; what has not begun is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for decoder in self._all:
            decoder.abort()
        self._threads.shutdown(wait=True)
        for decoder in self._all:
            decoder.close()
