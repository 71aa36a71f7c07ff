"""The network below NCCL: names, reachability, packet size, link speed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from checks.compare import compare, each_node
from checks.facts import NOT_ASKED, Fleet, Maybe, Network, NodeFacts, Unknown, known
from checks.finding import Finding, fail, need, passed, skip, unknown, warn
from checks.registry import check


@check("net.names", "fleet", advisory=True)
def names(fleet: Fleet) -> Iterator[Finding]:
    """Names mean the same machine everywhere.

    Why: gloo binds to what the own name is, on Debian 127.0.1.1; our launcher names the interface.
    Bad: WARN if its own name is a loopback address, FAIL if a name differs from most nodes
    How: getaddrinfo on each node for its own name and for the first node's
    Fix: in its /etc/hosts: ADDRESS NAME
    """
    yield from each_node(fleet, "network", _own_name)
    networks = known(node.network for node in fleet.reached)
    for name in sorted({name for network in networks for name in network.names} - {"@"}):
        resolves = any(isinstance(network.names.get(name), tuple) for network in networks)

        def read(node: NodeFacts, name: str = name, resolves: bool = resolves) -> Maybe[str] | None:
            if isinstance(node.network, Unknown):
                return None
            found = node.network.names.get(name, Unknown("not tried"))
            if isinstance(found, Unknown):
                return f"nothing ({found})" if found.is_absence and resolves else found
            # The node itself may see its name as a loopback address.
            return None if all(map(_is_loopback, found)) else " ".join(found)

        yield from compare(fleet, read, f"{name} is", fix=f"getent ahosts {name}; /etc/hosts")


def _own_name(node: NodeFacts, network: Network) -> Finding:
    own = network.names.get("@", NOT_ASKED)
    if isinstance(own, Unknown) and own.is_absence and own != NOT_ASKED:
        return warn(f"its own name has no address: {own}")
    own = need(own, "its own name: ")
    if own and all(map(_is_loopback, own)) and not node.loopback:
        fix = "in its /etc/hosts: ADDRESS NAME instead of 127.0.1.1 NAME"
        return warn(f"its own name is {own[0]}", own[0], fix=fix)
    return passed(f"its own name is {own[0]}")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


@check("net.reachable")
def reachable(network: Network) -> Finding:
    """Every node can talk to the first one, where the ranks meet.

    Why: The head may reach both although there is no route between them.
    Bad: FAIL if no packet comes back from the first node
    How: a TCP connection from each node to the first one's rendezvous port; a refusal is an answer
    Fix: firewall or route between them: ping the first node from there
    """
    if network.reach == NOT_ASKED:
        return skip(network.reach)
    reach = need(network.reach, "connection to the first node: ")
    if reach in ("connected", "refused"):
        return passed("reaches the first node", reach)
    error = reach.removeprefix("error\t")
    if error == reach:
        return unknown(f"connection to the first node: unexpected answer {reach[:80]!r}")
    return fail(f"cannot reach the first node: {error or reach}")
