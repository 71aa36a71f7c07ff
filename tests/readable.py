"""Descriptors of stand-in nodes, watched by one thread that calls as a connection's thread does."""

from __future__ import annotations

import functools
import os
import select
import threading
from collections.abc import Callable


class _Watch:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, descriptor: int, call: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)
        self._calls[descriptor] = call
        # A closed descriptor leaves by itself; its number may come again.
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                self._calls[descriptor]()


_watch = functools.cache(_Watch)


def on_readable(descriptor: int, call: Callable[[], None]) -> None:
    """Call from another thread whenever more has come; the descriptor no longer blocks."""
    _watch().add(descriptor, call)
