"""Seconds by phase on a GPU, where a launch returns long before its work is done.

An event is recorded on the current stream at each border of a phase. The events are read after the
step's own synchronisation, so that timing adds none. A phase lasts from the moment that the device
reaches its first event to the moment that it reaches its last one: work that is launched ahead
counts where it runs, and waiting of the host counts only as far as the device is idle meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from trainer.engine.base import Engine
from trainer.runlog.telemetry import PHASES, Clock, Heartbeat


class TimingEvent(Protocol):
    """What is used of a torch.cuda.Event."""

    def record(self) -> None:
        """On the current stream."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds to `end`; raises RuntimeError when the device has not reached both."""


def _cuda_event() -> TimingEvent:
    return torch.cuda.Event(enable_timing=True)


@dataclass
class DeviceClock(Clock):
    """A `Clock` whose `take` gives seconds of the device; call that after a synchronisation.

    `own_s` of what was taken is this rank's work that does not depend on other ranks: data, encode,
    forward where it is local (ZeRO, DDP), and backward to `mark_computed` where the engine calls
    that. `seconds` has the host's, as in `Clock`.
    """

    make_event: Callable[[], TimingEvent] = _cuda_event
    forward_is_local: bool = True
    own_s: float = 0.0
    _spans: list[tuple[str, TimingEvent, TimingEvent]] = field(default_factory=list)
    _own: list[tuple[TimingEvent, TimingEvent]] = field(default_factory=list)
    _used: list[TimingEvent] = field(default_factory=list)
    _free: list[TimingEvent] = field(default_factory=list)
    _start: TimingEvent | None = None  # of the phase under way

    @contextlib.contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        with super().phase(name, step):
            start = self._start = self._record()
            try:
                yield
            finally:
                end, self._start = self._record(), None
                self._spans.append((name, start, end))
                if name in ("data", "encode") or (name == "forward" and self.forward_is_local):
                    self._own.append((start, end))

    def mark_computed(self) -> None:
        """What follows in the phase under way waits for other ranks."""
        if self._start is not None:
            self._own.append((self._start, self._record()))

    def take(self) -> dict[str, float]:
        super().take()
        taken = dict.fromkeys(PHASES, 0.0)
        for name, start, end in self._spans:
            taken[name] += start.elapsed_time(end) / 1e3
        self.own_s = sum(start.elapsed_time(end) for start, end in self._own) / 1e3
        self._free += self._used
        self._spans, self._own, self._used = [], [], []
        return taken

    def _record(self) -> TimingEvent:
        event = self._free.pop() if self._free else self.make_event()
        event.record()
        self._used.append(event)
        return event


def clock_for(engine: Engine, heartbeat: Heartbeat | None) -> Clock:
    """On a GPU it times the device, and the engine marks where this rank's own work ends."""
    if engine.device.type == "cpu":
        return Clock(heartbeat)
    clock = DeviceClock(heartbeat, forward_is_local=engine.forward_is_local)
    engine.on_computed = clock.mark_computed
    return clock
