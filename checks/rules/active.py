"""What `preflight --active` found: nodes that were made to work, alone and together."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from checks import units
from checks.facts import Active, DeviceSpeed, Unknown, known
from checks.finding import Action, Finding, Verdict, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.reference.gpu_throughput import reached_tflops
from checks.registry import check


@check("active.matmul", "active")
def matmul(active: Active, limits: Profile) -> Iterator[Finding]:
    """Every device multiplies matrices as fast as the others of its model.

    Why: A collective waits for the slowest. Floors by model: checks/reference/gpu_throughput.py
    Bad: GPU: WARN 5 %, FAIL 10 % under the median of its model, FAIL under 0.65 of what the model
        reaches; CPU: FAIL under half of the median
    How: torch multiplies matrices for 2 s on all devices at once, bf16 on a GPU, fp32 on a CPU;
        slow ones again, the better try counts
    Fix: nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE there; another load? leave the node out: -x
    """
    peers: defaultdict[str, list[float]] = defaultdict(list)
    for one in itertools.chain(*known(active.speeds.values())):
        peers[one.model].append(one.tflops)
    for node, speeds in active.speeds.items():
        if isinstance(speeds, Unknown):
            yield unknown(speeds, nodes=(node,), fix=_env_fix(speeds.reason))
            continue
        judged = [_judge_speed(one, peers[one.model], active, limits) for one in speeds]
        slow = [found for found in judged if found is not None]
        if not slow:
            which = f" on the slowest of {len(speeds)}" if len(speeds) > 1 else ""
            yield passed(f"{tflops(min(one.tflops for one in speeds))}{which}", nodes=(node,))
            continue
        worst = next((found for found in slow if found.verdict is Verdict.FAIL), slow[0])
        more = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
        fix = f"its power limit, clocks, heat and other load there; leave it out: -x {node}"
        yield replace(worst, evidence=worst.evidence + more, nodes=(node,), fix=fix)


def _judge_speed(
    one: DeviceSpeed, peers: list[float], active: Active, limits: Profile
) -> Finding | None:
    """None for a device that is fast enough."""
    on_gpu, measured = active.device == "cuda", f"{one.device} {tflops(one.tflops)}"
    if not one.finite or not math.isfinite(one.tflops):
        text = f"{one.device}: the products are not finite; active.compute says which are wrong"
        return fail(text, expected="finite numbers")
    reached = reached_tflops(one.model) if on_gpu else None
    if reached is not None and one.tflops < limits.active_floor_share * reached:
        floor = tflops(limits.active_floor_share * reached)
        return fail(f"{measured}, a {one.model} has at least {floor}", expected=floor)
    median = statistics.median_high(peers)
    share = one.tflops / median if median else 1.0
    fail_share = limits.active_tflops_fail_share if on_gpu else limits.active_cpu_fail_share
    is_slow = share < fail_share or (on_gpu and share < limits.active_tflops_warn_share)
    if len(peers) < 2 or not is_slow:
        return None
    text = f"{measured}, {1 - share:.0%} under the median of {len(peers)}"
    bad = fail if share < fail_share else warn
    return bad(text, expected=tflops(median), source="majority")


def tflops(value: float) -> str:
    """`794 TFLOP/s`, `52 GFLOP/s`."""
    if value < 1:
        return f"{value * 1000:.{0 if value >= 0.01 else 1}f} GFLOP/s"
    return f"{value:.{0 if value >= 100 else 1}f} TFLOP/s"


def _env_fix(reason: str) -> str | None:
    lacks = "torch is not installed" in reason or "cannot be started" in reason
    return "--python PATH names the interpreter of training on the nodes" if lacks else None


@check("active.allreduce", "active")
def allreduce(active: Active) -> Iterator[Finding]:
    """All-reduce works inside every node and between them: none fails, hangs or is slow.

    Why: A hang in a collective names no node: every rank waits. Tests by pairs and halves name it.
    Bad: FAIL: fails, hangs, or under half (on a CPU a tenth) of the median node, alone or in its
        best pair, and again; UNKNOWN where it is not known which one; SKIP with one device alone
    How: torch.distributed (nccl, or gloo on a CPU) sums over the GPUs of each node alone, over
        pairs along the ring of nodes, then over all, then over halves of what fails
    Fix: leave one node out: -x; its cable, NIC counters, MTU, firewall to the other
    """
    seen = active.collectives
    if isinstance(seen, Unknown):
        yield (skip if seen.is_absence else unknown)(seen)
        return
    named = {*seen.bad_nodes, *(node for group, _ in seen.unclear for node in group)}
    named |= {node for link in seen.bad_links for node in (link.first, link.second)}
    for node, why in seen.bad_nodes.items():
        text = f"the node is bad in all-reduce: {why}"
        fix = f"leave it out: -x {node}; then look at its processes, NIC and cable"
        yield fail(text, nodes=(node,), action=Action.SERVICE, fix=fix)
    for link in seen.bad_links:
        text = f"the link {link.first} - {link.second} is bad in all-reduce: {link.why}"
        fix = f"one of them is enough to leave out: -x {link.second}"
        fix += "; route, firewall and cable between them"
        yield fail(text, nodes=(link.first, link.second), fix=fix)
    for group, why in seen.unclear:
        text = "all-reduce is bad among these, and it is not known which one is at fault"
        yield unknown(f"{text}: {why}", nodes=group)
    for node, why in seen.unknown.items():
        if node not in named:
            yield unknown(why, nodes=(node,), fix=_env_fix(why))
    speed = seen.pair_bytes_s
    measured = "" if isinstance(speed, Unknown) else f", {units.rate(speed)} a pair"
    between = [f"sums with the others{measured}"] if len(seen.nodes) > 1 else []
    for node in seen.nodes:
        if node not in {*named, *seen.unknown}:
            own = seen.inside_bytes_s.get(node)
            inside = [] if own is None else [f"its GPUs sum with each other, {units.rate(own)}"]
            yield passed("; ".join(between + inside), nodes=(node,))


@check("active.port", "active")
def port(active: Active) -> Iterator[Finding]:
    """The next node reaches each node's rendezvous port, and all nodes reach the first one's.

    Why: A blocked port shows itself as a launch that waits for ten minutes.
    Bad: FAIL if it is held, or closed to all who tried or to one node; UNKNOWN if no node could try
    How: each node listens on the rendezvous port and sends a secret word; the next in the ring, all
        for the first node, connect; two more where that fails
    Fix: the firewall's line on that node; or another --master-port
    """
    if len(active.meeting_ports) < 2:
        yield skip("there is no other node")
        return
    for node, seen in active.meeting_ports.items():
        names = (node,)
        if isinstance(seen, Unknown):
            yield unknown(seen, nodes=names)
        elif seen.port is None:
            text = f"the port cannot be listened on: {seen.holder}"
            yield fail(text, nodes=names, fix="end its holder, or another --master-port")
        elif seen.failed and not seen.reached_by:
            why = next(iter(seen.failed.values()))
            text = f"port {seen.port} is closed to all who tried, {', '.join(seen.failed)}: {why}"
            fix = f"sudo iptables -S on {node}; the line that lets the nodes reach port {seen.port}"
            yield fail(text, nodes=names, fix=fix)
        elif seen.failed:
            for other, reason in seen.failed.items():
                text = f"{other} cannot reach port {seen.port} of {node}, others can: {reason}"
                yield fail(text, nodes=(other,), fix=f"routes and firewall from {other} to {node}")
        elif seen.reached_by:
            yield passed(f"port {seen.port} answers", nodes=names)
        else:
            yield unknown("no other node could try its port", nodes=names)


@check("active.token", "active")
def token(active: Active, limits: Profile) -> Iterator[Finding]:
    """What one node writes into the shared folder is there for all others within seconds.

    Why: Checkpoints live on it; the head's own token (storage.token) shows only what the head sees.
    Bad: WARN over 2 s; FAIL not seen within 10 s, another content, or hanging
    How: one node writes a token into the folder of --shared, all others look for it
    Fix: mount there: is it the same server, and how long may it remember (actimeo)?
    """
    if not active.writer:
        yield skip("no --shared folder was named")
        return
    if active.write_error:
        text = f"cannot write into the shared folder: {active.write_error}"
        yield fail(text, nodes=(active.writer,), fix="its permissions, its free space: df -h there")
    for node, seen in active.shared.items():
        names, seen_s, what = (node,), seen.seen_s, f"the token of {active.writer}"
        if seen.hung:
            yield fail("the shared folder hangs", nodes=names)
        elif isinstance(seen_s, Unknown) and active.write_error:
            yield unknown(f"nothing was written: {seen_s}", nodes=names, because="active.token")
        elif isinstance(seen_s, Unknown):
            lost = "could not be asked" in seen_s.reason
            yield (unknown if lost else fail)(f"{what}: {seen_s}", nodes=names)
        elif seen_s > limits.active_token_warn_s:
            yield warn(f"{what} came after {units.duration(seen_s)}", nodes=names)
        else:
            yield passed("sees what the others write", nodes=names)


@check("active.read", "active")
def read(active: Active, limits: Profile) -> Iterator[Finding]:
    """All nodes read the shared folder at once, correctly, and about as fast as each other.

    Bad: WARN under half of the median; FAIL other content than was written; UNKNOWN no answer
    How: all nodes at once read 64 MiB that one wrote into --shared, past their page cache
    Fix: its mount options, its link to the server, other load
    """
    if not active.writer:
        yield skip("no --shared folder was named")
        return
    speeds = {node: seen.read_bytes_s for node, seen in active.shared.items()}
    measured = known(speeds.values())
    median = statistics.median_high(measured) if len(measured) > 2 else 0.0
    for node, speed in speeds.items():
        names = (node,)
        if isinstance(speed, Unknown) and "not what was written" in speed.reason:
            yield fail(speed, nodes=names, fix="its mount; the server's disks")
        elif isinstance(speed, Unknown):
            yield unknown(speed, nodes=names, because="active.token")
        elif speed < limits.active_read_share * median:
            text = f"reads {units.rate(speed)}, the median is {units.rate(median)}"
            yield warn(text, units.rate(speed), units.rate(median), nodes=names, source="majority")
        else:
            yield passed(f"reads {units.rate(speed)}", nodes=names)
