"""The NCCL environment of a launch, worked out from what the nodes have.

The list is the one of the recorded H100 runs. Where nodes differ the value of most of them is
taken and the others are named; what is not known is left out, and NCCL decides.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from checks.facts import Fabric, Fleet, Maybe, NodeFacts, Unknown, known, then
from checks.nccl.env_syntax import (
    is_efa,
    own_interface,
    parse_list,
    routable_gids,
    subnet_of,
    suggest_hca,
    usable_interfaces,
)

_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")  # distances of `nvidia-smi topo -m`, nearest first
_EFA = "EFA"  # in place of a value: cards that NCCL_IB_HCA does not name
NO_PORT = "no active InfiniBand or RoCE port"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A variable and the reason for it. `value` None: it is left out on purpose."""

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
    interface = _socket_ifname(fleet, addresses)
    common = [
        Suggestion("TOKENIZERS_PARALLELISM", "false", "it deadlocks in forked loader workers"),
        _threads(fleet, slots),
    ]
    if interface.value is not None and "," not in interface.value:
        name, why = interface.value.removeprefix("="), "the same for gloo, which takes one name"
        common.insert(0, Suggestion("GLOO_SOCKET_IFNAME", name, why))
    if fleet.device != "cuda":
        return tuple(common)
    cards = [_ib_hca(fleet)]
    if cards[0].name == "NCCL_IB_HCA" and cards[0].value is not None:
        why = "PCIe writes of the cards need not wait for each other"
        cards += [_gdr_level(fleet), Suggestion("NCCL_IB_PCI_RELAXED_ORDERING", "1", why)]
        cards += _gid_index(fleet, cards[0].value)
    return (
        _p2p_level(fleet),
        *cards,
        interface,
        Suggestion("NCCL_DEBUG", "WARN", "the reason of an error, not megabytes of log"),
        Suggestion("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a failed collective ends the rank"),
        Suggestion("TORCH_NCCL_ENABLE_MONITORING", "1", "a watchdog that hangs ends the rank"),
        *common,
    )


def _most(values: Mapping[str, str]) -> str:
    """The value of most nodes; of equally common ones the first node's."""
    return Counter(values.values()).most_common(1)[0][0]


class _Values:
    """Known values of a variable by node, and (node, reason) of the others, also the unreached."""

    def __init__(self, name: str, fleet: Fleet, read: Callable[[NodeFacts], Maybe[str]]) -> None:
        silent = Unknown("no answer")
        found = {node.name: silent if node.unreached else read(node) for node in fleet.nodes}
        self._name = name
        self.by_node = {node: v for node, v in found.items() if not isinstance(v, Unknown)}
        self.unsure = tuple((n, v.reason) for n, v in found.items() if isinstance(v, Unknown))

    def suggest(
        self, value: str | None, reason: str, odd: Mapping[str, str] | None = None
    ) -> Suggestion:
        """`odd` is what is otherwise at some nodes."""
        return Suggestion(self._name, value, reason, tuple((odd or {}).items()), self.unsure)


def _ib_hca(fleet: Fleet) -> Suggestion:
    """NCCL_IB_HCA by exact names, or NCCL_IB_DISABLE=1 where most nodes have no active port."""

    def read(node: NodeFacts) -> Maybe[str]:
        if isinstance(node.fabric, Unknown):
            return node.fabric
        for port in node.fabric.ports:
            if port.is_active is None:
                return Unknown(f"the state of {port.name} cannot be read")
        found = suggest_hca(node.fabric.ports)
        return found or (_EFA if any(map(is_efa, node.fabric.ports)) else "")

    values = _Values("NCCL_IB_HCA", fleet, read)
    if not values.by_node:
        return values.suggest(None, "the cards of no node are known")
    best = _most(values.by_node)
    if best == _EFA:
        odd = {name: _other(value) for name, value in values.by_node.items() if value != best}
        why = "EFA cards need the OFI plugin (aws-ofi-nccl), which finds them itself"
        return values.suggest(None, why, odd)
    odd = {name: _other(value) for name, value in values.by_node.items() if value != best}
    if not best:
        return dataclasses.replace(values.suggest("1", NO_PORT, odd), name="NCCL_IB_DISABLE")
    first = next(node for node in fleet.nodes if values.by_node.get(node.name) == best)
    assert isinstance(first.fabric, Fabric)
    return values.suggest(best, _why_these(first.fabric, best), odd)


def _other(value: str) -> str:
    if value == _EFA:
        return "there are EFA cards"
    return f"there it would be {value}" if value else f"there is {NO_PORT}"


def _why_these(fabric: Fabric, value: str) -> str:
    chosen = parse_list(value)
    taken = [port for port in fabric.ports if chosen.takes(port.device, port.port)]
    rates = sorted({f"{p.rate_gbps:g}" for p in taken if isinstance(p.rate_gbps, float)})
    layer = "InfiniBand" if taken[0].link_layer == "InfiniBand" else "RoCE"
    text = f"{len(taken)} active {layer} port{'s' * (len(taken) != 1)}"
    text += f" at {', '.join(rates)} Gb/s" if rates else ""
    left = [
        f"{port.name} ({port.link_layer if port.is_active else port.state})"
        for port in fabric.ports
        if port not in taken and len(known((port.link_layer, port.state))) == 2
    ]
    return text + (f"; not {', '.join(left)}" if left else "")


def _socket_ifname(fleet: Fleet, addresses: Mapping[str, str]) -> Suggestion:
    """NCCL_SOCKET_IFNAME: the interface that carries the address by which each node is reached.

    Exact names, because eno1 would also take eno10. Where nodes call it differently all names are
    listed, if no node has two of them.
    """
    name = "NCCL_SOCKET_IFNAME"
    reached = [node for node in fleet.reached if not node.loopback]
    if not reached:
        return Suggestion(name, None, "all nodes are this machine")
    if fleet.one_machine and len({node.namespaces for node in reached}) == 1:
        return Suggestion(name, None, "all nodes are one machine")
    found = {n.name: own_interface(n.network, addresses.get(n.name)) for n in fleet.reached}
    own = {node: one for node, one in found.items() if not isinstance(one, Unknown)}
    values = _Values(name, fleet, lambda node: then(found[node.name], lambda one: one.name))
    if not own:
        return values.suggest(None, "no node knows which interface carries it")
    subnets = {node: subnet_of(interface) or "?" for node, interface in own.items()}
    common, best = _most(subnets), _most(values.by_node)
    names = list(dict.fromkeys(values.by_node.values()))
    elsewhere = {
        node: f"{own[node].name} is in {subnet}"
        for node, subnet in subnets.items()
        if subnet != common
    }
    where = f"it carries the nodes' own addresses, {common}"
    if len(names) == 1:
        return values.suggest(f"={best}", where, elsewhere)
    every = "=" + ",".join(names)
    networks = (node.network for node in fleet.reached if node.name in own)
    if all(len(usable_interfaces(one.interfaces, every)) == 1 for one in known(networks)):
        nodes = {one: [n for n, v in values.by_node.items() if v == one] for one in names}
        who = "; ".join(f"{one} on {', '.join(nodes[one])}" for one in names)
        return values.suggest(every, f"{where}: {who}", elsewhere)
    odd = {node: f"there it is {one}" for node, one in values.by_node.items() if one != best}
    return values.suggest(f"={best}", where, odd)


def _p2p_level(fleet: Fleet) -> Suggestion:
    """NVL only where NVLink joins all GPUs of a node: it forbids copies over PCIe."""

    def read(node: NodeFacts) -> Maybe[str]:
        gpus = node.gpus
        if not gpus.has_hardware or (isinstance(gpus.count, int) and gpus.count < 2):
            return "alone"
        if isinstance(gpus.pairs, Mapping):
            paths = [path for pair, path in gpus.pairs.items() if re.fullmatch(r"\d+-\d+", pair)]
            return "yes" if paths and all(path.startswith("NV") for path in paths) else "no"
        if isinstance(gpus.nvlinks, tuple):
            return "yes" if gpus.nvlinks and all(one.active for one in gpus.nvlinks) else "no"
        return gpus.nvlinks

    values = _Values("NCCL_P2P_LEVEL", fleet, read)
    joined = values.by_node
    without = {node: "no NVLink between all GPUs" for node in joined if joined[node] == "no"}
    if without:
        odd = without if len(without) < len(joined) else None
        return values.suggest(None, "not all GPUs are joined by NVLink", odd)
    if "yes" not in joined.values():
        unknown = "it is not known whether there is NVLink"
        return values.suggest(None, unknown if values.unsure else "one GPU a node")
    return values.suggest("NVL", "NVLink joins all GPUs of a node")


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
        for pair, path in pairs.items():
            gpu, _, other = pair.partition("-")
            if not other.isdigit() and path in _NEAR:
                nearest[gpu] = min(nearest.get(gpu, len(_NEAR)), _NEAR.index(path))
        if not nearest:
            return Unknown("topo -m shows no card")
        return _NEAR[max(nearest.values())]

    values = _Values("NCCL_NET_GDR_LEVEL", fleet, read)
    by_node, no_module = values.by_node, "module nvidia_peermem is not loaded"
    without = {node: no_module for node in by_node if by_node[node] == "peermem"}
    if without and len(without) == len(by_node) and not values.unsure:
        return values.suggest(None, no_module)
    if without:
        return values.suggest(None, "not every node has nvidia_peermem", without)
    levels = [level for level in by_node.values() if level in _NEAR]
    if not levels:
        return values.suggest(None, "it is not known how near GPUs and cards are")
    worst, most = max(levels, key=_NEAR.index), _most(by_node)
    next_card = {node: f"a GPU's next card is {level}" for node, level in by_node.items()}
    if worst not in ("PIX", "PXB"):
        far = {node: words for node, words in next_card.items() if by_node[node] == worst}
        odd = far if len(far) < len(by_node) else None
        return values.suggest(None, f"a GPU's next card is {worst}: NCCL decides", odd)
    odd = {node: words for node, words in next_card.items() if by_node[node] != most}
    where = "on its own PCIe switch" if worst == "PIX" else "behind PCIe switches"
    return values.suggest(worst, f"every GPU has a card {where}", odd)


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
    fits = [routable_gids(port) for _, port in ports]
    everywhere = sorted(set.intersection(*fits))
    name = "NCCL_IB_GID_INDEX"
    if everywhere:
        yield Suggestion(name, str(everywhere[-1]), "RoCE v2 over IPv4 on every port taken")
        return
    tables: defaultdict[str, list[str]] = defaultdict(list)
    for (node, port), have in zip(ports, fits, strict=True):
        tables[node].append(f"{port.name} has {', '.join(map(str, sorted(have))) or 'none'}")
    odd = tuple((node, ", ".join(words)) for node, words in tables.items())
    why = "no index is RoCE v2 over IPv4 on every port; NCCL from 2.21 on finds one itself"
    yield Suggestion(name, None, why, odd if len({words for _, words in odd}) > 1 else ())


def _threads(fleet: Fleet, slots: Mapping[str, int]) -> Suggestion:
    """CPUs of the smallest node for each rank; one on CPU, since nodes may share a machine."""
    name = "OMP_NUM_THREADS"
    if fleet.device != "cuda":
        return Suggestion(name, "1", "ranks on CPU: more threads than cores are slower")

    values = _Values(name, fleet, lambda node: then(then(node.machine, lambda m: m.cpus), str))
    cpus = {node: int(count) for node, count in values.by_node.items()}
    if not cpus:
        return values.suggest(None, "the number of CPUs of no node is known")
    ranks = {node: max(1, slots.get(node, 1)) for node in cpus}
    share = {node: max(1, cpus[node] // ranks[node]) for node in cpus}
    least = min(share, key=share.__getitem__)
    why = f"{cpus[least]} CPUs, {ranks[least]} rank{'s' * (ranks[least] != 1)} on {least}"
    return values.suggest(str(share[least]), why)


def chosen_values(suggestions: tuple[Suggestion, ...]) -> dict[str, str]:
    """Name -> value of what is to be set."""
    return {one.name: one.value for one in suggestions if one.value is not None}
