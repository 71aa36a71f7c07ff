"""Nodes that answer every payload with recorded or written text: what commands print depends on nothing else.

`tests/clusterctl/hostile/node.py` has the connection; here is what the nodes say on it.
"""

from __future__ import annotations

import base64
import json
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.settings import Settings
from clusterctl.transport.base import Limits, Progress
from tests.checks import envelopes
from tests.clusterctl.hostile.node import (
    MARK,
    HostileConnection,
    HostileStream,
    Orders,
    asked,
    next_order,
)
from tests.interface.shell import Shell

Sections = dict[str, dict[str, Any]]
Answer = dict[str, Any]

BASIC = {"gpus", "gpu_processes", "gpu_details", "nvlink", "topology", "nvml", "pci", "nvidia_proc", "meminfo", "loadavg", "machine"}  # fmt: skip
OF_LAUNCH = {"network", "addresses", "name:@", "reach", "system", "ib"}
OF_CLOCK = {"began", "adjtimex", "chrony_tracking", "chrony_sources", "clocksource", "log_ahead", "processes"}  # fmt: skip
# Sections that are there only when the head has named what it wants.
ASKED = {"python", "torch", "git_head", "git_status", "files", "token", "wandb", "disk:/data", "port:29500", "name:n1"}  # fmt: skip
BOOTED_S = 1.7e9
JUMP_AFTER_S = 0.6
DEAD = TransportError("tcp", "connection refused", hint="is sshd running there?")


@dataclass
class Machine:
    """One node. `sections` of its census may be replaced; `says` answers other verbs."""

    name: str
    address: str
    sections: Sections = field(default_factory=dict)
    says: dict[str, Callable[[dict[str, Any], Orders], Iterable[Answer]]] = field(
        default_factory=dict
    )
    ahead_s: float = 0.0  # its wall clock against ours
    jump_s: float = 0.0  # of it, JUMP_AFTER_S after the first question for the time
    noise: str = ""

    def answer(self, verb: str, args: dict[str, Any], orders: Orders) -> Iterator[bytes]:
        """All that the node writes, from its shell's greeting on."""
        yield self.noise.encode() + MARK
        own = {"census": self._census, "clock": self._clock, **self.says}
        for one in own[verb](args, orders):
            yield json.dumps(one).encode() + b"\n"

    def envelope(self, verb: str, **more: Any) -> Answer:
        node = {
            "hostname": self.name, "user": "me", "python": "3.10.12", "boot_id": f"boot-{self.name}",
            "time_s": 1800000001.0, "boottime_s": 90001.0,
        }  # fmt: skip
        return {"schema": 1, "verb": verb, "node": node, "sections": {}, **more}

    def _census(self, args: dict[str, Any], orders: Orders) -> Iterator[Answer]:
        found = self._sections(args)
        yield self.envelope("census", sections=found, cpu_s=0.05)
        while args.get("pings") and next_order(orders) is not None:
            yield {"time_s": time.time() + self.ahead_s}

    def section(self, name: str, *, nvml: bool = False) -> dict[str, Any]:
        """A section of its census, as it is now."""
        return {**envelopes.sections(by_nvml=nvml), **self.sections}[name]

    def _sections(self, args: dict[str, Any]) -> Sections:
        every = {**envelopes.sections(by_nvml=bool(args.get("nvml"))), **self.sections}
        wanted = {name: every[name] for name in every if name not in ASKED}
        if not args.get("everything"):
            more = OF_LAUNCH if args.get("launch") else set()
            wanted = {name: wanted[name] for name in wanted if name in BASIC | more}
        if args.get("growth_s") == 0.0:
            wanted["ib_again"] = wanted["ib"]
        named = {
            "python": args.get("python"), "torch": args.get("python"), "git_head": args.get("workdir"), "git_status": args.get("workdir"),
            "files": args.get("files"), "wandb": args.get("wandb"),
        }  # fmt: skip
        wanted |= {name: every[name] for name, is_asked in named.items() if is_asked}
        wanted |= {f"disk:{path}": every["disk:/data"] for path in args.get("paths") or ()}
        wanted |= {f"port:{port}": every["port:29500"] for port in args.get("ports") or ()}
        wanted |= {f"name:{name}": every["name:n1"] for name in args.get("names") or ()}
        if args.get("token"):
            wanted["token"] = envelopes.raw(Path(args["token"]).read_text())
        return wanted

    def _clock(self, args: dict[str, Any], orders: Orders) -> Iterator[Answer]:
        every = {**envelopes.sections(), **self.sections}
        asked_s = 0.0
        while (order := next_order(orders)) is not None:
            if order["op"] == "time":
                asked_s = asked_s or time.monotonic()
                is_late = time.monotonic() - asked_s > JUMP_AFTER_S
                now_s = time.time()
                wall_s = now_s + self.ahead_s + (self.jump_s if is_late else 0.0)
                yield {"time_s": wall_s, "boottime_s": now_s - BOOTED_S, "id": order["id"]}
            elif order["op"] == "state":
                state = self.envelope("clock", cpu_s=0.05)
                kept = {name: every[name] for name in every if name in OF_CLOCK}
                yield {"node": state["node"], "sections": kept, "cpu_s": 0.05}
            elif order["op"] == "boot":
                yield {"boot_id": f"boot-{self.name}"}


def packed(report: dict[str, Any]) -> Answer:
    """A report of stacks as the payload sends it."""
    data = base64.b64encode(zlib.compress(json.dumps(report).encode())).decode()
    return {"type": "report", "packed": data}


class _Connection(HostileConnection):
    """Its streams have something to say again and again, as a watched node has."""

    def stream(self, command: str, stdin: bytes) -> HostileStream:
        orders: Orders = queue.SimpleQueue()
        return _Stream(iter(self._says(*asked(stdin), orders)), orders)


class _Stream(HostileStream):
    def on_readable(self, call: Callable[[], None]) -> None:
        def again() -> None:
            while not self.closed.wait(0.05):
                call()

        threading.Thread(target=again, daemon=True).start()


class Cluster:
    """Machines by name and the transport that reaches them; `nodes[name] = DEAD` is a dead one."""

    def __init__(self, names: Iterable[str]) -> None:
        self.nodes: dict[str, Machine | TransportError] = {
            name: Machine(name, f"10.0.0.{number}") for number, name in enumerate(names, 1)
        }

    def __getitem__(self, name: str) -> Machine:
        found = self.nodes[name]
        assert isinstance(found, Machine)
        return found

    def kill(self, name: str) -> None:
        self.nodes[name] = DEAD

    def connect(self, node: Any, limits: Limits, progress: Progress) -> HostileConnection:
        progress.enter("tcp")
        found = self.nodes[node.name]
        if isinstance(found, TransportError):
            raise found
        progress.enter("command")
        return _Connection(found.answer)


def start(shell: Shell, *names: str) -> Cluster:
    """A cluster for the shell's commands, with a hostfile nodes.txt."""
    cluster = Cluster(names)
    lines = [f"{one.name} host={one.address}" for one in map(cluster.__getitem__, names)]
    Path("nodes.txt").write_text("\n".join(lines) + "\n")
    shell.patches.setattr(Settings, "transport", lambda _: cluster)
    return cluster
