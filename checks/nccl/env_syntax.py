"""How NCCL reads NCCL_IB_HCA and NCCL_SOCKET_IFNAME: `^` excludes, `=` is exact, `name:port`.

And what a node has for them: ports, entries of GID tables, interfaces.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checks.facts import NOT_ASKED, IbPort, Interface, Maybe, Network, Unknown, or_none


@dataclass(frozen=True, slots=True)
class NameList:
    """A parsed value. Without `=` an entry is a prefix: mlx5_1 also takes mlx5_10."""

    exclude: bool
    exact: bool
    entries: tuple[tuple[str, int | None], ...]  # name, port

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether NCCL uses this device or interface."""
        hit = any(
            (name == entry if self.exact else name.startswith(entry))
            and (wanted is None or port is None or wanted == port)
            for entry, wanted in self.entries
        )
        return hit != self.exclude

    def surprises(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Entry -> names that it takes as a prefix although its exact name exists, too."""
        if self.exact:
            return {}
        have = sorted(set(names))
        exact = [entry for entry, _ in self.entries if entry in have]
        more = {
            one: [name for name in have if name.startswith(one) and name != one] for one in exact
        }
        return {entry: found for entry, found in more.items() if found}


def parse_list(value: str) -> NameList:
    """`mlx5_0,mlx5_1`, `=mlx5_0:1`, `^docker,lo`, `^=eth0`. Empty entries are left out."""
    text = value.strip()
    exclude = text.startswith("^")
    exact = text.removeprefix("^").startswith("=")
    entries: list[tuple[str, int | None]] = []
    for word in text.removeprefix("^").removeprefix("=").split(","):
        name, _, port = word.strip().partition(":")
        if name:
            entries.append((name, int(port) if port.isdecimal() and len(port) < 5 else None))
    return NameList(exclude, exact, tuple(entries))


def suggest_hca(ports: Sequence[IbPort]) -> str | None:
    """NCCL_IB_HCA for a node: its active InfiniBand ports, else active RoCE ports, by exact name.

    Not EFA, which NCCL's own transport does not know, and no InfiniBand port without an address
    (lid 0), such as those that manage NVSwitches. Of RoCE ports those with the highest rate: the
    others are front-side cards.
    """
    active = [port for port in ports if port.is_active and not is_efa(port)]
    chosen = [port for port in active if port.link_layer == "InfiniBand"]
    chosen = [port for port in chosen if port.lid != 0] or chosen
    if not chosen:
        rates = [port.rate_gbps for port in active if isinstance(port.rate_gbps, float)]
        chosen = [port for port in active if rates and port.rate_gbps == max(rates)]
    if not chosen:
        return None
    several = len({port.device for port in chosen}) < len(chosen)
    return "=" + ",".join(port.name if several else port.device for port in chosen)


def is_efa(port: IbPort) -> bool:
    """An Elastic Fabric Adapter: NCCL uses it by the OFI plugin, which no NCCL_IB_HCA names."""
    model = port.model if isinstance(port.model, str) else ""
    return model.startswith("EFA") or port.link_layer == "Unspecified"


def routable_gids(port: IbPort) -> set[int]:
    """Indices of RoCE v2 entries for an IPv4 address: they route as the nodes' network does."""
    found = set()
    for gid in port.gids:
        try:
            if gid.type == "RoCE v2" and ipaddress.IPv6Address(gid.gid).ipv4_mapped is not None:
                found.add(gid.index)
        except ValueError:
            continue
    return found


def usable_interfaces(interfaces: Sequence[Interface], value: str | None) -> list[Interface]:
    """Interfaces that NCCL would take, in its order: up, with an address that is not link-local.

    Without a value everything but loopback and docker.
    """
    usable = [one for one in interfaces if one.up and subnet_of(one) is not None]
    if value:
        names = parse_list(value)
        return [one for one in usable if names.takes(one.name)]
    return [one for one in usable if one.name != "lo" and not one.name.startswith("docker")]


def own_interface(network: Maybe[Network], address: str | None) -> Maybe[Interface]:
    """By the address we reach it at, else by what its own name resolves to, else the only one."""
    if isinstance(network, Unknown):
        return network
    if network.unlisted is not None:
        return network.unlisted
    usable = usable_interfaces(network.interfaces, None)
    for wanted in (address, *(or_none(network.names.get("@", NOT_ASKED)) or ())):
        for one in usable:
            if wanted in {text.split("/")[0].split("%")[0] for text in one.addresses}:
                return one
    if len(usable) == 1:
        return usable[0]
    have = ", ".join(one.name for one in usable) or "none"
    return Unknown(f"{address or 'its address'} is on no interface (there are: {have})")


def subnet_of(interface: Interface) -> str | None:
    """The network of its first address that others can reach, IPv4 before IPv6."""
    networks = []
    for address in interface.addresses:
        try:
            network = ipaddress.ip_interface(address.split("%")[0]).network
        except ValueError:
            continue
        if not network.is_loopback and not network.is_link_local:
            networks.append(network)
    networks.sort(key=lambda network: network.version)
    return str(networks[0]) if networks else None
