"""Collect stacks from every node: one ssh each, py-spy sent along where a node has none."""

from __future__ import annotations

import base64
import functools
import platform
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.payload import PayloadStream
from clusterctl.remote.session_pool import converse
from clusterctl.stacks.model import unpack
from clusterctl.transport.base import Limits, Transport

NATIVE_S = 20.0  # one --native dump of a torch process takes 7 s and stops it meanwhile


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """How processes are dumped."""

    samples: int = 2
    interval_s: float = 2.0
    limit_s: float = 5.0  # one py-spy dump: 0.02 to 0.2 s where nodes are not overloaded
    width: int = 0  # dumps at a time on one node; 0: half its cores, 2 to 8
    py_spy: str | None = None  # path on the nodes
    carry: bool = True
    blocking: bool = False
    sudo: bool = False


_packing = threading.Lock()


@functools.cache
def _packed_py_spy() -> str | None:
    """The head's own py-spy, for a node that has none; None without one."""
    beside = Path(sys.executable).with_name("py-spy")
    path = str(beside) if beside.is_file() else shutil.which("py-spy")
    if path is None:
        return None
    return base64.b64encode(zlib.compress(Path(path).read_bytes(), 6)).decode()


def _py_spy_for(machine: str) -> dict[str, Any]:
    if machine != platform.machine():
        return {"op": "go"}  # another processor's program
    with _packing:  # once, also when many nodes need it at the same time
        data = _packed_py_spy()
    return {"op": "py-spy", "data": data} if data else {"op": "go"}


def collect(
    nodes: Sequence[Node],
    transport: Transport,
    pick: Pick,
    options: DumpOptions,
    *,
    limits: Limits,
    width: int,
) -> Fanout[dict[str, Any]]:
    """A fan-out whose values are the unpacked reports of payload stacks.py."""
    budget_s = limits.command_s + (options.samples - 1) * options.interval_s

    def args(node: Node) -> dict[str, Any]:
        return {
            "pick": pick.to_args(node),
            "samples": options.samples,
            "interval_s": options.interval_s,
            "limit_s": options.limit_s,
            "budget_s": budget_s,
            "width": options.width,
            "py_spy": options.py_spy,
            "carry": options.carry,
            "blocking": options.blocking,
        }

    return _fan_out(nodes, transport, args, budget_s + 10.0, options.sudo, limits, width)


def collect_native(
    pids: Mapping[Node, Sequence[int]],
    transport: Transport,
    py_spy: Mapping[Node, str | None],
    *,
    given: str | None = None,
    sudo: bool,
    limits: Limits,
    width: int,
) -> Fanout[dict[str, Any]]:
    """Native stacks of a few processes: each is stopped for seconds, then woken if still stopped.

    `py_spy` is what `collect` used on each node, `given` the path that the user named.
    """

    def args(node: Node) -> dict[str, Any]:
        return {
            "op": "native",
            "pids": list(pids[node]),
            "py_spy": py_spy[node],
            "given": given,
            "limit_s": NATIVE_S,
        }

    patience_s = max((len(found) for found in pids.values()), default=0) * NATIVE_S + 5.0
    return _fan_out(list(pids), transport, args, patience_s, sudo, limits, width)


def _fan_out(
    nodes: Sequence[Node],
    transport: Transport,
    args: Any,
    patience_s: float,
    sudo: bool,
    limits: Limits,
    width: int,
) -> Fanout[dict[str, Any]]:
    def talk(stream: PayloadStream, _connect_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience_s
        while True:
            message = stream.receive(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise TransportError("command", f"no stacks in {patience_s:g} s")
            if message["type"] == "found":
                stream.send(_py_spy_for(message["machine"]))
            elif message["type"] == "report":
                return unpack(message["packed"])

    return converse(
        nodes, transport, limits, "stacks", args, talk, timeout_s=patience_s, width=width, sudo=sudo
    )
