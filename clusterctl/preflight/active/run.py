"""All active tests of a plan, one after another: facts for the rules in checks/rules/active.py."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from checks import units
from checks.facts import NOT_ASKED, Active, Collectives, Maybe, PortSeen, SharedSeen, Unknown
from checks.profile import Profile
from checks.units import counted
from clusterctl.preflight.active.bits import Copies, Products, compare_copies, compare_products
from clusterctl.preflight.active.collectives import try_links
from clusterctl.preflight.active.plan import Plan
from clusterctl.preflight.active.port_probe import PortProbe
from clusterctl.preflight.active.ranks import Speeds, measure_speeds, start_ranks
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.session_pool import Answer, SessionPool

STEP_S = 60.0  # to write or to read all of the file in the shared folder
EXIT_S = 10.0  # for all payloads together, at the end: they remove what they wrote


def run_active(
    plan: Plan,
    cluster: Cluster,
    *,
    profile: Profile,
    machines: Mapping[str, str],
    say: Callable[[str], None],
) -> Active:
    """Carry out `plan`; names with an equal value in `machines` are one machine.

    A node that is lost on the way is Unknown from then on. The nodes are left as they were.
    """
    chosen = [node for node in cluster.nodes if node.name in plan.nodes]
    tests = set(plan.tests)
    meeting_ports: dict[str, Maybe[PortSeen]] = {}
    shared: dict[str, SharedSeen] = {}
    speeds: dict[str, Speeds] = {}
    products: Products = {}
    copies: Copies = {}
    left_out = {
        name: Unknown(f"not tested: {why}")
        for name, why in plan.left_out.items()
        if why != "not reached"
    }
    writer = write_error = ""
    collectives: Maybe[Collectives] = NOT_ASKED
    with closing(SessionPool(replace(cluster, nodes=chosen), exit_s=EXIT_S)) as pool:
        pool.gather()
        ports = PortProbe(pool, plan, machines)
        if tests & {"port", "allreduce"}:
            say("ports: each node listens, the next one connects")
            meeting_ports = ports.test()
        if "token" in tests and plan.shared is not None:
            say(f"token: {plan.nodes[0]} writes into {plan.shared}, all others read")
            shared, writer, write_error = try_shared(pool, plan)
        addresses = ports.addresses(chosen)
        unable: dict[str, str] = {}
        if plan.needs_torch:
            say(f"torch: starting it on {counted(len(pool.names), 'node')}")
            unable = {**pool.lost, **start_ranks(pool, plan, pool.names, addresses)}
        if "matmul" in tests:
            say(f"matmul: {units.duration(plan.matmul_s)} on every device")
            speeds = measure_speeds(pool, plan, unable, profile.active_cpu_fail_share)
            speeds |= left_out
        if "products" in tests:
            say(f"products: {units.duration(plan.products_s)} on every device, compared bit by bit")
            products = {**compare_products(pool, plan, unable), **left_out}
        if "copies" in tests:
            say("copies: on every device, compared bit by bit")
            copies = {**compare_copies(pool, plan, unable), **left_out}
        if "allreduce" in tests and not plan.has_sums:
            why = "one node with one device has none to sum with"
            collectives = Unknown(why, is_absence=True)
        elif "allreduce" in tests:
            shares = {"cuda": profile.active_link_share, "cpu": profile.active_cpu_link_share}
            collectives = try_links(pool, plan, addresses, unable, shares[plan.device], say)
    meeting_ports = meeting_ports if "port" in tests else {}
    return Active(
        plan.device,
        speeds,
        collectives,
        meeting_ports,
        shared,
        writer,
        write_error,
        products=products,
        copies=copies,
    )


def try_shared(pool: SessionPool, plan: Plan) -> tuple[dict[str, SharedSeen], str, str]:
    """One node writes into the shared folder; all others look for it and read it.

    Returns what each node saw, who wrote, why it could not write; the folder is gone afterwards.
    """
    assert plan.shared is not None
    names = [name for name in plan.nodes if name not in pool.lost]
    if not names:
        return {}, "", ""
    writer, word = names[0], secrets.token_hex(16)
    folder = str(plan.shared.absolute() / f".clusterctl-active-{word[:8]}")
    about = {"folder": folder, "word": word, "blocks": plan.blocks, "patience_s": plan.token_s}

    def ask(do: str, nodes: list[str], timeout_s: float) -> dict[str, Answer]:
        orders = {name: {"op": "files", "ask": {**about, "do": do}} for name in nodes}
        answers = pool.ask(orders, timeout_s)
        for name in set(nodes) - set(answers):
            answers[name] = {"error": f"could not be asked: {pool.lost.get(name, 'no answer')}"}
        return answers

    try:
        wrote = ask("write", [writer], STEP_S)[writer]
        if "error" in wrote:
            nothing = _seen({"error": "nobody wrote"}, {})
            seen = {**dict.fromkeys(names, nothing), writer: _seen(wrote, {})}
            return seen, writer, str(wrote["error"])
        watched = ask("watch", names, plan.token_s + 5.0)
        read = ask("read", [name for name in names if "error" not in watched[name]], STEP_S)
        speeds = {name: _speed(answer) for name, answer in read.items() if "error" not in answer}
        middle = sorted(speeds.values())[len(speeds) // 2] if speeds else 0.0
        slow = [name for name, speed in speeds.items() if speed < middle / 2]
        for name, again in ask("read", slow, STEP_S).items():
            if "error" not in again and _speed(again) > speeds[name]:
                read[name] = again  # slow only for a moment
    finally:
        ask("remove", [name for name in names if name not in pool.lost][:1], 10.0)
    return {name: _seen(watched[name], read.get(name, {})) for name in names}, writer, ""


def _seen(watched: Answer, read: Answer) -> SharedSeen:
    if "error" in watched:
        why = Unknown(watched["error"])
        return SharedSeen(why, why, bool(watched.get("hung")))
    if "error" in read:
        return SharedSeen(watched["seen_s"], Unknown(read["error"]), bool(read.get("hung")))
    return SharedSeen(watched["seen_s"], _speed(read) if read["bytes"] else NOT_ASKED)


def _speed(answer: Answer) -> float:
    return float(answer["bytes"]) / max(1e-6, float(answer["seconds"]))
