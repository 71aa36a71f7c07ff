"""What `preflight --active` found about devices that compute or copy wrongly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from checks.facts import (
    Active,
    DeviceCopies,
    DeviceProducts,
    Difference,
    Maybe,
    RepeatedProduct,
    Unknown,
    known,
)
from checks.finding import Action, Finding, fail, passed, unknown
from checks.registry import check

FEWEST = 3  # devices of a kind: of two that differ nobody can say which one is wrong
NAMED = 4  # devices in a sentence
Device = tuple[str, str]  # node, device
_KINDS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "TF32"}
_CHECK = "dcgmi diag -r 3 there, then service"
_NANS = (
    "a run that had it: TORCH_NCCL_NAN_CHECK=1 ends it at a NaN that enters a collective,"
    " torch.autograd.set_detect_anomaly(True) names the operation"
)


def right_one(values: Iterable[str]) -> str | None:
    """What more than half of at least three have; None where there is no such value."""
    counts = Counter(values)
    total = sum(counts.values())
    return next(
        (one for one, count in counts.items() if total >= FEWEST and count > total / 2), None
    )


def comparable(
    found: Mapping[str, Maybe[tuple[DeviceProducts, ...]]],
) -> dict[tuple[str, str], dict[Device, RepeatedProduct]]:
    """Products that must be equal bit by bit: of equal devices and libraries, and of one kind."""
    groups: defaultdict[tuple[str, str], dict[Device, RepeatedProduct]] = defaultdict(dict)
    for node, devices in found.items():
        for one in () if isinstance(devices, Unknown) else devices:
            for product in () if isinstance(one.products, Unknown) else one.products:
                groups[one.kin, product.kind][node, one.device] = product
    return dict(groups)


@check("active.compute", "active")
def compute(active: Active) -> Iterator[Finding]:
    """Every device computes the same products as the others of its model, bit by bit, each time.

    Why: A GPU that computes wrongly says nothing: the loss is NaN or a little worse, on all nodes.
    Bad: FAIL where a product differs from its own others, or from what most devices have; UNKNOWN
        where two differ and no third can say which is wrong, where several have one other result,
        and where a device could not be tested
    How: torch multiplies the same seeded matrices for 6 s on all devices at once (bf16, fp32, TF32;
        fp32 on a CPU); devices of one model, torch and cuBLAS have equal bits
    Fix: leave the node out: -x; dcgmi diag -r 3 there, then service
    """
    groups = comparable(active.products)
    said: defaultdict[Device, list[Finding]] = defaultdict(list)
    for (_kin, kind), members in groups.items():
        _judge_group(_KINDS.get(kind, kind), members, said)
    for node, devices in active.products.items():
        if isinstance(devices, Unknown):
            yield unknown(devices, nodes=(node,))
            continue
        is_quiet = True
        for one in devices:
            if isinstance(one.products, Unknown):
                text = f"{device_name(one.device)} could not be tested: {one.products}"
                yield unknown(text, nodes=(node,))
                is_quiet = False
            for finding in said[node, one.device]:
                is_quiet = False
                yield replace(finding, nodes=(node,))
        if is_quiet:
            yield passed(_agreement(devices, groups), nodes=(node,))


def _judge_group(
    kind: str, members: Mapping[Device, RepeatedProduct], said: dict[Device, list[Finding]]
) -> None:
    sums = Counter(one.sum for one in members.values())
    right = right_one(one.sum for one in members.values())
    unsteady = [device for device, one in members.items() if one.others]
    # What is not the same twice on most devices of a model is so by its library.
    if len(members) >= FEWEST and len(unsteady) > len(members) / 2:
        for device in members:
            text = f"{kind} products differ from time to time on {len(unsteady)} of {len(members)}"
            said[device].append(unknown(f"{text} devices of this model: nothing to compare with"))
        return
    for device, one in members.items():
        peers = "the other CPUs" if device[1].startswith("cpu") else "the other GPUs"
        others = f"{peers} of this model" if len(members) > 1 else "its own others"
        if one.sum == right and one.others:
            others = f"its own others and {sums[one.sum] - 1} {peers[10:]} of this model"
        if right is not None and one.sum != right:
            if sums[one.sum] > 1:
                text = (
                    f"{device_name(device[1])}: its {kind} products are those of"
                    f" {sums[one.sum] - 1} more, and not those of the other {sums[right]}"
                    " of this model: another library or setting?"
                )
                fix = "compare driver, cuBLAS and variables of these nodes with the others"
                said[device].append(unknown(text, fix=fix))
                continue
            count, where = one.count - one.others, one.from_majority
            others = f"the other {sums[right]} {peers[10:]} of this model"
            said[device].append(_wrong(device, f"{count} of {one.count}", kind, others, where))
        elif one.others:
            share = f"{one.others} of {one.count}"
            own = others if one.sum == right else "its own others"
            said[device].append(_wrong(device, share, kind, own, one.differs))
    if right is None and len(sums) > 1:
        names = [f"{node} {device_name(device)}" for node, device in members]
        shown = ", ".join(names[:NAMED]) + (
            f" and {len(names) - NAMED} more" * (len(names) > NAMED)
        )
        for device in members:
            text = f"{shown} differ in {kind} products, no majority: at least one computes wrongly"
            said[device].append(unknown(text, fix="test them beside others of their model"))


def _wrong(device: Device, share: str, kind: str, others: str, where: Difference | None) -> Finding:
    flips = f" ({_flips(where)})" if where is not None else ""
    text = (
        f"{device_name(device[1])} computes wrongly: {share} {kind} products differ from {others}"
    )
    fix = f"leave it out: -x {device[0]}; {_CHECK}; {_NANS}"
    return fail(text + flips, source="majority", action=Action.SERVICE, fix=fix)


def _flips(where: Difference) -> str:
    values = "1 value" if where.values == 1 else f"{where.values} values"
    if where.bits is None:
        return f"bit flips in at least {values}"
    bits = "1 bit flipped" if where.bits == 1 else f"{where.bits} bits flipped"
    return f"{bits} in {values}"


def _agreement(
    devices: tuple[DeviceProducts, ...],
    groups: Mapping[tuple[str, str], Mapping[Device, RepeatedProduct]],
) -> str:
    sizes = [len(groups[one.kin, p.kind]) for one in devices for p in known([one.products])[0]]
    fewest = min(sizes, default=1)
    if fewest == 1:
        return "each device has the same products every time; no other of its model to compare with"
    if fewest < FEWEST:
        return "the same products every time, and on both devices of this model"
    return f"the same products every time, and on all {fewest} devices of this model"


@check("active.copy", "active")
def copy(active: Active) -> Iterator[Finding]:
    """What is copied to a device, within it, back, and to the node's other devices is unchanged.

    Why: A copy with one bit flipped is a weight, a gradient or a sample that nobody wrote.
    Bad: FAIL where a copy differs from its source, or a host makes another pattern than most;
        UNKNOWN where a device could not be tested
    How: a seeded pattern and its inverse, 256 MiB a device (4 MiB on a CPU), by pageable and pinned
        memory, and 64 MiB from each GPU of the node to each other; compared bit by bit
    Fix: leave the node out: -x; dcgmi diag -r 3 there, then service
    """
    hosts: defaultdict[str, dict[Device, str]] = defaultdict(dict)
    for node, devices in active.copies.items():
        for one in () if isinstance(devices, Unknown) else devices:
            if one.sum:
                hosts[one.kin][node, one.device] = one.sum
    right = {kin: right_one(sums.values()) for kin, sums in hosts.items()}
    for node, devices in active.copies.items():
        if isinstance(devices, Unknown):
            yield unknown(devices, nodes=(node,))
            continue
        found = [finding for one in devices for finding in _judge_copies(node, one, right)]
        yield from found
        if not found:
            count = sum(known(one.steps for one in devices))
            yield passed(f"{count} copies are what was copied, bit by bit", nodes=(node,))


def _judge_copies(
    node: str, one: DeviceCopies, right: Mapping[str, str | None]
) -> Iterator[Finding]:
    name, names = device_name(one.device), (node,)
    if isinstance(one.steps, Unknown):
        yield unknown(f"{name} could not be tested: {one.steps}", nodes=names)
        return
    fix = f"leave it out: -x {node}; {_CHECK}"
    if one.wrong:
        first, count = one.wrong[0], len({wrong.step for wrong in one.wrong})
        more = f"; and {count - 1} more kinds of copies" if count > 1 else ""
        how = _flips(first.differs) if first.differs.values else "its checksum there is wrong"
        step = " to ".join(device_name(word) for word in first.step.split(" to "))
        where = (
            f", the first at byte {4 * first.differs.at}" if first.differs.at is not None else ""
        )
        text = f"{name} copies wrongly: {step}: {how}{where}"
        share = f"; {len(one.wrong)} of {one.steps} copies{more}"
        yield fail(text + share, nodes=names, action=Action.SERVICE, fix=fix)
    wanted = right.get(one.kin)
    if wanted is not None and one.sum not in ("", wanted):
        text = "the host makes another pattern of the same seed than the other nodes"
        yield fail(f"{name}: {text}", source="majority", nodes=names, fix="its memory, its CPU")


def device_name(device: str) -> str:
    """`GPU 3` for cuda:3, `CPU` for cpu, what it is between GPUs."""
    kind, _, number = device.partition(":")
    words = {"cuda": "GPU", "cpu": "CPU", "between": "a link between its devices"}
    return f"{words.get(kind, kind)} {number}".strip()
