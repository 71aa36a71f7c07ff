"""All that preflight collects from a node: one payload, then its clock against ours.

The channel stays open after the answer; eight questions for the time go over it and the shortest
round trip counts. A head that talks to many nodes at once is itself slow to read its clock, which
the error bound of each node includes.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.payload import PayloadStream
from clusterctl.remote.run_payload import converse, tool_timeout
from clusterctl.transport.base import Limits, Transport

PINGS = 8
PING_TIMEOUT_S = 2.0


def collect(
    nodes: Sequence[Node],
    transport: Transport,
    limits: Limits,
    args: Callable[[Node], Mapping[str, Any]],
    *,
    width: int,
) -> Fanout[dict[str, Any]]:
    """A fan-out whose values are census envelopes with everything in them.

    Each has a `head` beside its sections: `connect_s`, and `samples`, times in seconds as (sent,
    the node's, received).
    """
    nvml = importlib.util.find_spec("pynvml") is not None
    timeout_s = limits.command_s
    plain = {"tool_timeout_s": tool_timeout(limits), "everything": True, "nvml": nvml}

    def wanted(node: Node) -> dict[str, Any]:
        return {**plain, **args(node), "pings": PINGS}

    def talk(stream: PayloadStream, connect_s: float) -> dict[str, Any]:
        answer = stream.answer(timeout_s - (time.monotonic() - stream.started_s))
        if "sections" not in answer:
            raise TransportError("parse", "the census answers a question for the time too early")
        head = {"connect_s": connect_s, "samples": _ask_time(stream)}
        return {**answer, "noise": stream.noise, "head": head}

    return converse(
        nodes,
        transport,
        limits,
        "census",
        wanted,
        talk,
        timeout_s=timeout_s,
        width=width,
        nvml=nvml,
        start_timeout_s=timeout_s,
    )


def _ask_time(stream: PayloadStream) -> list[tuple[float, float, float]]:
    samples = []
    try:
        for _ in range(PINGS):
            sent = time.time()
            stream.send({"ping": 1})
            reply = stream.receive(PING_TIMEOUT_S)
            received = time.time()
            if reply is None or "time_s" not in reply:
                break
            samples.append((sent, reply["time_s"], received))
    except (EOFError, TransportError):
        pass  # its own facts have arrived; time.skew says that the offset is unknown
    return samples
