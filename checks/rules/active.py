"""What `preflight --active` found: nodes that were made to work, alone and together."""

from __future__ import annotations

import math
from collections.abc import Iterator

from checks.facts import Active, DeviceSpeed, Fleet, Unknown
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.reference.gpu_throughput import reached_tflops
from checks.runner import check


def _of(fleet: Fleet) -> Active:
    assert fleet.active is not None  # the runner leaves these checks out without
    return fleet.active


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@check(
    "active.matmul",
    scope="active",
    bad=(
        "GPU: WARN 5 %, FAIL 10 % under the median of its model, FAIL under 0.65 of what the "
        "model reaches; CPU: FAIL under half of the median"
    ),
    how=(
        "torch multiplies matrices for 2 s on all devices at once, bf16 on a GPU, fp32 on a "
        "CPU; slow ones again, the better try counts"
    ),
    fix=(
        "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE there; another load? leave the node out: -x"
    ),
)
def matmul(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """Every device multiplies matrices as fast as the others of its model.

    One slow GPU sets the pace of all: a collective waits for the last. Floors by model are in
    checks/reference/gpu_throughput.py with their source.
    """
    active = _of(fleet)
    known: dict[str, list[float]] = {}
    for speeds in active.speeds.values():
        for one in speeds if not isinstance(speeds, Unknown) else ():
            known.setdefault(one.model, []).append(one.tflops)
    for node, speeds in active.speeds.items():
        if isinstance(speeds, Unknown):
            yield unknown(speeds.reason, nodes=(node,), fix=_env_fix(speeds.reason))
            continue
        bad = [_slow(one, known[one.model], active, limits) for one in speeds]
        found = [one for one in bad if one is not None]
        worst = next((one for one in found if one[0]), found[0] if found else None)
        if worst is None:
            low = min(one.tflops for one in speeds)
            which = f" on the slowest of {len(speeds)}" if len(speeds) > 1 else ""
            yield passed(f"{tflops(low)}{which}", nodes=(node,))
        else:
            is_fail, evidence, expected, source = worst
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            yield (fail if is_fail else warn)(
                evidence + more,
                nodes=(node,),
                expected=expected,
                source=source,
                fix="its power limit, clocks, heat and other load there; leave it out: -x " + node,
            )


def _slow(
    one: DeviceSpeed, peers: list[float], active: Active, limits: Profile
) -> tuple[bool, str, str, str] | None:
    """(FAIL or only WARN, evidence, expected, source); None for a device that is fast enough."""
    if not one.finite or not math.isfinite(one.tflops):
        return True, f"{one.device}: the products are not finite", "finite numbers", "fixed"
    said = f"{one.device} {tflops(one.tflops)}"
    reached = reached_tflops(one.model) if active.device == "cuda" else None
    if reached is not None and one.tflops < limits.active_floor_share * reached:
        floor = tflops(limits.active_floor_share * reached)
        return True, f"{said}, a {one.model} has at least {floor}", floor, "fixed"
    if len(peers) < 2:
        return None
    middle = _middle(peers)
    share = one.tflops / middle if middle else 1.0
    fail_share = limits.active_cpu_fail_share
    if active.device == "cuda":
        fail_share = limits.active_tflops_fail_share
    words = f"{said}, {1 - share:.0%} under the median of {len(peers)}"
    if share < fail_share:
        return True, words, tflops(middle), "majority"
    if active.device == "cuda" and share < limits.active_tflops_warn_share:
        return False, words, tflops(middle), "majority"
    return None


def tflops(value: float) -> str:
    """`794 TFLOP/s`, `52 GFLOP/s`."""
    if value < 1:
        return f"{value * 1000:.{0 if value >= 0.01 else 1}f} GFLOP/s"
    return f"{value:.{0 if value >= 100 else 1}f} TFLOP/s"


def rate(bytes_s: float) -> str:
    """`1.2 GB/s`, `8.1 MB/s`: decimal, as networks are sold."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_s >= size:
            return f"{bytes_s / size:.{0 if bytes_s >= 100 * size else 1}f} {unit}"
    return f"{bytes_s / 1e3:.1f} kB/s"


def _env_fix(reason: str) -> str | None:
    lacks = "torch is not installed" in reason or "cannot be started" in reason
    return "--python PATH names the interpreter of training on the nodes" if lacks else None


@check(
    "active.allreduce",
    scope="active",
    bad=(
        "FAIL: fails, hangs, or under half (on a CPU a tenth) of the median node's best pair, "
        "and again; UNKNOWN where nobody can tell which one"
    ),
    how=(
        "torch.distributed (nccl, or gloo on a CPU) sums over pairs along the ring of nodes, "
        "then over all, then over halves of what fails"
    ),
    fix="leave one node out: -x; its cable, NIC counters, MTU, firewall to the other",
)
def allreduce(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """All-reduce over the nodes works: no node and no link between them fails, hangs or is slow.

    A hang in a collective names nobody: every rank waits. Tests by pairs and halves do.
    """
    active = _of(fleet)
    seen = active.collectives
    if isinstance(seen, Unknown):
        yield (skip if seen.reason.startswith("one node") else unknown)(seen.reason)
        return
    told: set[str] = set()
    for node, why in seen.bad_nodes.items():
        told.add(node)
        yield fail(
            f"the node is bad in all-reduce: {why}",
            nodes=(node,),
            action=Action.SERVICE,
            fix=f"leave it out: -x {node}; then look at its processes, NIC and cable",
        )
    for link in seen.bad_links:
        told |= {link.first, link.second}
        yield fail(
            f"the link {link.first} - {link.second} is bad in all-reduce: {link.why}",
            nodes=(link.first, link.second),
            fix=(
                f"one of them is enough to leave out: -x {link.second}; route, firewall and "
                "cable between them"
            ),
        )
    for group, why in seen.unclear:
        told |= set(group)
        yield unknown(
            f"all-reduce is bad among these, and it cannot be told whose fault it is: {why}",
            nodes=group,
        )
    for node, why in seen.unknown.items():
        if node not in told:
            told.add(node)
            yield unknown(why, nodes=(node,), fix=_env_fix(why))
    good = tuple(node for node in seen.nodes if node not in told)
    if good:
        speed = seen.pair_bytes_s
        words = "" if isinstance(speed, Unknown) else f", {rate(speed)} a pair"
        yield passed(f"sums with the others{words}", nodes=good)


@check(
    "active.port",
    scope="active",
    bad=(
        "FAIL if the port is held, or closed to everybody who tried, or to one node; UNKNOWN "
        "where no node could try"
    ),
    how=(
        "each node listens on the rendezvous port and says a secret word; the next in the ring, "
        "all for the first node, connect; two more where that fails"
    ),
    fix="the firewall's line on that node; or another --master-port",
)
def port(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The next node reaches each node's rendezvous port, and all nodes reach the first one's.

    A blocked port shows itself as a launch that waits for ten minutes.
    """
    active = _of(fleet)
    if len(active.doors) < 2:
        yield skip("one node has nobody to reach")
        return
    for node, door in active.doors.items():
        if isinstance(door, Unknown):
            yield unknown(door.reason, nodes=(node,))
            continue
        why = next(iter(door.deaf.values()), "")
        fix = f"sudo iptables -S on {node}; the line that lets the nodes reach port {door.port}"
        if door.port is None:
            yield fail(
                f"the port cannot be listened on: {door.holder}",
                nodes=(node,),
                fix="end its holder, or another --master-port",
            )
        elif door.deaf and not door.heard:
            names = ", ".join(door.deaf)
            yield fail(
                f"port {door.port} is closed to all who tried, {names}: {why}",
                nodes=(node,),
                fix=fix,
            )
        elif door.deaf:
            for other, reason in door.deaf.items():
                yield fail(
                    f"{other} cannot reach port {door.port} of {node}, others can: {reason}",
                    nodes=(other,),
                    fix=f"routes and firewall from {other} to {node}",
                )
        elif door.heard:
            yield passed(f"port {door.port} answers", nodes=(node,))
        else:
            yield unknown("no other node could try its port", nodes=(node,))


@check(
    "active.token",
    scope="active",
    bad="WARN over 2 s; FAIL not seen within 10 s, another content, or hanging",
    how=(
        "one node writes a token into the folder of --shared, all others look for it; then it "
        "is removed"
    ),
    fix="mount on that node: is it the same server, and how long may it remember (actimeo)?",
)
def token(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """What one node writes into the shared folder is there for all others within seconds.

    Checkpoints and run directories live on it. The head's own token (storage.token) says nothing of
    what nodes see of each other.
    """
    active = _of(fleet)
    if not active.writer:
        yield skip("no --shared folder was named")
        return
    if active.write_error:
        yield fail(
            f"cannot write into the shared folder: {active.write_error}",
            nodes=(active.writer,),
            fix="its permissions, its room: df -h there",
        )
    for node, seen in active.shared.items():
        names, fix = (node,), "mount there, and the server's name in it"
        if seen.hung:
            yield fail("the shared folder hangs", nodes=names, fix=fix)
        elif isinstance(seen.seen_s, Unknown) and active.write_error:
            yield unknown(
                f"nothing was written: {seen.seen_s.reason}", nodes=names, because="active.token"
            )
        elif isinstance(seen.seen_s, Unknown):
            lost = "could not be asked" in seen.seen_s.reason
            words = f"the token of {active.writer}: {seen.seen_s.reason}"
            yield unknown(words, nodes=names) if lost else fail(words, nodes=names, fix=fix)
        elif seen.seen_s > limits.active_token_warn_s:
            yield warn(
                f"the token of {active.writer} came after {seen.seen_s:.1f} s", nodes=names, fix=fix
            )
        else:
            yield passed("sees what the others write", nodes=names)


@check(
    "active.read",
    scope="active",
    bad=(
        "WARN under half of the median; FAIL what is read is not what was written; UNKNOWN "
        "without an answer"
    ),
    how=(
        "all nodes at once read 64 MiB that one has written into the folder of --shared, past "
        "their own page cache"
    ),
    fix="its mount options, its link to the server, other load",
)
def read(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """All nodes read the shared folder at once, correctly, and about as fast as each other."""
    active = _of(fleet)
    if not active.writer:
        yield skip("no --shared folder was named")
        return
    known = [
        one.read_bytes_s for one in active.shared.values() if isinstance(one.read_bytes_s, float)
    ]
    for node, seen in active.shared.items():
        speed = seen.read_bytes_s
        if isinstance(speed, Unknown):
            if "not what was written" in speed.reason:
                yield fail(speed.reason, nodes=(node,), fix="its mount; the server's disks")
            else:
                yield unknown(speed.reason, nodes=(node,), because="active.token")
        elif len(known) > 2 and speed < limits.active_read_share * _middle(known):
            yield warn(
                f"reads {rate(speed)}, the median is {rate(_middle(known))}",
                nodes=(node,),
                value=rate(speed),
                expected=rate(_middle(known)),
                source="majority",
                fix="its mount options and its link to the server",
            )
        else:
            yield passed(f"reads {rate(speed)}", nodes=(node,))
