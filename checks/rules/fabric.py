"""InfiniBand and RoCE: ports up, fast, managed and quiet."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from checks.facts import NOT_ASKED, Fabric, Fleet, IbPort, KernelLog, NodeFacts, Unknown
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.parsers.infiniband import ERROR_COUNTERS
from checks.profile import Profile
from checks.rules.gpu import no_gpu
from checks.rules.xid import nothing_logged
from checks.runner import check, compare, majority

_NO_CARD = "no InfiniBand or RoCE card"


def _fabrics(fleet: Fleet) -> Iterator[tuple[NodeFacts, Fabric] | Finding]:
    """Nodes with their ports; where nobody has any, one SKIP for all."""
    seen = [node.fabric for node in fleet.reached if isinstance(node.fabric, Fabric)]
    nobody = not any(fabric.ports for fabric in seen)
    for node in fleet.reached:
        if node.fabric == NOT_ASKED:
            yield skip(NOT_ASKED.reason, nodes=(node.name,))
        elif isinstance(node.fabric, Unknown):
            yield unknown(node.fabric.reason, nodes=(node.name,))
        elif nobody:
            yield skip(_NO_CARD, nodes=(node.name,))
        else:
            yield node, node.fabric


@check(
    "ib.ports",
    scope="fleet",
    advisory=True,
    bad=(
        "WARN a port is down here that is not down on most nodes, or no port is active "
        "anywhere; FAIL fewer active ports than most nodes, a port "
        "down that is active on most"
    ),
    how="sysfs state, phys_state and link_layer; never ibdev2netdev, whose (Down) is the IP side",
    fix="cable and transceiver of that port, then the switch's port",
)
def ports(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every port that is active on the other nodes is active here.

    NCCL drops a rail that is down and the whole ring is slower, or does not start.
    """
    read = list(_fabrics(fleet))
    fabrics = [one for one in read if not isinstance(one, Finding)]
    active = Counter(port.name for _, fabric in fabrics for port in fabric.ports if port.is_active)
    counts = {node.name: sum(p.is_active is True for p in fabric.ports) for node, fabric in fabrics}
    expected = limits.expected.get("ib.ports")
    most = int(expected) if expected and expected.isdecimal() else majority(counts).value
    for one in read:
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        names, count = (node.name,), counts[node.name]
        blind = [port for port in fabric.ports if port.is_active is None]
        down = [port for port in fabric.ports if port.is_active is False]
        # Named by its peers: most of the others have this very port active.
        missed = [
            port
            for port in down
            if 2 * active[port.name] > len(fabrics) - 1 > 0 and active[port.name]
        ]
        gone = sorted(
            name
            for name, times in active.items()
            if 2 * times > len(fabrics) and name not in {port.name for port in fabric.ports}
        )
        fix = "cable and transceiver, then the switch's port; ibstat; mlxlink -d DEVICE"
        more: dict[str, Any] = {
            "value": str(count),
            "expected": str(most),
            "source": "majority",
            "nodes": names,
        }
        if missed or gone:
            words = [f"{port.name} is {_said(port)}" for port in missed] + [
                f"{name} is gone" for name in gone
            ]
            yield fail("; ".join(words), fix=fix, action=Action.SERVICE, **more)
        elif blind:
            yield unknown(
                f"{', '.join(port.name for port in blind)}: {_said(blind[0])}", nodes=names
            )
        elif most is not None and count < most:
            yield fail(f"{count} active ports, most nodes have {most}", fix=fix, **more)
        elif down and count == 0:
            text = f"no port is active: {down[0].name} is {_said(down[0])}"
            if len(fabrics) < 2:
                yield fail(text, nodes=names, fix=fix)
            else:  # they may be unused everywhere, or the switch is off
                also = "" if any(counts.values()) else ", as on most nodes"
                yield warn(text + also, nodes=names, fix=fix)
        elif down and any(port.netdev for port in down) and _odd(down, fabrics):
            yield warn(
                "; ".join(f"{port.name} is {_said(port)}" for port in down), nodes=names, fix=fix
            )
        else:
            yield passed(f"{count} active ports", nodes=names, value=str(count), source="majority")


def _said(port: IbPort) -> str:
    unread = isinstance(port.state, Unknown) or isinstance(port.phys_state, Unknown)
    return f"{port.state}{', ' if unread else '/'}{port.phys_state}"


def _odd(down: list[IbPort], fabrics: list[tuple[NodeFacts, Fabric]]) -> bool:
    """Whether ports are down here that are up on most nodes: unused ones are down everywhere."""
    dead = Counter(p.name for _, fabric in fabrics for p in fabric.ports if p.is_active is False)
    return any(2 * dead[port.name] <= len(fabrics) for port in down)


@check(
    "ib.rate",
    scope="fleet",
    advisory=True,
    bad="FAIL under 0.9 of the rate that the same port has on most nodes (of one node alone: that "
    "most of its ports of the same card have)",
    how="sysfs rate, 400 Gb/sec (4X NDR)",
    fix="cable, transceiver, or the switch's port speed",
)
def rate(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every active port runs at full speed.

    A 400 Gb/s card that came up at 200 halves its rail and nothing logs it. A port is compared with
    its own kind only: beside eight rails of 400 Gb/s a node may have a card of 200 for storage.
    """
    read = list(_fabrics(fleet))
    fabrics = [one[1] for one in read if not isinstance(one, Finding) and one[1].ports]
    alone = len(fabrics) == 1
    rates: dict[tuple[str, ...], Counter[float]] = {}
    for fabric in fabrics:
        for port in fabric.ports:
            if port.is_active and isinstance(port.rate_gbps, float):
                rates.setdefault(_kind(port, alone), Counter())[port.rate_gbps] += 1
    # Of two equally common rates the higher: a port can come up slower than it is, not faster.
    common = {kind: max(seen, key=lambda rate: (seen[rate], rate)) for kind, seen in rates.items()}
    for one in read:
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        slow = [
            port
            for port in fabric.ports
            if port.is_active
            and isinstance(port.rate_gbps, float)
            and port.rate_gbps < limits.ib_rate_share * common[_kind(port, alone)]
        ]
        blind = [
            port.name
            for port in fabric.ports
            if port.is_active is None or (port.is_active and isinstance(port.rate_gbps, Unknown))
        ]
        if slow:
            best = common[_kind(slow[0], alone)]
            others = "its other ports have" if alone else "most nodes have there"
            yield fail(
                f"{', '.join(port.name for port in slow)}: {slow[0].rate_gbps:g} Gb/s, "
                f"{others} {best:g}",
                nodes=(node.name,),
                value=f"{slow[0].rate_gbps}",
                expected=f"{best:g}",
                source="majority",
                fix="cable, transceiver, the switch's port; mlxlink -d DEVICE",
                action=Action.SERVICE,
            )
        elif blind:
            yield unknown(f"{', '.join(blind)}: rate cannot be read", nodes=(node.name,))
        elif not fabric.ports:
            yield skip(_NO_CARD, nodes=(node.name,))
        else:
            yield passed("full rate", nodes=(node.name,))


def _kind(port: IbPort, alone: bool) -> tuple[str, ...]:
    """Ports that should have one rate: the same one of each node, or all of one card."""
    where = (str(port.board_id), str(port.model)) if alone else (port.name,)
    return (str(port.link_layer), *where)


@check(
    "ib.subnet_manager",
    scope="fleet",
    advisory=True,
    bad="FAIL on INIT or ARMED, or without a lid, on an InfiniBand port whose link is up",
    how="sysfs state, lid and sm_lid; RoCE has none of them and needs none",
    fix="sudo systemctl restart opensm on the node that runs it, or the switch's subnet manager",
)
def subnet_manager(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """A subnet manager has taken every InfiniBand port.

    Without one the link is up and carries nothing: Initializing, lid 65535.
    """
    for one in _fabrics(fleet):
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        band = [
            p for p in fabric.ports if p.link_layer == "InfiniBand" and p.phys_state == "LinkUp"
        ]
        lost = [p for p in band if p.state in ("INIT", "ARMED") or p.lid in (0, 65535)]
        blind = [
            p.name
            for p in fabric.ports
            if isinstance(p.link_layer, Unknown)
            or isinstance(p.phys_state, Unknown)
            or (p in band and (isinstance(p.state, Unknown) or isinstance(p.lid, Unknown)))
        ]
        if lost:
            yield fail(
                f"{', '.join(p.name for p in lost)}: {_said(lost[0])}, no subnet manager",
                nodes=(node.name,),
                fix="is opensm, or the switch's subnet manager, running?",
            )
        elif blind:
            yield unknown(f"{', '.join(blind)}: state or lid cannot be read", nodes=(node.name,))
        elif band:
            yield passed("subnet manager answers", nodes=(node.name,))
        else:
            yield skip("no InfiniBand link", nodes=(node.name,))


def _not_counted(port: IbPort, before: Mapping[str, int] | None) -> Unknown | None:
    """Why nothing is known of a port's error counters, if so."""
    have = [name for name in ERROR_COUNTERS if name in port.counters]
    lost = [name for name in before or {} if name not in port.counters]
    if lost or not port.counters:
        return Unknown(f"{', '.join(lost[:3]) or 'they'} cannot be read")
    if not have:
        return Unknown("it has none that counts errors", is_absence=True)
    # A record of the last look tells as much as a second read does.
    return port.growth if isinstance(port.growth, Unknown) and not before else None


@check(
    "ib.errors",
    scope="fleet",
    advisory=True,
    bad=(
        "WARN if an error counter grew since the last look or while we looked, FAIL if "
        "link_downed did"
    ),
    how=(
        "counters and hw_counters read twice, and against the last look's record; their values "
        "alone "
        "say nothing, a healthy port shows 14"
    ),
    fix="the port's cable and transceiver; mlxlink -d DEVICE -c",
)
def errors(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """No error counter grows."""
    for one in _fabrics(fleet):
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        boot = None if isinstance(node.machine, Unknown) else node.machine.boot_id
        before = None
        if not isinstance(node.previous, Unknown) and node.previous.boot_id == boot:
            before = node.previous
        grown: list[tuple[str, str, int, str]] = []
        blind: list[tuple[IbPort, Unknown]] = []
        for port in fabric.ports:
            if why := _not_counted(
                port, None if before is None else before.counters.get(port.name)
            ):
                blind.append((port, why))
            now = {} if isinstance(port.growth, Unknown) else dict(port.growth)
            grown += [
                (port.name, name, by, "while we looked") for name, by in now.items() if by > 0
            ]
            if before is not None:
                was = before.counters.get(port.name, {})
                grown += [
                    (
                        port.name,
                        name,
                        port.counters[name] - value,
                        f"in {before.age_s / 3600:.1f} h",
                    )
                    for name, value in was.items()
                    if port.counters.get(name, 0) > value and not now.get(name)
                ]
        if not fabric.ports:
            yield skip(_NO_CARD, nodes=(node.name,))
        elif not grown and any(not why.is_absence for _, why in blind):
            names = ", ".join(port.name for port, why in blind if not why.is_absence)
            reason = next(why.reason for _, why in blind if not why.is_absence)
            yield unknown(f"error counters of {names}: {reason}", nodes=(node.name,))
        elif not grown and len(blind) == len(fabric.ports):
            yield skip(blind[0][1].reason, nodes=(node.name,))
        elif not grown:
            yield passed("no error counter grew", nodes=(node.name,))
        else:
            down = [item for item in grown if item[1] == "link_downed"]
            port_name, counter, by, when = (down or grown)[0]
            rest = f", and {len(grown) - 1} more" if len(grown) > 1 else ""
            yield (fail if down else warn)(
                f"{port_name}: {counter} +{by} {when}{rest}",
                nodes=(node.name,),
                value=str(by),
                expected="0",
                fix=f"cable and transceiver of {port_name}",
            )


@check(
    "ib.flaps",
    needs=("kernel_log",),
    advisory=True,
    bad="WARN one lost link in 24 h, FAIL three",
    how="`lost carrier` and `Link down` in the kernel's log, by interface",
    fix="cable and transceiver of that port",
)
def flaps(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """No link goes down and comes back.

    A port that heals itself still kills the collective that was on it.
    """
    assert isinstance(node.kernel_log, KernelLog)
    names = {"ib", "mlx"}
    if isinstance(node.fabric, Fabric):
        names |= {port.netdev for port in node.fabric.ports if isinstance(port.netdev, str)}
    lost: Counter[str] = Counter()
    for event in node.kernel_log.events:
        recent = isinstance(event.age_s, Unknown) or event.age_s < 86400
        if event.kind == "link-lost" and recent and event.subject.startswith(tuple(names)):
            lost[event.subject] += 1
    worst = lost.most_common(1)
    if not worst or worst[0][1] < limits.ib_flaps_warn:
        if isinstance(node.fabric, Unknown) and node.fabric != NOT_ASKED:
            yield unknown(f"which interfaces are those of cards: {node.fabric.reason}")
        else:
            yield nothing_logged(node.kernel_log, "no link was lost in 24 h", 86400)
        return
    name, times = worst[0]
    yield (fail if times >= limits.ib_flaps_fail else warn)(
        f"{name} lost its link {times} times in 24 h",
        value=str(times),
        expected="0",
        fix=f"cable and transceiver of {name}",
        action=Action.SERVICE,
    )


@check(
    "ib.firmware_equal",
    scope="fleet",
    advisory=True,
    bad="WARN if it is not the majority's",
    how="fw_ver of each card, by model",
    fix="mlxfwmanager, in the next maintenance",
)
def firmware_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same card firmware on all nodes."""

    def read(node: NodeFacts) -> Any:
        if isinstance(node.fabric, Unknown):
            return node.fabric
        for port in node.fabric.ports:
            for value in (port.firmware, port.model):
                if isinstance(value, Unknown) and not value.is_absence:
                    return Unknown(f"{port.name}: {value.reason}")
        found = {
            f"{port.model} {port.firmware}"
            for port in node.fabric.ports
            if isinstance(port.firmware, str) and isinstance(port.model, str)
        }
        return ", ".join(sorted(found)) or None

    yield from compare(
        fleet,
        read,
        "firmware",
        bad=warn,
        fix="mlxfwmanager -u, in the next maintenance",
        expected=limits.expected.get("ib.firmware_equal"),
    )


@check(
    "ib.gdr",
    scope="fleet",
    advisory=True,
    bad="WARN if the module is missing on a node with GPUs and InfiniBand, or the kernel complains",
    how="nvidia_peermem in /proc/modules, `detected invalid context` in the kernel's log",
    fix="sudo modprobe nvidia-peermem",
)
def gdr(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """GPUDirect RDMA can work.

    Without it every byte between nodes takes a detour through the host's memory. Newer kernels can
    do it by dma-buf without the module, so it is a warning only.
    """
    for one in _fabrics(fleet):
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        if not fabric.ports:
            yield skip(_NO_CARD, nodes=(node.name,))
        elif without := no_gpu(node.gpus):
            yield dataclasses.replace(without, nodes=(node.name,))
        elif isinstance(fabric.peermem, Unknown):
            yield unknown(f"modules: {fabric.peermem.reason}", nodes=(node.name,))
        elif not fabric.peermem:
            yield warn(
                "module nvidia_peermem is not loaded",
                nodes=(node.name,),
                fix="sudo modprobe nvidia-peermem",
            )
        elif isinstance(node.kernel_log, KernelLog) and any(
            event.kind == "peermem" for event in node.kernel_log.events
        ):
            yield warn(
                "nvidia-peermem: detected invalid context",
                nodes=(node.name,),
                fix="driver and MLNX_OFED of one generation; reload nvidia-peermem",
            )
        elif node.kernel_log == NOT_ASKED:  # as the runner does for a node's own checks
            yield skip(
                "nvidia_peermem is loaded, complaints about it: not asked", nodes=(node.name,)
            )
        elif isinstance(node.kernel_log, Unknown):
            why = f"nvidia_peermem is loaded, complaints about it: {node.kernel_log.reason}"
            yield unknown(why, nodes=(node.name,))
        else:
            yield passed("nvidia_peermem is loaded", nodes=(node.name,))


@check(
    "ib.pcie_limited",
    needs=("kernel_log",),
    advisory=True,
    bad=(
        "WARN if the kernel says that a network card's PCIe link is narrower or slower than the "
        "card"
    ),
    how="`available PCIe bandwidth, limited by` of mlx5 in the kernel's log",
    fix="reseat the card, another slot, BIOS; then service",
)
def pcie_limited(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """Network cards have all their PCIe lanes.

    A 400 Gb/s card on eight lanes carries half, and its port still says 400.
    """
    assert isinstance(node.kernel_log, KernelLog)
    slow = [
        event
        for event in node.kernel_log.events
        if event.kind == "pcie-slow" and "mlx" in event.line
    ]
    if slow:
        words = slow[-1].line.partition(": ")[2][:110]
        cards = sorted({event.subject for event in slow})
        yield warn(
            f"{', '.join(cards)}: {words}",
            value=str(len(cards)),
            expected="0",
            fix="reseat the card, another slot; lspci -vv | grep LnkSta",
            action=Action.SERVICE,
        )
    else:
        yield nothing_logged(node.kernel_log, "the kernel complains of no slow slot")
