"""The port where ranks meet, opened on every node: who reaches whom, and at which address."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from checks.facts import DoorSeen, Maybe, Unknown
from clusterctl.nodes import Node
from clusterctl.preflight.active.plan import Plan
from clusterctl.remote.session_pool import Answer, SessionPool

PROBE_S = 8.0  # launch/rendezvous.py gives each address 3 s, all at once
MOST_ADDRESSES = 4


class PortProbe:
    """Opens the port on each node and connects along the ring; two more nodes try a failed port."""

    def __init__(self, pool: SessionPool, plan: Plan, machines: Mapping[str, str]) -> None:
        self._pool, self._plan, self._machines = pool, plan, machines
        self._word = secrets.token_hex(8)
        self._ports: dict[str, int] = {}
        self._holders: dict[str, str] = {}
        self._candidates: dict[str, list[str]] = {}
        self._errors: dict[
            str, dict[str, list[str | None]]
        ] = {}  # listener -> prober -> an error or None for each address

    def test(self) -> dict[str, Maybe[DoorSeen]]:
        """What was found out about each node's port."""
        self._open()
        try:
            ring = {name: others[:1] for name, others in self._probers().items()}
            first = next((name for name in self._plan.nodes if name in self._ports), None)
            if first is not None:
                ring[first] = self._probers()[first]
            self._probe(ring)
            shut = [name for name in self._ports if not self._heard(name) or self._deaf(name)]
            self._probe({name: self._witnesses(name) for name in shut})
        finally:
            names = {name: {"op": "close_doors"} for name in self._ports}
            self._pool.ask(names, 5.0)
        return {name: self._seen(name) for name in self._plan.nodes}

    def addresses(self, nodes: Sequence[Node]) -> dict[str, str]:
        """Where others reach each node: the first address that worked, else the likeliest."""
        found = {}
        for node in nodes:
            candidates = self._candidates.get(node.name) or [node.host or node.name]
            tried = list(self._errors.get(node.name, {}).values())
            worked = [
                address
                for at, address in enumerate(candidates)
                if any(at < len(whys) and whys[at] is None for whys in tried)
            ]
            found[node.name] = (worked or candidates)[0]
        return found

    def _open(self) -> None:
        """The very port, but for names of one machine: they cannot all have it."""
        turns: dict[str, int] = {}
        orders = {}
        for name in self._plan.nodes:
            machine = self._machines.get(name, name)
            turn = turns[machine] = turns.get(machine, -1) + 1
            ports = [self._plan.port + turn]
            if turn:  # a second name of one machine proves nothing about the port itself
                ports += [self._plan.port + turn + more for more in (1000, 2000, 3000)]
            orders[name] = {"op": "door", "ports": ports, "word": self._word}
        answers = self._pool.ask(orders, 5.0)
        hosts = {node.name: node.host or node.name for node in self._pool.nodes}
        for name, answer in answers.items():
            if isinstance(answer.get("port"), int):
                self._ports[name] = answer["port"]
            else:
                self._holders[name] = str(
                    answer.get("holder") or answer.get("error") or "no reason"
                )
            own = [hosts[name], *answer.get("addresses", ())]
            self._candidates[name] = list(dict.fromkeys(own))[:MOST_ADDRESSES]

    def _probers(self) -> dict[str, list[str]]:
        """For each open port the other nodes, beginning with the next one in the ring."""
        names = [name for name in self._plan.nodes if name in self._candidates]
        return {
            name: [*names[at + 1 :], *names[:at]]
            for at, name in enumerate(names)
            if name in self._ports
        }

    def _witnesses(self, name: str) -> list[str]:
        """Two more nodes for a port that failed, which have not tried it yet."""
        tried = self._errors.get(name, {})
        return [one for one in self._probers()[name] if one not in tried][:2]

    def _probe(self, probers: Mapping[str, Sequence[str]]) -> None:
        """`probers` holds the nodes that try each port."""
        where: dict[str, list[tuple[str, str]]] = {}
        for name, others in probers.items():
            for other in others:
                where.setdefault(other, []).extend((name, one) for one in self._candidates[name])
        orders: dict[str, dict[str, Any]] = {
            other: {
                "op": "knock",
                "word": self._word,
                "where": [[address, self._ports[name]] for name, address in targets],
            }
            for other, targets in where.items()
        }
        answers: dict[str, Answer] = self._pool.ask(orders, PROBE_S) if orders else {}
        for other, targets in where.items():
            whys = answers.get(other, {}).get("why")
            if whys is None:
                continue  # lost: it says nothing about the ports
            for (name, _), why in zip(targets, whys, strict=True):
                self._errors.setdefault(name, {}).setdefault(other, []).append(why)

    def _heard(self, name: str) -> list[str]:
        return [other for other, whys in self._errors.get(name, {}).items() if None in whys]

    def _deaf(self, name: str) -> dict[str, str]:
        return {
            other: next(why for why in whys if why is not None)
            for other, whys in self._errors.get(name, {}).items()
            if None not in whys
        }

    def _seen(self, name: str) -> Maybe[DoorSeen]:
        if name not in self._candidates:
            return Unknown(f"could not be asked: {self._pool.lost.get(name, 'no answer')}")
        if name not in self._ports:
            return DoorSeen(None, self._holders.get(name, ""))
        return DoorSeen(self._ports[name], "", tuple(self._heard(name)), self._deaf(name))
