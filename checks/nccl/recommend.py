"""The NCCL environment of a launch, worked out from what the nodes have.

The list is the one of the recorded H100 runs. Where nodes differ the value of most of them is
taken and the others are named; what nobody could find out is left out, and NCCL decides.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from checks.facts import Fabric, Fleet, Gid, Interface, Maybe, Network, NodeFacts, Unknown
from checks.nccl.env_syntax import parse_list, subnet_of, suggest_hca, usable_interfaces

_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")  # distances of `nvidia-smi topo -m`, nearest first
NO_PORT = "no active InfiniBand or RoCE port"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A variable and why. `value` None: it is left out on purpose, the reason says why."""

    name: str
    value: str | None
    reason: str
    odd: tuple[tuple[str, str], ...] = ()  # (node, what is otherwise there)
    unsure: tuple[tuple[str, str], ...] = ()  # (node, why nothing is known of it)


def suggest(
    fleet: Fleet, *, slots: Mapping[str, int], addresses: Mapping[str, str]
) -> tuple[Suggestion, ...]:
    """The whole environment in the order of the recorded runs.

    `slots` are ranks and `addresses` the IP address each node is reached by, both by node name.
    Empty when no node answered.
    """
    if not fleet.reached:
        return ()
    interface = socket_ifname(fleet, addresses)
    common = (
        *_gloo(interface),
        Suggestion("TOKENIZERS_PARALLELISM", "false", "it deadlocks in forked loader workers"),
        _threads(fleet, slots),
    )
    if fleet.device != "cuda":
        return common
    return (
        _p2p_level(fleet),
        *_cards(fleet),
        interface,
        Suggestion("NCCL_DEBUG", "WARN", "the reason of an error, not megabytes of log"),
        Suggestion("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a failed collective ends the rank"),
        Suggestion("TORCH_NCCL_ENABLE_MONITORING", "1", "a watchdog that hangs ends the rank"),
        *common,
    )


def _cards(fleet: Fleet) -> Iterator[Suggestion]:
    """What depends on InfiniBand and RoCE cards."""
    chosen = ib_hca(fleet)
    yield chosen
    if chosen.name == "NCCL_IB_HCA" and chosen.value is not None:
        yield _gdr_level(fleet)
        yield Suggestion(
            "NCCL_IB_PCI_RELAXED_ORDERING",
            "1",
            "PCIe writes of the cards need not wait for each other",
        )
        yield from _gid_index(fleet, chosen.value)


def _most(values: Mapping[str, str]) -> str:
    """The value of most nodes; of equally common ones the first node's."""
    counts = Counter(values.values())
    best = max(counts.values())
    return next(value for value in values.values() if counts[value] == best)


def _split(
    fleet: Fleet, read: Callable[[NodeFacts], Maybe[str]]
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Known values by node, and (node, reason) of the others, the unreached among them."""
    values: dict[str, str] = {}
    unsure: list[tuple[str, str]] = []
    for node in fleet.nodes:
        found = Unknown("no answer") if node.unreached is not None else read(node)
        if isinstance(found, Unknown):
            unsure.append((node.name, found.reason))
        else:
            values[node.name] = found
    return values, tuple(unsure)


def ib_hca(fleet: Fleet) -> Suggestion:
    """NCCL_IB_HCA by exact names, or NCCL_IB_DISABLE=1 where most nodes have no active port."""

    def read(node: NodeFacts) -> Maybe[str]:
        if isinstance(node.fabric, Unknown):
            return node.fabric
        for port in node.fabric.ports:
            if port.is_active is None:
                return Unknown(f"the state of {port.name} cannot be read")
        return suggest_hca(node.fabric.ports) or ""

    values, unsure = _split(fleet, read)
    if not values:
        return Suggestion("NCCL_IB_HCA", None, "the cards of no node are known", (), unsure)
    best = _most(values)
    odd = tuple(
        (name, f"there it would be {value}" if value else f"there is {NO_PORT}")
        for name, value in values.items()
        if value != best
    )
    if not best:
        return Suggestion("NCCL_IB_DISABLE", "1", NO_PORT, odd, unsure)
    first = next(node for node in fleet.nodes if values.get(node.name) == best)
    assert isinstance(first.fabric, Fabric)
    return Suggestion("NCCL_IB_HCA", best, _why_these(first.fabric, best), odd, unsure)


def _why_these(fabric: Fabric, value: str) -> str:
    chosen = parse_list(value)
    taken = [port for port in fabric.ports if chosen.takes(port.device, port.port)]
    rates = sorted({f"{p.rate_gbps:g}" for p in taken if isinstance(p.rate_gbps, float)})
    layer = "InfiniBand" if taken[0].link_layer == "InfiniBand" else "RoCE"
    words = f"{len(taken)} active {layer} port{'s' * (len(taken) != 1)}"
    words += f" at {', '.join(rates)} Gb/s" if rates else ""
    left = [
        f"{port.name} ({port.link_layer if port.is_active else port.state})"
        for port in fabric.ports
        if port not in taken
        and not any(isinstance(v, Unknown) for v in (port.link_layer, port.state))
    ]
    return words + (f"; not {', '.join(left)}" if left else "")


def socket_ifname(fleet: Fleet, addresses: Mapping[str, str]) -> Suggestion:
    """NCCL_SOCKET_IFNAME: the interface that carries the address by which each node is reached.

    Exact names, because eno1 would also take eno10. Where nodes call it differently all names are
    listed, if no node has two of them.
    """
    name = "NCCL_SOCKET_IFNAME"
    reached = [node for node in fleet.reached if not node.loopback]
    if not reached:
        return Suggestion(name, None, "all nodes are this machine")
    if fleet.one_machine and len({_namespaces(node) for node in reached}) == 1:
        return Suggestion(name, None, "all nodes are one machine")
    own: dict[str, Interface] = {}

    def read(node: NodeFacts) -> Maybe[str]:
        found = _interface(node, addresses.get(node.name))
        if isinstance(found, Unknown):
            return found
        own[node.name] = found
        return found.name

    values, unsure = _split(fleet, read)
    if not values:
        return Suggestion(name, None, "nobody could tell which interface carries it", (), unsure)
    subnets = {node: subnet_of(interface) or "?" for node, interface in own.items()}
    common = _most(subnets)
    best, names = _most(values), list(dict.fromkeys(values.values()))
    elsewhere = tuple(
        (node, f"{values[node]} is in {subnet}")
        for node, subnet in subnets.items()
        if subnet != common
    )
    where = f"it carries the nodes' own addresses, {common}"
    if len(names) == 1:
        return Suggestion(name, f"={best}", where, elsewhere, unsure)
    every = "=" + ",".join(names)
    twice = [node for node in fleet.reached if node.name in own and _count(node, every) != 1]
    if not twice:
        who = "; ".join(
            f"{one} on {', '.join(n for n, v in values.items() if v == one)}" for one in names
        )
        return Suggestion(name, every, f"{where}: {who}", elsewhere, unsure)
    odd = tuple((node, f"there it is {one}") for node, one in values.items() if one != best)
    return Suggestion(name, f"={best}", where, odd, unsure)


def _namespaces(node: NodeFacts) -> str:
    """Differs between containers of one machine, each of which has a network of its own."""
    return "" if isinstance(node.machine, Unknown) else node.machine.namespaces


def _count(node: NodeFacts, value: str) -> int:
    found = node.network.interfaces if isinstance(node.network, Network) else ()
    return len(usable_interfaces(found, value))


def _interface(node: NodeFacts, address: str | None) -> Maybe[Interface]:
    """By the address we reach it at, else by what its own name resolves to, else the only one."""
    if isinstance(node.network, Unknown):
        return node.network
    if node.network.unlisted is not None:
        return node.network.unlisted
    usable = usable_interfaces(node.network.interfaces, None)
    resolved = node.network.names.get("@", Unknown("not asked"))
    wanted = [address] if address else []
    wanted += [] if isinstance(resolved, Unknown) else list(resolved)
    for one in wanted:
        for interface in usable:
            if one in {text.split("/")[0].split("%")[0] for text in interface.addresses}:
                return interface
    if len(usable) == 1:
        return usable[0]
    have = ", ".join(one.name for one in usable) or "none"
    return Unknown(f"{address or 'its address'} is on no interface (there are: {have})")


def _gloo(chosen: Suggestion) -> Iterator[Suggestion]:
    """gloo takes one exact name, without `=`."""
    if chosen.value is not None and "," not in chosen.value:
        yield Suggestion(
            "GLOO_SOCKET_IFNAME",
            chosen.value.removeprefix("="),
            "the same for gloo, which takes one name",
        )


def _p2p_level(fleet: Fleet) -> Suggestion:
    """NVL only where NVLink joins all GPUs of a node: it forbids copies over PCIe."""

    def read(node: NodeFacts) -> Maybe[str]:
        gpus = node.gpus
        if not gpus.has_hardware or (isinstance(gpus.count, int) and gpus.count < 2):
            return "alone"
        if isinstance(gpus.pairs, Mapping):
            kinds = [kind for pair, kind in gpus.pairs.items() if re.fullmatch(r"\d+-\d+", pair)]
            return "yes" if kinds and all(kind.startswith("NV") for kind in kinds) else "no"
        if isinstance(gpus.nvlinks, tuple):
            return "yes" if gpus.nvlinks and all(one.active for one in gpus.nvlinks) else "no"
        return gpus.nvlinks

    name = "NCCL_P2P_LEVEL"
    values, unsure = _split(fleet, read)
    without = tuple((node, "no NVLink between all GPUs") for node, v in values.items() if v == "no")
    if without:
        odd = without if len(without) < len(values) else ()
        return Suggestion(name, None, "not all GPUs are joined by NVLink", odd, unsure)
    if "yes" not in values.values():
        why = "nobody could tell whether there is NVLink" if unsure else "one GPU a node"
        return Suggestion(name, None, why, (), unsure)
    return Suggestion(name, "NVL", "NVLink joins all GPUs of a node", (), unsure)


def _gdr_level(fleet: Fleet) -> Suggestion:
    """How far apart GPU and card may be for GPUDirect RDMA: no nearer than every GPU's own card."""

    def read(node: NodeFacts) -> Maybe[str]:
        if not node.gpus.has_hardware:
            return "none"
        if not isinstance(node.fabric, Fabric) or isinstance(node.fabric.peermem, Unknown):
            return Unknown("its modules are not known")
        if not node.fabric.peermem:
            return "peermem"
        pairs = node.gpus.pairs
        if isinstance(pairs, Unknown):
            return pairs
        nearest: dict[str, int] = {}
        for pair, kind in pairs.items():
            gpu, _, other = pair.partition("-")
            if not other.isdigit() and kind in _NEAR:
                nearest[gpu] = min(nearest.get(gpu, len(_NEAR)), _NEAR.index(kind))
        if not nearest:
            return Unknown("topo -m shows no card")
        return _NEAR[max(nearest.values())]

    name = "NCCL_NET_GDR_LEVEL"
    values, unsure = _split(fleet, read)
    lacking = tuple(
        (node, "module nvidia_peermem is not loaded")
        for node, value in values.items()
        if value == "peermem"
    )
    if lacking:
        if len(lacking) == len(values) and not unsure:
            return Suggestion(name, None, "module nvidia_peermem is not loaded", (), unsure)
        return Suggestion(name, None, "not every node has nvidia_peermem", lacking, unsure)
    levels = [value for value in values.values() if value in _NEAR]
    if not levels:
        return Suggestion(name, None, "nobody could tell how near GPUs and cards are", (), unsure)
    worst = max(levels, key=_NEAR.index)
    if worst not in ("PIX", "PXB"):
        far = tuple((n, f"a GPU's next card is {v}") for n, v in values.items() if v == worst)
        why = f"a GPU's next card is {worst}: NCCL decides"
        return Suggestion(name, None, why, far if len(far) < len(values) else (), unsure)
    odd = tuple((n, f"a GPU's next card is {v}") for n, v in values.items() if v != _most(values))
    where = "on its own PCIe switch" if worst == "PIX" else "behind PCIe switches"
    return Suggestion(name, worst, f"every GPU has a card {where}", odd, unsure)


def _gid_index(fleet: Fleet, hca: str) -> Iterator[Suggestion]:
    """For RoCE the index of a RoCE v2 entry with an IPv4 address, if one fits every port."""
    chosen = parse_list(hca)
    ports = [
        (node.name, port)
        for node in fleet.reached
        if isinstance(node.fabric, Fabric)
        for port in node.fabric.ports
        if port.link_layer == "Ethernet" and chosen.takes(port.device, port.port)
    ]
    if not ports:
        return
    fits = [{gid.index for gid in port.gids if _is_ipv4(gid)} for _, port in ports]
    everywhere = sorted(set.intersection(*fits))
    name = "NCCL_IB_GID_INDEX"
    if everywhere:
        yield Suggestion(name, str(everywhere[-1]), "RoCE v2 over IPv4 on every port taken")
        return
    tables: dict[str, str] = {}
    for (node, port), have in zip(ports, fits, strict=True):
        words = f"{port.name} has {', '.join(map(str, sorted(have))) or 'none'}"
        tables[node] = f"{tables[node]}, {words}" if node in tables else words
    odd = tables.items() if len(set(tables.values())) > 1 else ()
    why = "no index is RoCE v2 over IPv4 on every port; NCCL from 2.21 on finds one itself"
    yield Suggestion(name, None, why, tuple(odd))


def _is_ipv4(gid: Gid) -> bool:
    """A RoCE v2 entry whose address is an IPv4 one, which routes as the nodes' network does."""
    if gid.type != "RoCE v2":
        return False
    try:
        address = ipaddress.ip_address(gid.gid)
    except ValueError:
        return False
    return isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None


def _threads(fleet: Fleet, slots: Mapping[str, int]) -> Suggestion:
    """CPUs of the smallest node for each rank; one on CPU, since nodes may share a machine."""
    name = "OMP_NUM_THREADS"
    if fleet.device != "cuda":
        return Suggestion(name, "1", "ranks on CPU: more threads than cores are slower")

    def read(node: NodeFacts) -> Maybe[str]:
        cpus = node.machine if isinstance(node.machine, Unknown) else node.machine.cpus
        return cpus if isinstance(cpus, Unknown) else str(cpus)

    values, unsure = _split(fleet, read)
    if not values:
        return Suggestion(name, None, "the number of CPUs of no node is known", (), unsure)
    share = {node: max(1, int(cpus) // max(1, slots.get(node, 1))) for node, cpus in values.items()}
    least = min(share, key=share.__getitem__)
    ranks = max(1, slots.get(least, 1))
    why = f"{values[least]} CPUs, {ranks} rank{'s' * (ranks != 1)} on {least}"
    return Suggestion(name, str(share[least]), why, (), unsure)


def chosen_values(suggestions: tuple[Suggestion, ...]) -> dict[str, str]:
    """Name -> value of what is to be set."""
    return {one.name: one.value for one in suggestions if one.value is not None}
