"""Talk to the nodes about time: questions over an open channel, the shortest round trip counts.

A single question is wrong by 10 to 20 ms on a busy machine (measured); so each node is asked until
its error bound is small or its time is up, and only a few nodes at once: a head that talks to many
in one interpreter is itself slow to read its clock.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from checks import units
from clusterctl.errors import TransportError
from clusterctl.payload.proc_files import BOOTTIME, wall_minus_boot
from clusterctl.remote.cluster import Answers, Cluster
from clusterctl.remote.fanout import in_order
from clusterctl.remote.payload import PayloadStream
from clusterctl.transport.base import Limits

QUESTIONS = 12
GOOD_ERROR_S = 0.001  # small enough for a limit of 10 ms
BUDGET_S = 1.5  # for all questions to one node; more are asked while the bound is not good
ANSWER_S = 2.0  # for one of them
AT_ONCE = 4
TURN_S = 1.0  # a node that hangs keeps nobody's turn longer than this

Triple = tuple[float, float, float]
_numbers = itertools.count(1)


class HeadClock:
    """The head's wall clock as it was at the start, carried on by a clock that is never stepped.

    A step of the head's own clock so shows as the head's, and not as one of every node. That clock
    counts on while the head sleeps: else every node would be ahead by the time asleep.
    """

    def __init__(self) -> None:
        self._first_s = wall_minus_boot()

    def now_s(self) -> float:
        return self._first_s + time.clock_gettime(BOOTTIME)

    def moved_s(self) -> float:
        """How far the head's wall clock was stepped since the start."""
        return wall_minus_boot() - self._first_s


class Times(NamedTuple):
    """A node's answers: (sent, its time, received) in seconds, and its wall minus boot time."""

    samples: tuple[Triple, ...]
    wall_minus_boot_s: float


def ask_time(
    stream: PayloadStream,
    now_s: Callable[[], float],
    *,
    questions: int = QUESTIONS,
    budget_s: float = BUDGET_S,
) -> Times:
    """At least one and about `questions` exchanges; more until the bound is good or time is up.

    Raises `TransportError` when not even one was answered, `EOFError` when the payload has ended.
    """
    started = time.monotonic()
    samples: list[Triple] = []
    wall_minus_boot_s, best_s = 0.0, math.inf
    while not samples or (
        time.monotonic() - started < budget_s
        and (len(samples) < questions or best_s / 2 > GOOD_ERROR_S)
    ):
        number = next(_numbers)
        sent_s = now_s()
        stream.send({"op": "time", "id": number})
        # A late answer to an earlier question would be taken for a quick one to this.
        reply = receive_one(stream, "id", ANSWER_S, number)
        received_s = now_s()
        if reply is None:
            if samples:
                break
            why = f"no answer to a question for the time in {units.duration(ANSWER_S)}"
            raise TransportError("command", why)
        samples.append((sent_s, reply["time_s"], received_s))
        best_s = min(best_s, received_s - sent_s)
        wall_minus_boot_s = reply["time_s"] - reply["boottime_s"]
    return Times(tuple(samples), wall_minus_boot_s)


def receive_one(
    stream: PayloadStream, key: str, timeout_s: float, value: Any = None
) -> dict[str, Any] | None:
    """The first answer with that key (and value, if any); others are dropped. None: not in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        reply = stream.receive(max(0.0, deadline - time.monotonic()))
        if reply is None or (key in reply and value in (None, reply[key])):
            return reply


def collect_clocks(cluster: Cluster, head: HeadClock) -> Answers:
    """As the census's envelopes, with the sections about time, `connect_s` and `samples`."""
    turns, timeout_s = threading.BoundedSemaphore(AT_ONCE), cluster.limits.command_s

    def talk(stream: PayloadStream, connect_s: float) -> dict[str, Any]:
        is_mine = turns.acquire(timeout=TURN_S)
        try:
            samples = ask_time(stream, head.now_s).samples
        finally:
            if is_mine:
                turns.release()
        stream.send({"op": "state"})
        envelope = receive_one(stream, "sections", timeout_s)
        if envelope is None:
            raise TransportError("command", f"no answer in {units.duration(timeout_s)}")
        about = {"connect_s": connect_s, "samples": samples}
        return {**envelope, "noise": stream.noise, "head": about}

    args = clock_args(cluster.limits)
    results = cluster.converse(
        "clock", lambda node: args, talk, timeout_s=timeout_s, start_timeout_s=timeout_s
    )
    return in_order(cluster.nodes, results)


def clock_args(limits: Limits) -> dict[str, Any]:
    return {"tool_timeout_s": min(5.0, limits.command_s / 3)}
