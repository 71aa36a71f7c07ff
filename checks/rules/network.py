"""The network below NCCL: names, reachability, packet size, link speed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from checks.compare import compare, each_node, same
from checks.facts import NOT_ASKED, Fleet, Maybe, Network, NodeFacts, Unknown, known
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.registry import check


@check("net.names", "fleet", advisory=True)
def names(fleet: Fleet) -> Iterator[Finding]:
    """Names mean the same machine everywhere.

    gloo binds to what the own name resolves to, and Debian writes 127.0.1.1 there. Our launcher
    names the interface itself, so that is a warning.

    Bad: WARN if the node's own name is a loopback address, FAIL if a name has other addresses than
        on most nodes
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
    if own == NOT_ASKED:
        return skip(f"its own name: {own}")
    if isinstance(own, Unknown):
        if own.is_absence:
            return warn(f"its own name has no address: {own}")
        return unknown(f"its own name: {own}")
    if own and all(map(_is_loopback, own)) and not node.loopback:
        fix = "in its /etc/hosts: ADDRESS NAME instead of 127.0.1.1 NAME"
        return warn(f"its own name is {own[0]}", own[0], fix=fix)
    return passed(f"its own name is {own[0]}")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False


@check("net.reachable")
def reachable(network: Network) -> Finding:
    """Every node can talk to the first one, where the ranks meet.

    The head may reach both although there is no route between them.

    Bad: FAIL if no packet comes back from the first node
    How: a TCP connection from each node to the rendezvous port of the first; a refusal is an answer
        too
    Fix: firewall or route between them: ping the first node from there
    """
    reach = network.reach
    if reach == NOT_ASKED:
        return skip(reach)
    if isinstance(reach, Unknown):
        return unknown(f"connection to the first node: {reach}")
    if reach in ("connected", "refused"):
        return passed("reaches the first node", reach)
    error = reach.removeprefix("error\t")
    if error == reach:
        return unknown(f"connection to the first node: unexpected answer {reach[:80]!r}")
    return fail(f"cannot reach the first node: {error or reach}")


@check("net.mtu", "fleet", advisory=True)
@same("MTU", bad=warn)
def mtu(node: NodeFacts) -> Maybe[str] | None:
    """The same MTU: large packets to a node with a smaller one vanish, small ones arrive.

    Bad: WARN if it is not the majority's
    How: /sys/class/net/*/mtu of interfaces with a device and an address
    Fix: sudo ip link set dev NAME mtu N
    """
    return _of_interfaces(node, "mtu")


@check("net.speed", "fleet", advisory=True)
@same("Mb/s of", bad=warn)
def speed(node: NodeFacts) -> Maybe[str] | None:
    """The same link speed: a card that came up at 1 Gb/s carries data and checkpoints.

    Bad: WARN if it is not the majority's
    How: /sys/class/net/*/speed of interfaces with a device and an address
    Fix: cable, or the switch's port; ethtool NAME
    """
    return _of_interfaces(node, "speed_mbps")


def _of_interfaces(node: NodeFacts, field: str) -> Maybe[str] | None:
    """`eth0 1500, ib0 4092` of the interfaces that are in use."""
    if isinstance(node.network, Unknown):
        return node.network
    if node.network.unlisted is not None:
        return node.network.unlisted
    known = []
    for one in node.network.interfaces:
        if one.up and one.is_hardware and one.addresses:
            value = getattr(one, field)
            if not isinstance(value, Unknown):
                known.append(f"{one.name} {value}")
            elif not value.is_absence:
                return Unknown(f"{one.name}: {value}")
    return ", ".join(known) or None
