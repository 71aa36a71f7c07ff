"""InfiniBand and RoCE: ports up, fast, managed and quiet."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from checks import units
from checks.compare import each_node, majority
from checks.facts import Fabric, Fleet, IbPort, NodeFacts, Unknown, known
from checks.finding import Action, Finding, fail, need, passed, skip, unknown, warn
from checks.parsers.infiniband import ERROR_COUNTERS
from checks.profile import Profile
from checks.registry import check
from checks.rules.gpu import no_gpu

Judge = Callable[[NodeFacts, Fabric], Finding]
_NO_CARD = "no InfiniBand or RoCE card"


def _fabrics(fleet: Fleet) -> list[Fabric]:
    return known(node.fabric for node in fleet.reached)


def _each_fabric(fleet: Fleet, judge: Judge, every: bool = False) -> Iterator[Finding]:
    """SKIP on nodes without a card; with `every` only where no node has one."""
    any_card = any(fabric.ports for fabric in _fabrics(fleet))

    def judge_ports(node: NodeFacts, fabric: Fabric) -> Finding:
        has_card = bool(fabric.ports) or (every and any_card)
        return judge(node, fabric) if has_card else skip(_NO_CARD)

    return each_node(fleet, "fabric", judge_ports)


def _of_node(every: bool = False) -> Callable[[Judge], Callable[[Fleet], Iterator[Finding]]]:
    """Turn a judge of one node into a rule, see `_each_fabric`."""
    return lambda judge: functools.wraps(judge)(lambda fleet: _each_fabric(fleet, judge, every))


def _names(ports: Iterable[IbPort]) -> str:
    return ", ".join(port.name for port in ports)


def _state(port: IbPort) -> str:
    unread = isinstance(port.state, Unknown) or isinstance(port.phys_state, Unknown)
    return f"{port.state}{', ' if unread else '/'}{port.phys_state}"


@check("ib.ports", "fleet", advisory=True)
def ports(fleet: Fleet, expected: str | None) -> Iterator[Finding]:
    """Every port that is active on the other nodes is active here.

    Why: NCCL drops a rail that is down and the whole ring is slower, or does not start.
    Bad: WARN a port is down here that is not down on most nodes, or no port is active anywhere;
        FAIL fewer active ports than most nodes, a port down that is active on most
    How: sysfs state, phys_state and link_layer; never ibdev2netdev, whose (Down) is the IP side
    Fix: cable and transceiver, then the switch's port; ibstat; mlxlink -d DEVICE
    """
    fabrics = _fabrics(fleet)
    nodes = len(fabrics)
    every = [port for fabric in fabrics for port in fabric.ports]
    active = Counter(port.name for port in every if port.is_active)
    dead = Counter(port.name for port in every if port.is_active is False)
    counts = [sum(port.is_active is True for port in fabric.ports) for fabric in fabrics]
    most = int(expected) if expected and expected.isdecimal() else majority(counts)

    def judge(_node: NodeFacts, fabric: Fabric) -> Finding:
        count = sum(port.is_active is True for port in fabric.ports)
        have = {port.name for port in fabric.ports}
        unread = [port for port in fabric.ports if port.is_active is None]
        down = [port for port in fabric.ports if port.is_active is False]
        states = {port.name: f"{port.name} is {_state(port)}" for port in down}
        # Most of the other nodes have this very port active.
        missed = [name for name in states if 2 * active[name] > nodes - 1 > 0 and active[name]]
        gone = sorted(name for name in active if 2 * active[name] > nodes and name not in have)
        if missed or gone:
            words = [*(states[name] for name in missed), *(f"{name} is gone" for name in gone)]
            text = "; ".join(words)
            return fail(text, count, str(most), source="majority", action=Action.SERVICE)
        if unread:
            return unknown(f"{_names(unread)}: {_state(unread[0])}")
        if most is not None and count < most:
            text = f"{count} active ports, most nodes have {most}"
            return fail(text, count, most, source="majority")
        if down and count == 0:
            text = f"no port is active: {states[down[0].name]}"
            if nodes < 2:
                return fail(text)
            # They may be unused everywhere, or the switch is off.
            return warn(text if any(counts) else f"{text}, as on most nodes")
        # Ports that nobody uses are down on most nodes.
        odd = any(2 * dead[name] <= nodes for name in states)
        if odd and any(port.netdev for port in down):
            return warn("; ".join(states.values()))
        return passed(f"{count} active ports", count, source="majority")

    return _each_fabric(fleet, judge, every=True)


@check("ib.rate", "fleet", advisory=True)
def rate(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every active port runs at full speed.

    Why: A 400 Gb/s card that came up at 200 halves its rail and nothing logs it. A port is compared
        with its own kind only: beside eight rails of 400 Gb/s a node may have a card of 200 for
        storage.
    Bad: FAIL under 0.9 of the port's rate on most nodes (one node: of most ports of the same card)
    How: sysfs rate, 400 Gb/sec (4X NDR)
    Fix: cable, transceiver, the switch's port; mlxlink -d DEVICE
    """
    fabrics = [fabric for fabric in _fabrics(fleet) if fabric.ports]
    alone = len(fabrics) == 1

    def group(port: IbPort) -> tuple[str, ...]:
        """Ports that should have one rate: the same one of each node, or all of one card."""
        where = (str(port.board_id), str(port.model)) if alone else (port.name,)
        return (str(port.link_layer), *where)

    rates: defaultdict[tuple[str, ...], Counter[float]] = defaultdict(Counter)
    for port in (port for fabric in fabrics for port in fabric.ports):
        if port.is_active and isinstance(port.rate_gbps, float):
            rates[group(port)][port.rate_gbps] += 1
    # Of two equally common rates the higher: a port can come up slower than it is, not faster.
    common = {key: max(seen, key=lambda rate: (seen[rate], rate)) for key, seen in rates.items()}

    def judge(_node: NodeFacts, fabric: Fabric) -> Finding:
        slow, unread = [], []
        for port in fabric.ports:
            if port.is_active is False:
                continue
            if port.is_active is None or isinstance(port.rate_gbps, Unknown):
                unread.append(port)
            elif port.rate_gbps < limits.ib_rate_share * common[group(port)]:
                slow.append(port)
        if slow:
            gbps, best = need(slow[0].rate_gbps), common[group(slow[0])]
            others = "its other ports have" if alone else "most nodes have there"
            text = f"{_names(slow)}: {gbps:g} Gb/s, {others} {best:g}"
            return fail(text, str(gbps), best, source="majority", action=Action.SERVICE)
        if unread:
            return unknown(f"{_names(unread)}: rate cannot be read")
        return passed("full rate")

    return _each_fabric(fleet, judge)


@check("ib.subnet_manager", "fleet", advisory=True)
@_of_node(every=True)
def subnet_manager(_node: NodeFacts, fabric: Fabric) -> Finding:
    """A subnet manager has taken every InfiniBand port.

    Why: Without one the link is up and carries nothing: Initializing, lid 65535.
    Bad: FAIL on INIT or ARMED, or without a lid, on an InfiniBand port whose link is up
    How: sysfs state, lid and sm_lid; RoCE has none of them and needs none
    Fix: sudo systemctl restart opensm on the node that runs it, or the switch's subnet manager
    """
    band = [p for p in fabric.ports if (p.link_layer, p.phys_state) == ("InfiniBand", "LinkUp")]
    lost = [port for port in band if port.state in ("INIT", "ARMED") or port.lid in (0, 65535)]
    unread = []
    for port in fabric.ports:
        asked = (port.state, port.lid) if port in band else (port.link_layer, port.phys_state)
        if any(isinstance(value, Unknown) for value in asked):
            unread.append(port)
    if lost:
        return fail(f"{_names(lost)}: {_state(lost[0])}, no subnet manager")
    if unread:
        return unknown(f"{_names(unread)}: state or lid cannot be read")
    return passed("subnet manager answers") if band else skip("no InfiniBand link")


@check("ib.errors", "fleet", advisory=True)
@_of_node()
def errors(node: NodeFacts, fabric: Fabric) -> Finding:
    """No error counter grows.

    Bad: WARN if one grew since the previous run or during the measurement, FAIL if link_downed did
    How: counters and hw_counters, twice, and the previous run's record; a healthy port may show 14
    Fix: the port's cable and transceiver; mlxlink -d DEVICE -c
    """
    previous = node.last_look
    grown: list[tuple[str, str, int, str]] = []  # port, counter, count, when
    silent: dict[str, Unknown] = {}
    for port in fabric.ports:
        before = {} if previous is None else previous.counters.get(port.name, {})
        if why := _not_counted(port, before):
            silent[port.name] = why
        now = {} if isinstance(port.growth, Unknown) else port.growth
        grown += [
            (port.name, key, by, "during the measurement") for key, by in now.items() if by > 0
        ]
        when = "" if previous is None else f"in {units.duration(previous.age_s)}"
        grown += [
            (port.name, key, port.counters[key] - count, when)
            for key, count in before.items()
            if port.counters.get(key, 0) > count and not now.get(key)
        ]
    if grown:
        down = [item for item in grown if item[1] == "link_downed"]
        port_name, counter, by, when = (down or grown)[0]
        rest = f", and {len(grown) - 1} more" if len(grown) > 1 else ""
        text, fix = f"{port_name}: {counter} +{by} {when}{rest}", "cable and transceiver of "
        return (fail if down else warn)(text, by, 0, fix=fix + port_name)
    if unread := {name: why for name, why in silent.items() if not why.is_absence}:
        return unknown(f"error counters of {', '.join(unread)}: {next(iter(unread.values()))}")
    if len(silent) == len(fabric.ports):
        return skip(next(iter(silent.values())))
    return passed("no error counter grew")


def _not_counted(port: IbPort, before: Mapping[str, int]) -> Unknown | None:
    """Why nothing is known of a port's error counters, if so."""
    lost = [name for name in before if name not in port.counters]
    if lost or not port.counters:
        return Unknown(f"{', '.join(lost[:3]) or 'they'} cannot be read")
    if not any(name in port.counters for name in ERROR_COUNTERS):
        return Unknown("it has none that counts errors", is_absence=True)
    # A record of the previous run is as good as a second read.
    return port.growth if isinstance(port.growth, Unknown) and not before else None


@check("ib.gdr", "fleet", advisory=True)
@_of_node()
def gdr(node: NodeFacts, fabric: Fabric) -> Finding:
    """GPUDirect RDMA can work.

    Why: Else bytes between nodes go through the host's memory, unless the kernel uses dma-buf.
    Bad: WARN if the module is missing on a node with GPUs and InfiniBand, or the kernel complains
    How: nvidia_peermem in /proc/modules, `detected invalid context` in the kernel's log
    Fix: sudo modprobe nvidia-peermem
    """
    if without := no_gpu(node.gpus):
        return without
    if not need(fabric.peermem, "modules: ", unknown):
        return warn("module nvidia_peermem is not loaded")
    log = need(node.kernel_log, "nvidia_peermem is loaded, complaints about it: ")
    if any(event.kind == "peermem" for event in log.events):
        fix = "driver and MLNX_OFED of one generation; reload nvidia-peermem"
        return warn("nvidia-peermem: detected invalid context", fix=fix)
    return passed("nvidia_peermem is loaded")
