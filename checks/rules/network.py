"""The network below NCCL: names, reachability, packet size, link speed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from checks.facts import NOT_ASKED, Fleet, Network, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check, compare


@check(
    "net.names",
    scope="fleet",
    advisory=True,
    bad=(
        "WARN if the node's own name is a loopback address, FAIL if a name has other addresses "
        "than "
        "on most nodes"
    ),
    how="getaddrinfo on each node for its own name and for the first node's",
    fix="one line ADDRESS NAME in /etc/hosts of that node",
)
def names(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """Names mean the same machine everywhere.

    gloo binds to what the own name resolves to, and Debian writes 127.0.1.1 there. Our launcher
    names the interface itself, so that is a warning.
    """
    networks = {n.name: n.network for n in fleet.reached if isinstance(n.network, Network)}
    asked = sorted({name for network in networks.values() for name in network.names if name != "@"})
    for node in fleet.reached:
        if isinstance(node.network, Unknown):
            is_new = node.network != NOT_ASKED
            yield (unknown if is_new else skip)(node.network.reason, nodes=(node.name,))
            continue
        own = node.network.names.get("@", NOT_ASKED)
        if (
            isinstance(own, tuple)
            and own
            and all(_is_loopback(one) for one in own)
            and not node.loopback
        ):
            yield warn(
                f"its own name is {own[0]}",
                nodes=(node.name,),
                value=own[0],
                fix="in its /etc/hosts: ADDRESS NAME instead of 127.0.1.1 NAME",
            )
        elif own == NOT_ASKED:
            yield skip(f"its own name: {NOT_ASKED.reason}", nodes=(node.name,))
        elif isinstance(own, Unknown) and own.is_absence:
            yield warn(
                f"its own name has no address: {own.reason}",
                nodes=(node.name,),
                fix="in its /etc/hosts: ADDRESS NAME",
            )
        elif isinstance(own, Unknown):
            yield unknown(f"its own name: {own.reason}", nodes=(node.name,))
        else:
            yield passed(f"its own name is {own[0]}", nodes=(node.name,))
    for name in asked:
        known = [network.names.get(name) for network in networks.values()]
        resolves = any(isinstance(one, tuple) for one in known)

        def read(node: NodeFacts, name: str = name, resolves: bool = resolves) -> Any:
            if isinstance(node.network, Unknown):
                return None
            found = node.network.names.get(name, Unknown("not tried"))
            if isinstance(found, Unknown):
                return f"nothing ({found.reason})" if found.is_absence and resolves else found
            own = all(_is_loopback(one) for one in found)  # as the node itself may see its name
            return None if own else " ".join(found)

        yield from compare(fleet, read, f"{name} is", fix=f"getent ahosts {name}; /etc/hosts")


@check(
    "net.reachable",
    needs=("network",),
    bad="FAIL if no packet comes back from the first node",
    how=(
        "a TCP connection from each node to the rendezvous port of the first; a refusal is an "
        "answer too"
    ),
    fix="firewall, routes: ping from that node; --master_addr for launch",
)
def reachable(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """Every node can talk to the first one, where the ranks meet.

    That the head reaches both says nothing about the way between them.
    """
    assert isinstance(node.network, Network)
    said = node.network.reach
    if said == NOT_ASKED:
        yield skip(NOT_ASKED.reason)
    elif isinstance(said, Unknown):
        yield unknown(f"connection to the first node: {said.reason}")
    elif said in ("connected", "refused"):
        yield passed("reaches the first node", value=said)
    elif not said.startswith("error\t"):
        yield unknown(f"connection to the first node: {said[:80]!r} was said")
    else:
        yield fail(
            f"cannot reach the first node: {said.partition(chr(9))[2] or said}",
            fix="firewall or route between them: ping the first node from there",
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False


@check(
    "net.mtu",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="/sys/class/net/*/mtu of interfaces with a device and an address",
    fix="sudo ip link set dev NAME mtu N",
)
def mtu(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same MTU: large packets to a node with a smaller one vanish, small ones arrive."""
    yield from compare(
        fleet,
        _of_interfaces("mtu"),
        "MTU",
        bad=warn,
        fix="sudo ip link set dev NAME mtu N",
        expected=limits.expected.get("net.mtu"),
    )


@check(
    "net.speed",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="/sys/class/net/*/speed of interfaces with a device and an address",
    fix="cable, or the switch's port",
)
def speed(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same link speed: a card that came up at 1 Gb/s carries data and checkpoints."""
    yield from compare(
        fleet,
        _of_interfaces("speed_mbps"),
        "Mb/s of",
        bad=warn,
        fix="cable, or the switch's port; ethtool NAME",
        expected=limits.expected.get("net.speed"),
    )


def _of_interfaces(field: str) -> Any:
    """Reader for `compare`: `eth0 1500, ib0 4092` of the interfaces that are in use."""

    def read(node: NodeFacts) -> Any:
        if isinstance(node.network, Unknown):
            return node.network
        if node.network.unlisted is not None:
            return node.network.unlisted
        used = [
            one for one in node.network.interfaces if one.up and one.is_hardware and one.addresses
        ]
        values = [(one.name, getattr(one, field)) for one in used]
        for name, value in values:
            if isinstance(value, Unknown) and not value.is_absence:
                return Unknown(f"{name}: {value.reason}")
        known = [f"{name} {value}" for name, value in values if not isinstance(value, Unknown)]
        return ", ".join(known) or None

    return read
