"""The port where ranks meet, opened on every node: who reaches whom, and at which address."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from checks.facts import Maybe, PortSeen, Unknown
from clusterctl.nodes import Node, grouped
from clusterctl.preflight.active.plan import Plan
from clusterctl.remote.session_pool import SessionPool

PROBE_S = 8.0  # launch/rendezvous.py gives each address 3 s, all at once
MOST_ADDRESSES = 4


class PortProbe:
    """Opens the port on each node and connects along the ring; two more nodes try a failed port."""

    def __init__(self, pool: SessionPool, plan: Plan, machines: Mapping[str, str]) -> None:
        self._pool, self._plan, self._machines = pool, plan, machines
        self._word = secrets.token_hex(8)
        self._ports: dict[str, int] = {}
        self._holders: dict[str, str] = {}  # who has the port of a node that could not open it
        self._addresses: dict[str, list[str]] = {}  # where a node may be reached, likeliest first
        # listener -> prober -> an error or None for each address
        self._errors: dict[str, dict[str, list[str | None]]] = {}

    def test(self) -> dict[str, Maybe[PortSeen]]:
        """What was found out about each node's port."""
        self._open()
        try:
            # The next node in the ring tries each port, all nodes that of the first.
            ring = {name: self._others(name)[:1] for name in self._ports}
            for name in list(ring)[:1]:
                ring[name] = self._others(name)
            self._probe(ring)
            again = {}
            for name in ring:
                if not self._reached(name) or self._unreached(name):
                    tried = self._errors.get(name, {})
                    again[name] = [one for one in self._others(name) if one not in tried][:2]
            self._probe(again)
        finally:
            self._pool.ask({name: {"op": "close_ports"} for name in self._ports}, 5.0)
        return {name: self._seen(name) for name in self._plan.nodes}

    def addresses(self, nodes: Sequence[Node]) -> dict[str, str]:
        """Where others reach each node: the first address that worked, else the likeliest."""
        found = {}
        for node in nodes:
            addresses = self._addresses.get(node.name) or [node.address]
            tries = zip(addresses, *self._errors.get(node.name, {}).values(), strict=False)
            worked = [address for address, *whys in tries if None in whys]
            found[node.name] = (worked or addresses)[0]
        return found

    def _open(self) -> None:
        """The same port on all nodes; other ports for further names of one machine."""
        turns: dict[str, int] = {}
        orders = {}
        for name in self._plan.nodes:
            machine = self._machines.get(name, name)
            turn = turns[machine] = turns.get(machine, -1) + 1
            ports = [self._plan.port + turn]
            if turn:  # a second name of one machine proves nothing about the port itself
                ports += [self._plan.port + turn + more for more in (1000, 2000, 3000)]
            orders[name] = {"op": "listen", "ports": ports, "word": self._word}
        answers = self._pool.ask(orders, 5.0)
        hosts = {node.name: node.address for node in self._pool.cluster.nodes}
        for name in [name for name in self._plan.nodes if name in answers]:
            answer = answers[name]
            if answer.get("port") is not None:
                self._ports[name] = answer["port"]
            else:
                self._holders[name] = answer.get("holder") or answer.get("error") or "no reason"
            own = [hosts[name], *answer.get("addresses", ())]
            self._addresses[name] = list(dict.fromkeys(own))[:MOST_ADDRESSES]

    def _others(self, name: str) -> list[str]:
        """The other nodes that answered, beginning with the next one in the ring."""
        names = [one for one in self._plan.nodes if one in self._addresses]
        at = names.index(name)
        return [*names[at + 1 :], *names[:at]]

    def _probe(self, probers: Mapping[str, Sequence[str]]) -> None:
        """`probers` holds the nodes that try each port."""
        pairs = [(other, name) for name, others in probers.items() for other in others]
        targets = grouped(
            (other, (name, at)) for other, name in pairs for at in self._addresses[name]
        )
        orders = {}
        for other, addresses in targets.items():
            where = [[address, self._ports[name]] for name, address in addresses]
            orders[other] = {"op": "probe", "word": self._word, "where": where}
        answers = self._pool.ask(orders, PROBE_S)
        for other, addresses in targets.items():
            whys = answers.get(other, {}).get("why", ())  # lost: nothing is known about the ports
            for (name, _), why in zip(addresses, whys, strict=False):
                self._errors.setdefault(name, {}).setdefault(other, []).append(why)

    def _reached(self, name: str) -> list[str]:
        return [other for other, whys in self._errors.get(name, {}).items() if None in whys]

    def _unreached(self, name: str) -> dict[str, str]:
        tries = self._errors.get(name, {})
        return {other: str(whys[0]) for other, whys in tries.items() if None not in whys}

    def _seen(self, name: str) -> Maybe[PortSeen]:
        if name not in self._addresses:
            return Unknown(f"could not be asked: {self._pool.lost.get(name, 'no answer')}")
        if name not in self._ports:
            return PortSeen(None, self._holders[name])
        return PortSeen(self._ports[name], "", tuple(self._reached(name)), self._unreached(name))
