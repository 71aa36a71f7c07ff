"""All active tests of a plan, one after another: facts for the rules in checks/rules/active.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from checks.facts import NOT_ASKED, Active, Collectives, DoorSeen, Maybe, SharedSeen, Unknown
from checks.profile import Profile
from clusterctl.nodes import counted
from clusterctl.preflight.active.collectives import try_links
from clusterctl.preflight.active.plan import Plan
from clusterctl.preflight.active.port_probe import PortProbe
from clusterctl.preflight.active.ranks import Speeds, measure_speeds, start_ranks
from clusterctl.preflight.active.shared_folder import try_shared
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.session_pool import SessionPool

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

    A node that is lost on the way is Unknown from then on; the others go on. The nodes are left
    as they were.
    """
    chosen = [node for node in cluster.nodes if node.name in plan.nodes]
    tests = set(plan.tests)
    doors: dict[str, Maybe[DoorSeen]] = {}
    shared: dict[str, SharedSeen] = {}
    speeds: dict[str, Speeds] = {}
    writer = write_error = ""
    collectives: Maybe[Collectives] = NOT_ASKED
    with SessionPool(replace(cluster, nodes=chosen), exit_s=EXIT_S) as pool:
        pool.gather()
        ports = PortProbe(pool, plan, machines)
        if tests & {"port", "allreduce"}:
            say("ports: each node listens, the next one connects")
            doors = ports.test()
        if "token" in tests and plan.shared is not None:
            say(f"token: {plan.nodes[0]} writes into {plan.shared}, all others read")
            shared, writer, write_error = try_shared(pool, plan)
        addresses = ports.addresses(chosen)
        unable: dict[str, str] = {}
        if tests & {"matmul", "allreduce"}:
            say(f"torch: starting it on {counted(len(pool.names), 'node')}")
            unable = {**pool.lost, **start_ranks(pool, plan, pool.names, addresses)}
        if "matmul" in tests:
            say(f"matmul: {plan.matmul_s:g} s on every device")
            speeds = measure_speeds(pool, plan, unable, profile.active_cpu_fail_share)
            for name, why in plan.left_out.items():
                if why != "not reached":
                    speeds[name] = Unknown(f"not tested: {why}")
        if "allreduce" in tests and len(plan.nodes) < 2:
            collectives = Unknown("all-reduce needs at least two nodes")
        elif "allreduce" in tests:
            share = profile.active_cpu_link_share
            if plan.device == "cuda":
                share = profile.active_link_share
            collectives = try_links(pool, plan, addresses, unable, share, say)
    if "port" not in tests:
        doors = {}
    return Active(plan.device, speeds, collectives, doors, shared, writer, write_error)
