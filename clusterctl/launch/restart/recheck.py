"""A preflight of the nodes that an attempt may use: the checks of a launch, by one census."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from checks.facts import Fleet, LaunchNeeds
from checks.runner import run_checks
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.start import ask_nodes
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster

# The agents look for a free port themselves; the first node is chosen after this.
WITHOUT = ("launch.port_free",)


def recheck(
    plan: LaunchPlan, cluster: Cluster, needs: LaunchNeeds | None, nodes: Sequence[Node]
) -> Mapping[str, str]:
    """Nodes that fail a check which stops a launch, and why; none without `needs`.

    A node that gave no answer is named by it, so one that is lost again is found here, too.
    """
    if needs is None:
        return {}
    where = (needs.run_dir_parent, str(plan.workdir), needs.files, needs.wandb)
    facts = ask_nodes(replace(cluster, nodes=nodes), plan.python, needs.port, *where)
    report = run_checks(Fleet(facts, replace(needs, master=nodes[0].name)), without=WITHOUT)
    unfit: dict[str, str] = {}
    for finding in report.findings:
        if report.stops(finding):
            for name in finding.nodes:
                unfit.setdefault(name, f"{finding.id}: {finding.evidence}")
    return unfit
