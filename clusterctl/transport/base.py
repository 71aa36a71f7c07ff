"""The interface between clusterctl and ssh: what a backend offers, and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from checks import units
from clusterctl.nodes import Node

# resolve: host name to address; banner: the server's ssh version line; start: until the remote
# interpreter prints its marker; parse: its answer cannot be read.
PHASES = "resolve tcp banner kex hostkey auth channel start command parse".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for each part of talking to one node."""

    tcp_s: float = 3.0
    handshake_s: float = 7.0  # banner + kex + host key + auth
    channel_s: float = 3.0
    command_s: float = 30.0
    run_s: float | None = None  # of the whole fan-out; None: the sum of the others

    def deadline_s(self, timeout_s: float, rounds: int = 1) -> float:
        """For `rounds` of nodes, of which one may take `timeout_s` beyond connecting."""
        one_s = self.tcp_s + self.handshake_s + self.channel_s + timeout_s
        return self.run_s or one_s * max(1, rounds)

    @property
    def total_s(self) -> float:
        return self.deadline_s(self.command_s)

    @property
    def tool_s(self) -> float:
        """For one tool of the census: two in a row and the transfer fit the command limit."""
        return min(10.0, self.command_s / 3)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A node that did not answer: in which phase, after how many seconds in it, and why."""

    phase: str
    seconds: float
    message: str
    hint: str | None = None

    def sentence(self) -> str:
        return f"{self.phase} {units.duration(self.seconds)}: {self.message}"


@dataclass(slots=True)
class Progress:
    """The current phase of one node; the transport writes it, display and deadline read it."""

    phase: str = "queued"
    since: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)  # retries and accepted keys, for -v
    passed: list[tuple[str, float]] = field(default_factory=list)  # phases left and their seconds

    def enter(self, phase: str) -> None:
        now = time.monotonic()
        if self.phase != phase:
            self.passed.append((self.phase, now - self.since))
        self.phase, self.since = phase, now

    def phases(self) -> tuple[tuple[str, float], ...]:
        """(phase, seconds) from the first to the current one, for -vv."""
        return (*self.passed, (self.phase, time.monotonic() - self.since))


class Stream(Protocol):
    """A remote command that keeps running; its stdin is its lease: closing it ends a payload."""

    def write(self, data: bytes) -> None:
        """All of `data`, or `TransportError` when the node takes none of it for 10 s."""

    def read_line(self, timeout_s: float) -> bytes | None:
        """Next line of stdout without its newline; None after `timeout_s` without one.

        Raises `EOFError` after the last one, `TransportError` when the connection is gone.
        """

    def read_some(self, limit: int) -> bytes:
        """At most `limit` bytes that have arrived, perhaps none. Never waits; raises as above."""

    def on_readable(self, call: Callable[[], None]) -> None:
        """Call `call`, which must be quick, from any thread whenever there may be something new."""

    def close_stdin(self) -> None: ...

    def wait(self, timeout_s: float) -> int | None:
        """Exit status, negative for a signal; None while it runs. Raises `TransportError`."""

    def stderr_tail(self) -> str: ...

    def kill(self) -> None:
        """Send the command SIGTERM, where the node can."""

    def close(self) -> None: ...


class Connection(Protocol):
    def stream(self, command: str, stdin: bytes) -> Stream:
        """Start `command`, send `stdin`, leave it open. Raises `TransportError`."""

    def close(self) -> None: ...


class Transport(Protocol):
    """A way to reach nodes. Safe to call from many threads at once."""

    def connect(self, node: Node, limits: Limits, progress: Progress) -> Connection:
        """Raises `TransportError`; never waits longer than the limits of its phases."""
