"""The launch's NCCL settings against what the nodes have.

NCCL itself fails without a message when a name is wrong (NVIDIA/nccl #1837), and no tool that we
know compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from checks.compare import majority
from checks.facts import Fleet, IbPort, LaunchNeeds, Network, NodeFacts, System, Unknown
from checks.finding import Finding, Lacks, fail, need, passed, skip, unknown, warn
from checks.nccl.env_syntax import parse_list, subnet_of, suggest_hca, usable_interfaces
from checks.registry import check


def _ports(node: NodeFacts) -> tuple[IbPort, ...]:
    """Ends a rule with UNKNOWN where a port's state, or its link layer, could not be read."""
    ports = need(node.fabric).ports
    for port in ports:
        if port.is_active is None or (port.is_active and isinstance(port.link_layer, Unknown)):
            raise Lacks(unknown(f"state or kind of {port.name} cannot be read"))
    return ports


@check("launch.ib_hca", "launch")
def ib_hca(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """NCCL_IB_HCA names the node's active ports and no others.

    Why: Without `=` mlx5_1 also takes mlx5_10; on some hosts mlx5_1 is a front-side card.
    Bad: WARN if the list leaves active ports out, or a prefix takes more than its name; FAIL if a
        name is not there or not active, or InfiniBand and Ethernet are mixed
    How: NCCL_IB_HCA (=exact, ^exclude, name:port, else prefix) against sysfs
    Fix: the printed NCCL_IB_HCA value
    """
    value = launch.env.get("NCCL_IB_HCA")
    if fleet.device != "cuda" or launch.env.get("NCCL_IB_DISABLE") == "1":
        return skip("the launch does not use InfiniBand")
    if not value:
        return skip("NCCL_IB_HCA is not set: NCCL takes every active port")
    ports = _ports(node)
    bad, what = _judge_hca(value, ports)
    if bad is passed:
        return passed(what)
    better = suggest_hca(ports)
    fix = f"NCCL_IB_HCA='{better}'" if better else "NCCL_IB_DISABLE=1 on nodes without cards"
    return bad(what, value, better, fix=fix)


def _judge_hca(value: str, ports: tuple[IbPort, ...]) -> tuple[Callable[..., Finding], str]:
    """The verdict of a value of NCCL_IB_HCA, and its evidence."""
    chosen = parse_list(value)
    taken = [port for port in ports if chosen.takes(port.device, port.port)]
    devices = {port.device for port in ports}
    lost = [
        name
        for name, _ in chosen.entries
        if not any(one == name if chosen.exact else one.startswith(name) for one in devices)
    ]
    down = [port.name for port in taken if not port.is_active]
    layers = {str(port.link_layer) for port in taken if port.is_active}
    if lost and not chosen.exclude:
        return fail, f"{', '.join(lost)} of NCCL_IB_HCA is not on the node"
    if not taken:
        return fail, "NCCL_IB_HCA takes no port of the node"
    if down and not chosen.exclude:
        return fail, f"{', '.join(down)} of NCCL_IB_HCA is not active"
    if len(layers) > 1:
        return fail, "NCCL_IB_HCA mixes InfiniBand and Ethernet ports"
    if surprises := chosen.surprises(devices):
        entry, more = next(iter(surprises.items()))
        return warn, f"{entry} without = also takes {', '.join(more)}"
    left = [port.name for port in ports if _is_infiniband(port) and port not in taken]
    if left and layers == {"InfiniBand"}:
        return warn, f"NCCL_IB_HCA leaves out {', '.join(left)}"
    return passed, f"{len(taken)} ports"


def _is_infiniband(port: IbPort) -> bool:
    return bool(port.is_active) and port.link_layer == "InfiniBand"


@check("launch.roce_gid", "launch")
def roce_gid(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding | Iterable[Finding]:
    """NCCL_IB_GID_INDEX is a RoCE v2 entry on every port that NCCL takes.

    Bad: FAIL if the index is not in a chosen RoCE port's GID table, or is no RoCE v2
    How: NCCL_IB_GID_INDEX against gids and gid_attrs/types of sysfs
    Fix: the printed index, which may differ between nodes
    """
    value, names = launch.env.get("NCCL_IB_GID_INDEX"), launch.env.get("NCCL_IB_HCA")
    if fleet.device != "cuda" or not value:
        return skip("NCCL_IB_GID_INDEX is not set" if fleet.device == "cuda" else "no GPU is used")
    roce = [one for one in _ports(node) if one.is_active and one.link_layer == "Ethernet"]
    if names:
        chosen = parse_list(names)
        roce = [port for port in roce if chosen.takes(port.device, port.port)]
    if not roce:
        return skip("no active RoCE port is taken")
    if not value.isdecimal():
        return fail(f"NCCL_IB_GID_INDEX={value} is not a number", value)
    return [_judge_gid(port, value) for port in roce]


def _judge_gid(port: IbPort, value: str) -> Finding:
    at = {gid.index: gid for gid in port.gids}.get(int(value))
    good = [str(gid.index) for gid in port.gids if gid.type == "RoCE v2"]
    if not port.gids:
        return unknown(f"{port.name}: its GID table cannot be read")
    if at is not None and isinstance(at.type, Unknown):
        return unknown(f"{port.name}: kind of GID {value}: {at.type}")
    if at is not None and at.type == "RoCE v2":
        return passed(f"GID {value} of {port.name} is RoCE v2")
    expected = good[-1] if good else None
    text = f"{port.name}: GID {value} is {'nothing' if at is None else at.type}"
    fix = f"NCCL_IB_GID_INDEX={expected}" if expected else f"an address on {port.netdev}"
    return fail(text, value, expected, fix=fix)


@check("launch.socket_ifname", "launch")
def socket_ifname(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """NCCL_SOCKET_IFNAME means one routable interface on every node.

    Why: Otherwise NCCL says `no socket interface found`, or an address family of 59936, or hangs.
    Bad: WARN if two interfaces match; FAIL if none does, or its subnet is not the majority's
    How: NCCL_SOCKET_IFNAME (prefix, =, ^) against up interfaces with an address
    Fix: the interface that carries the nodes' own network
    """
    names = ["NCCL_SOCKET_IFNAME"] if fleet.device == "cuda" else []
    values = {name: launch.env.get(name) for name in (*names, "GLOO_SOCKET_IFNAME")}
    used = [(name, value) for name, value in values.items() if value and value != "auto"]
    if not used:
        return skip("NCCL_SOCKET_IFNAME is not set, or not used")
    network = need(node.network)
    name, value = used[0]
    chosen = {
        one.name: usable_interfaces(one.network.interfaces, value)
        for one in fleet.reached
        if isinstance(one.network, Network)
    }
    mine = chosen[node.name]
    common = majority(subnet_of(found[0]) for found in chosen.values() if found)
    there = [one.name for one in network.interfaces if one.up and subnet_of(one) is not None]
    right = [one.name for one in network.interfaces if common and subnet_of(one) == common]
    expected = ", ".join(right) or None
    fix = f"{name}={'=' if name.startswith('NCCL') else ''}{(right or there or ['?'])[0]}"
    if network.unlisted is not None and not mine:
        return unknown(f"the addresses of its interfaces: {network.unlisted}")
    if not mine:
        have = ", ".join(there) or "none"
        text = f"{name}={value}: no such interface is up (there are {have})"
        return fail(text, value, expected, fix=fix)
    first, subnet = mine[0].name, subnet_of(mine[0])
    if common is not None and subnet != common:
        text = f"{name}={value}: {first} is in {subnet}, most nodes use {common}"
        return fail(text, first, expected, source="majority", fix=fix)
    if len(mine) > 1 and not parse_list(value).exclude:
        return warn(f"{name}={value} means {', '.join(one.name for one in mine)}", value, fix=fix)
    return passed(f"{first} in {subnet}")


@check("launch.ib_present", "launch")
def ib_present(node: NodeFacts, launch: LaunchNeeds, fleet: Fleet) -> Finding:
    """InfiniBand is not switched off where it is there.

    Why: `--nccl ethernet` on an InfiniBand cluster trains, many times slower.
    Bad: WARN if NCCL_IB_DISABLE is set although the node has active InfiniBand ports
    How: NCCL_IB_DISABLE and NCCL_NET against sysfs
    Fix: leave NCCL_IB_DISABLE out, or --nccl h100-ib
    """
    if fleet.device != "cuda":
        return skip("no GPU is used")
    count, env = sum(map(_is_infiniband, _ports(node))), launch.env
    if count and (env.get("NCCL_IB_DISABLE") == "1" or env.get("NCCL_NET", "").lower() == "socket"):
        return warn(f"NCCL uses TCP although {count} InfiniBand ports are active")
    return passed("NCCL may use what is there")


_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "every kernel waits",
    "CUDA_PROFILE": "profiling",
    "CUDA_INJECTION64_PATH": "a profiler is injected",
    "NSIGHT_CUDA_DEBUGGER": "a debugger",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "core dumps of GPU memory",
    "COMPUTE_PROFILE": "profiling",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "GPUs wait for a debugger",
    "NCCL_P2P_DISABLE": "no NVLink",
    "NCCL_SHM_DISABLE": "no shared memory",
    "NCCL_DEBUG": "megabytes of log from every rank",
    "TORCH_DISTRIBUTED_DEBUG": "collectives are checked one by one",
}
_ONLY = {"NCCL_DEBUG": ("INFO", "TRACE"), "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",)}
"""Values that slow a run down; of other variables any but 0."""


@check("launch.debug_env", "launch")
def debug_env(node: NodeFacts, launch: LaunchNeeds) -> Finding:
    """No variable of yesterday's debugging slows the run down.

    Bad: WARN if one is set
    How: the launch's environment and that of a login without a terminal
    Fix: unset it; NCCL_DEBUG=WARN
    """
    own = node.system.environ if isinstance(node.system, System) else {}
    found = {}
    for name, value in sorted({**own, **launch.env}.items()):
        only = _ONLY.get(name)
        if name in _SLOW and (value.upper() in only if only else value not in ("", "0")):
            found[name] = f"{name}={value} ({_SLOW[name]})"
    if found:
        return warn("; ".join(found.values()), fix=f"unset {' '.join(found)}")
    need(node.system, "its environment: ")
    return passed("no debug variable")
