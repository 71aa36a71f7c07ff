"""A device that works off a queue in scripted time, and events on it: for tests of clocks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Device:
    """Host and device have one time, in milliseconds; the host runs ahead until it synchronises."""

    host_ms: float = 0.0
    free_ms: float = 0.0  # when it has done all that is launched
    known_ms: float = 0.0  # up to here the host knows that it is done
    events: list[Event] = field(default_factory=list)

    def launch(self, work_ms: float, host_ms: float = 0.01) -> None:
        self.host_ms += host_ms
        self.free_ms = max(self.free_ms, self.host_ms) + work_ms

    def wait_on_host(self, wait_ms: float) -> None:
        self.host_ms += wait_ms

    def synchronise(self) -> None:
        self.host_ms = self.known_ms = max(self.free_ms, self.host_ms)

    def event(self) -> Event:
        self.events.append(Event(self))
        return self.events[-1]


@dataclass
class Event:
    """Like torch.cuda.Event: recording waits for nothing, reading what is not done fails."""

    device: Device
    reached_ms: float | None = None

    def record(self) -> None:
        self.reached_ms = max(self.device.free_ms, self.device.host_ms)

    def elapsed_time(self, end: Event) -> float:
        assert self.reached_ms is not None
        assert end.reached_ms is not None
        if max(self.reached_ms, end.reached_ms) > self.device.known_ms:
            raise RuntimeError("device not ready: both events must be completed")
        return end.reached_ms - self.reached_ms
