"""The whole look at a node that preflight takes: one payload, then its clock against ours.

The channel stays open behind the answer; eight questions for the time go over it and the shortest
round trip counts. A head that talks to many nodes at once is itself slow to read its clock: the
error bound of each node says how slow.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.run_payload import tool_timeout
from clusterctl.transport.base import Connection, Limits, Progress, Transport

PINGS = 8
PING_TIMEOUT_S = 2.0


def look(
    nodes: Sequence[Node],
    transport: Transport,
    limits: Limits,
    args: Mapping[str, Any] | Callable[[Node], Mapping[str, Any]],
    *,
    width: int,
    pings: int = PINGS,
) -> Fanout[dict[str, Any]]:
    """A fan-out whose values are census envelopes with everything in them; `args` may go by node.

    Each has a `head` beside its sections: `connect_s`, and `samples`, times in seconds as (sent,
    the node's, received).
    """
    waves = max(1, math.ceil(len(nodes) / width))
    one_s = limits.tcp_s + limits.handshake_s + limits.channel_s + limits.command_s
    nvml = importlib.util.find_spec("pynvml") is not None
    plain = {"tool_timeout_s": tool_timeout(limits), "everything": True, "nvml": nvml}

    def work(node: Node, progress: Progress) -> dict[str, Any]:
        begun = time.monotonic()
        connection = transport.connect(node, limits, progress)
        try:
            connect_s = time.monotonic() - begun
            wanted = {**plain, **(args(node) if callable(args) else args), "pings": pings}
            return _one(connection, wanted, limits.command_s, connect_s)
        finally:
            connection.close()

    return Fanout(nodes, work, deadline_s=limits.run_s or one_s * waves, width=width)


def _one(
    connection: Connection, args: dict[str, Any], timeout_s: float, connect_s: float
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    held = ship.stream(connection, "census", args, nvml=args["nvml"], start_timeout_s=timeout_s)
    with held:
        try:
            answer = held.receive(max(0.0, deadline - time.monotonic()))
        except EOFError:
            said = held.stderr_tail().strip().splitlines()
            raise TransportError(
                "command", f"the census ended without an answer: {said[-1] if said else 'no word'}"
            ) from None
        if answer is None:
            raise TransportError("command", f"no answer in {timeout_s:g} s")
        if "sections" not in answer:
            raise TransportError("parse", "the census says the time before anybody asked")
        samples = list(_ask_time(held, args["pings"]))
        return {**answer, "noise": held.noise, "head": {"connect_s": connect_s, "samples": samples}}


def _ask_time(held: ship.PayloadStream, times: int) -> list[tuple[float, float, float]]:
    samples = []
    try:
        for _ in range(times):
            sent = time.time()
            held.send({"ping": 1})
            reply = held.receive(PING_TIMEOUT_S)
            received = time.time()
            if reply is None or "time_s" not in reply:
                break
            samples.append((sent, reply["time_s"], received))
    except (EOFError, TransportError):
        pass  # what it knows of itself is here already; time.skew says that nobody knows the rest
    return samples
