"""The launch's NCCL settings against what the nodes have.

NCCL itself fails without saying so when a name is wrong (NVIDIA/nccl #1837), and no tool that we
know compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import NOT_ASKED, Fleet, IbPort, Network, NodeFacts, System, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.nccl.env_syntax import parse_list, subnet_of, suggest_hca, usable_interfaces
from checks.profile import Profile
from checks.runner import check, majority


def _env(fleet: Fleet, name: str) -> str | None:
    assert fleet.launch is not None
    return fleet.launch.env.get(name)


def _ports(node: NodeFacts) -> tuple[IbPort, ...] | Finding:
    if node.fabric == NOT_ASKED:
        return skip(NOT_ASKED.reason)
    if isinstance(node.fabric, Unknown):
        return unknown(node.fabric.reason)
    for port in node.fabric.ports:
        if port.is_active is None or (port.is_active and isinstance(port.link_layer, Unknown)):
            return unknown(f"state or kind of {port.name} cannot be read")
    return node.fabric.ports


@check(
    "launch.ib_hca",
    scope="launch",
    bad="WARN if the list leaves active ports out, or a prefix takes more than its name; FAIL if a "
    "name is not there or not active, or InfiniBand and Ethernet are mixed",
    how="NCCL_IB_HCA (=exact, ^exclude, name:port, else prefix) against sysfs",
    fix="the printed NCCL_IB_HCA value",
)
def ib_hca(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """NCCL_IB_HCA names the node's active ports and no others.

    Without `=` mlx5_1 also takes mlx5_10 and mlx5_11; on some hosts mlx5_1 is a front-side card.
    """
    value = _env(fleet, "NCCL_IB_HCA")
    if fleet.device != "cuda" or _env(fleet, "NCCL_IB_DISABLE") == "1":
        yield skip("the launch does not use InfiniBand")
        return
    if not value:
        yield skip("NCCL_IB_HCA is not set: NCCL takes every active port")
        return
    ports = _ports(node)
    if isinstance(ports, Finding):
        yield ports
        return
    chosen = parse_list(value)
    better = suggest_hca(ports)
    fix = f"NCCL_IB_HCA='{better}'" if better else "NCCL_IB_DISABLE=1 on nodes without cards"
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
        yield fail(
            f"{', '.join(lost)} of NCCL_IB_HCA is not on the node",
            value=value,
            expected=better,
            fix=fix,
        )
    elif not taken:
        yield fail("NCCL_IB_HCA takes no port of the node", value=value, expected=better, fix=fix)
    elif down and not chosen.exclude:
        yield fail(
            f"{', '.join(down)} of NCCL_IB_HCA is not active", value=value, expected=better, fix=fix
        )
    elif len(layers) > 1:
        yield fail(
            "NCCL_IB_HCA mixes InfiniBand and Ethernet ports", value=value, expected=better, fix=fix
        )
    elif surprises := chosen.surprises(devices):
        entry, more = next(iter(surprises.items()))
        yield warn(
            f"{entry} without = also takes {', '.join(more)}", value=value, expected=better, fix=fix
        )
    else:
        left = [
            port.name
            for port in ports
            if port.is_active and str(port.link_layer) in layers and port not in taken
        ]
        if left and layers == {"InfiniBand"}:
            yield warn(
                f"NCCL_IB_HCA leaves out {', '.join(left)}", value=value, expected=better, fix=fix
            )
        else:
            yield passed(f"{len(taken)} ports")


@check(
    "launch.roce_gid",
    scope="launch",
    bad="FAIL if the index is not in a chosen RoCE port's GID table, or is no RoCE v2",
    how="NCCL_IB_GID_INDEX against gids and gid_attrs/types of sysfs",
    fix="the printed index, which may differ between nodes",
)
def roce_gid(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """NCCL_IB_GID_INDEX is a RoCE v2 entry on every port that NCCL takes."""
    value, names = _env(fleet, "NCCL_IB_GID_INDEX"), _env(fleet, "NCCL_IB_HCA")
    if fleet.device != "cuda" or not value:
        yield skip("NCCL_IB_GID_INDEX is not set" if fleet.device == "cuda" else "no GPU is used")
        return
    ports = _ports(node)
    if isinstance(ports, Finding):
        yield ports
        return
    chosen = parse_list(names) if names else None
    roce = [
        port
        for port in ports
        if port.is_active
        and port.link_layer == "Ethernet"
        and (chosen is None or chosen.takes(port.device, port.port))
    ]
    if not roce:
        yield skip("no active RoCE port is taken")
        return
    if not value.isdecimal():
        yield fail(f"NCCL_IB_GID_INDEX={value} is not a number", value=value)
        return
    for port in roce:
        at = {gid.index: gid for gid in port.gids}.get(int(value))
        good = [str(gid.index) for gid in port.gids if gid.type == "RoCE v2"]
        expected = good[-1] if good else None
        if not port.gids:
            yield unknown(f"{port.name}: its GID table cannot be read")
        elif at is not None and isinstance(at.type, Unknown):
            yield unknown(f"{port.name}: kind of GID {value}: {at.type.reason}")
        elif at is None or at.type != "RoCE v2":
            have = "nothing" if at is None else str(at.type)
            yield fail(
                f"{port.name}: GID {value} is {have}",
                value=value,
                expected=expected,
                fix=f"NCCL_IB_GID_INDEX={expected}" if expected else f"an address on {port.netdev}",
            )
        else:
            yield passed(f"GID {value} of {port.name} is RoCE v2")


@check(
    "launch.socket_ifname",
    scope="launch",
    bad="WARN if two interfaces match; FAIL if none does, or its subnet is not the majority's",
    how="NCCL_SOCKET_IFNAME (prefix, =, ^) against up interfaces with an address",
    fix="the interface that carries the nodes' own network",
)
def socket_ifname(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME means one routable interface on every node.

    Otherwise NCCL says `no socket interface found`, or an address family of 59936, or hangs.
    """
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = _env(fleet, name)
        if value and value != "auto" and (name.startswith("GLOO") or fleet.device == "cuda"):
            break
    else:
        yield skip("NCCL_SOCKET_IFNAME is not set, or not used")
        return
    if isinstance(node.network, Unknown):
        asked = node.network != NOT_ASKED
        yield (unknown if asked else skip)(node.network.reason)
        return
    chosen = {
        one.name: usable_interfaces(one.network.interfaces, value)
        for one in fleet.reached
        if isinstance(one.network, Network)
    }
    subnets = {key: subnet_of(found[0]) for key, found in chosen.items() if found}
    mine, common = chosen[node.name], majority(subnets).value
    there = [one.name for one in node.network.interfaces if one.up and subnet_of(one) is not None]
    right = [one.name for one in node.network.interfaces if common and subnet_of(one) == common]
    fix = f"{name}={'=' if name.startswith('NCCL') else ''}{(right or there or ['?'])[0]}"
    if node.network.unlisted is not None and not mine:
        yield unknown(f"the addresses of its interfaces: {node.network.unlisted.reason}")
    elif not mine:
        yield fail(
            f"{name}={value}: no such interface is up (there are {', '.join(there) or 'none'})",
            value=value,
            expected=", ".join(right) or None,
            fix=fix,
        )
    elif common is not None and subnet_of(mine[0]) != common:
        yield fail(
            f"{name}={value}: {mine[0].name} is in {subnet_of(mine[0])}, most nodes use {common}",
            value=mine[0].name,
            expected=", ".join(right) or None,
            source="majority",
            fix=fix,
        )
    elif len(mine) > 1 and not parse_list(value).exclude:
        names = ", ".join(one.name for one in mine)
        yield warn(f"{name}={value} means {names}", value=value, fix=fix)
    else:
        yield passed(f"{mine[0].name} in {subnet_of(mine[0])}")


@check(
    "launch.ib_present",
    scope="launch",
    bad="WARN if NCCL_IB_DISABLE is set although the node has active InfiniBand ports",
    how="NCCL_IB_DISABLE and NCCL_NET against sysfs",
    fix="leave NCCL_IB_DISABLE out, or --nccl h100-ib",
)
def ib_present(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """InfiniBand is not switched off where it is there.

    `--nccl ethernet` on an InfiniBand cluster trains, many times slower.
    """
    if fleet.device != "cuda":
        yield skip("no GPU is used")
        return
    ports = _ports(node)
    if isinstance(ports, Finding):
        yield ports
        return
    active = [port for port in ports if port.is_active and port.link_layer == "InfiniBand"]
    off = (
        _env(fleet, "NCCL_IB_DISABLE") == "1" or (_env(fleet, "NCCL_NET") or "").lower() == "socket"
    )
    if off and active:
        yield warn(
            f"NCCL uses TCP although {len(active)} InfiniBand ports are active",
            fix="leave NCCL_IB_DISABLE out",
        )
    else:
        yield passed("NCCL may use what is there")


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
}


@check(
    "launch.debug_env",
    scope="launch",
    bad="WARN if one is set",
    how="the launch's environment and that of a login without a terminal",
    fix="unset it; NCCL_DEBUG=WARN",
)
def debug_env(node: NodeFacts, _limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """No variable of yesterday's debugging slows the run down."""
    assert fleet.launch is not None
    own = node.system.environ if isinstance(node.system, System) else {}
    found = []
    for name, value in sorted({**own, **fleet.launch.env}.items()):
        if name in _SLOW and value not in ("", "0"):
            found.append(f"{name}={value} ({_SLOW[name]})")
        elif name == "NCCL_DEBUG" and value.upper() in ("INFO", "TRACE"):
            found.append(f"{name}={value} (megabytes of log from every rank)")
        elif name == "TORCH_DISTRIBUTED_DEBUG" and value.upper() == "DETAIL":
            found.append(f"{name}={value} (collectives are checked one by one)")
    if found:
        yield warn("; ".join(found), fix="unset " + " ".join(one.split("=")[0] for one in found))
    elif isinstance(node.system, Unknown):
        asked = node.system != NOT_ASKED
        yield (unknown if asked else skip)(f"its environment: {node.system.reason}")
    else:
        yield passed("no debug variable")
