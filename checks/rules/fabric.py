"""InfiniBand and RoCE: ports up, fast, managed and quiet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from checks.facts import NOT_ASKED, Fabric, Fleet, IbPort, KernelLog, NodeFacts, Unknown
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
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
    "ib.ports", scope="fleet", advisory=True,
    bad="WARN a port is down here that is not down on most nodes; FAIL fewer active ports than most nodes, a port "
        "down that is active on most",
    how="sysfs state, phys_state and link_layer; never ibdev2netdev, whose (Down) is the IP side",
    fix="cable and transceiver of that port, then the switch's port",
)  # fmt: skip
def ports(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every port that is active on the other nodes is active here.

    NCCL drops a rail that is down and the whole ring is slower, or does not start.
    """
    read = list(_fabrics(fleet))
    fabrics = [one for one in read if not isinstance(one, Finding)]
    active = Counter(port.name for _, fabric in fabrics for port in fabric.ports if port.is_active)
    counts = {node.name: sum(p.is_active for p in fabric.ports) for node, fabric in fabrics}
    expected = limits.expected.get("ib.ports")
    most = int(expected) if expected and expected.isdecimal() else majority(counts).value
    for one in read:
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        names, count = (node.name,), counts[node.name]
        down = [port for port in fabric.ports if not port.is_active]
        # Named by its peers: most of the others have this very port active.
        missed = [
            port
            for port in down
            if 2 * active[port.name] > len(fabrics) - 1 > 0 and active[port.name]
        ]
        gone = sorted(
            name for name, times in active.items()
            if 2 * times > len(fabrics) and name not in {port.name for port in fabric.ports}
        )  # fmt: skip
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
        elif most is not None and count < most:
            yield fail(f"{count} active ports, most nodes have {most}", fix=fix, **more)
        elif down and len(fabrics) < 2 and count == 0:
            yield fail(
                f"no port is active: {down[0].name} is {_said(down[0])}", nodes=names, fix=fix
            )
        elif down and any(port.netdev for port in down) and _odd(down, fabrics):
            yield warn(
                "; ".join(f"{port.name} is {_said(port)}" for port in down), nodes=names, fix=fix
            )
        else:
            yield passed(f"{count} active ports", nodes=names, value=str(count), source="majority")


def _said(port: IbPort) -> str:
    if isinstance(port.state, Unknown):
        return port.state.reason
    physical = "" if isinstance(port.phys_state, Unknown) else f"/{port.phys_state}"
    return f"{port.state}{physical}"


def _odd(down: list[IbPort], fabrics: list[tuple[NodeFacts, Fabric]]) -> bool:
    """Whether ports are down here that are not down on most nodes: unused ones are so everywhere."""
    dead = Counter(p.name for _, fabric in fabrics for p in fabric.ports if not p.is_active)
    return any(2 * dead[port.name] <= len(fabrics) for port in down)


@check(
    "ib.rate", scope="fleet", advisory=True,
    bad="FAIL under 0.9 of the rate that most active ports of that link layer have",
    how="sysfs rate, 400 Gb/sec (4X NDR)", fix="cable, transceiver, or the switch's port speed",
)  # fmt: skip
def rate(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every active port runs at full speed.

    A 400 Gb/s card that came up at 200 halves its rail and nothing logs it.
    """
    read = list(_fabrics(fleet))
    rates: dict[str, Counter[float]] = {}
    for one in read:
        if not isinstance(one, Finding):
            for port in one[1].ports:
                if port.is_active and isinstance(port.rate_gbps, float):
                    rates.setdefault(str(port.link_layer), Counter())[port.rate_gbps] += 1
    common = {
        layer: max(seen, key=lambda rate: (seen[rate], rate))
        for layer, seen in rates.items()
        # Front-side Ethernet cards differ by nature; only what carries data in numbers is judged.
        if layer == "InfiniBand" or len(seen) == 1 or seen.most_common(1)[0][1] > 2
    }
    for one in read:
        if isinstance(one, Finding):
            yield one
            continue
        node, fabric = one
        slow = [
            port for port in fabric.ports
            if port.is_active and isinstance(port.rate_gbps, float)
            and port.rate_gbps < limits.ib_rate_share * common.get(str(port.link_layer), 0.0)
        ]  # fmt: skip
        blind = [
            port.name
            for port in fabric.ports
            if port.is_active and isinstance(port.rate_gbps, Unknown)
        ]
        if slow:
            best = common[str(slow[0].link_layer)]
            yield fail(
                f"{', '.join(port.name for port in slow)}: {slow[0].rate_gbps} Gb/s, most ports have {best:g}",
                nodes=(node.name,), value=f"{slow[0].rate_gbps}", expected=f"{best:g}",
                source="majority", fix="cable, transceiver, the switch's port; mlxlink -d DEVICE",
                action=Action.SERVICE,
            )  # fmt: skip
        elif blind:
            yield unknown(f"{', '.join(blind)}: rate cannot be read", nodes=(node.name,))
        else:
            yield passed("full rate", nodes=(node.name,))


@check(
    "ib.subnet_manager", scope="fleet", advisory=True,
    bad="FAIL on INIT or ARMED, or without a lid, on an InfiniBand port whose link is up",
    how="sysfs state, lid and sm_lid; RoCE has none of them and needs none",
    fix="sudo systemctl restart opensm on the node that runs it, or the switch's subnet manager",
)  # fmt: skip
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
        if lost:
            yield fail(
                f"{', '.join(p.name for p in lost)}: {_said(lost[0])}, no subnet manager",
                nodes=(node.name,), fix="is opensm, or the switch's subnet manager, running?",
            )  # fmt: skip
        elif band:
            yield passed("subnet manager answers", nodes=(node.name,))
        else:
            yield skip("no InfiniBand link", nodes=(node.name,))


@check(
    "ib.errors", scope="fleet", advisory=True,
    bad="WARN if an error counter grew since the last look or while we looked, FAIL if link_downed did",
    how="counters and hw_counters read twice, and against the last look's record; their values alone "
        "say nothing, a healthy port shows 14",
    fix="the port's cable and transceiver; mlxlink -d DEVICE -c",
)  # fmt: skip
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
        for port in fabric.ports:
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
        elif not grown:
            yield passed("no error counter grew", nodes=(node.name,))
        else:
            down = [item for item in grown if item[1] == "link_downed"]
            port_name, counter, by, when = (down or grown)[0]
            rest = f", and {len(grown) - 1} more" if len(grown) > 1 else ""
            yield (fail if down else warn)(
                f"{port_name}: {counter} +{by} {when}{rest}", nodes=(node.name,), value=str(by),
                expected="0", fix=f"cable and transceiver of {port_name}",
            )  # fmt: skip


@check(
    "ib.flaps", needs=("kernel_log",), advisory=True,
    bad="WARN one lost link in 24 h, FAIL three",
    how="`lost carrier` and `Link down` in the kernel's log, by interface",
    fix="cable and transceiver of that port",
)  # fmt: skip
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
        yield passed("no link was lost in 24 h")
        return
    name, times = worst[0]
    yield (fail if times >= limits.ib_flaps_fail else warn)(
        f"{name} lost its link {times} times in 24 h", value=str(times), expected="0",
        fix=f"cable and transceiver of {name}", action=Action.SERVICE,
    )  # fmt: skip


@check(
    "ib.firmware_equal", scope="fleet", advisory=True, bad="WARN if it is not the majority's",
    how="fw_ver of each card, by model", fix="mlxfwmanager, in the next maintenance",
)  # fmt: skip
def firmware_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same card firmware on all nodes."""

    def read(node: NodeFacts) -> Any:
        if isinstance(node.fabric, Unknown):
            return node.fabric
        found = {
            f"{port.model} {port.firmware}"
            for port in node.fabric.ports
            if isinstance(port.firmware, str) and isinstance(port.model, str)
        }
        return ", ".join(sorted(found)) or None

    yield from compare(
        fleet, read, "firmware", bad=warn, fix="mlxfwmanager -u, in the next maintenance",
        expected=limits.expected.get("ib.firmware_equal"),
    )  # fmt: skip


@check(
    "ib.gdr", scope="fleet", advisory=True,
    bad="WARN if the module is missing on a node with GPUs and InfiniBand, or the kernel complains",
    how="nvidia_peermem in /proc/modules, `detected invalid context` in the kernel's log",
    fix="sudo modprobe nvidia-peermem",
)  # fmt: skip
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
        if not node.gpus.has_hardware or not fabric.ports:
            yield skip("no GPU or no card", nodes=(node.name,))
        elif isinstance(fabric.peermem, Unknown):
            yield unknown(f"modules: {fabric.peermem.reason}", nodes=(node.name,))
        elif not fabric.peermem:
            yield warn("module nvidia_peermem is not loaded", nodes=(node.name,),
                       fix="sudo modprobe nvidia-peermem")  # fmt: skip
        elif isinstance(node.kernel_log, KernelLog) and any(
            event.kind == "peermem" for event in node.kernel_log.events
        ):
            yield warn("nvidia-peermem: detected invalid context", nodes=(node.name,),
                       fix="driver and MLNX_OFED of one generation; reload nvidia-peermem")  # fmt: skip
        else:
            yield passed("nvidia_peermem is loaded", nodes=(node.name,))


@check(
    "ib.pcie_limited", needs=("kernel_log",), advisory=True,
    bad="WARN if the kernel says that a network card's PCIe link is narrower or slower than the card",
    how="`available PCIe bandwidth, limited by` of mlx5 in the kernel's log",
    fix="reseat the card, another slot, BIOS; then service",
)  # fmt: skip
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
        yield warn(f"{', '.join(cards)}: {words}", value=str(len(cards)), expected="0",
                   fix="reseat the card, another slot; lspci -vv | grep LnkSta", action=Action.SERVICE)  # fmt: skip
    else:
        yield passed("the kernel complains of no slow slot")
