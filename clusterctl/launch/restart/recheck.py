"""A preflight of the nodes that an attempt may use: the checks of a launch, by one census.

What a launch has accepted is no reason against a restart: a run that trained keeps its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from checks.facts import Fleet, LaunchNeeds, NodeFacts
from checks.finding import Finding
from checks.runner import run_checks
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.start import ask_nodes
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster

# The agents look for a free port themselves; the first node is chosen after this. Disks fill up
# while a run trains: whether the next checkpoint has room is asked for itself (between.py).
WITHOUT = ("launch.port_free", "storage.disks", "storage.inodes")


def recheck(
    plan: LaunchPlan, cluster: Cluster, rules: Rules, nodes: Sequence[Node]
) -> Mapping[str, str]:
    """Nodes that fail a check which stops a launch, and why; none without `rules.needs`.

    A node that gave no answer is named by it, so one that is lost again is found here, too. The
    plan's checkpoint tells whether the run still needs what only its beginning reads.
    """
    needs = rules.needs
    if needs is None:
        return {}
    if plan.checkpoint is not None:
        needs = replace(needs, files=tuple(one for one in needs.files if one not in needs.at_first))
    where = (needs.run_dir_parent, str(plan.workdir), needs.files, needs.wandb)
    facts = ask_nodes(replace(cluster, nodes=nodes), plan.python, needs.port, *where)
    used = {node.name for node in plan.nodes}
    before = [one for one in facts if one.name in used]
    others = [one for one in facts if one.name not in used]
    return unfit(before, others, replace(needs, min_free_bytes=0), rules.accepted)


def unfit(
    before: Sequence[NodeFacts],
    others: Sequence[NodeFacts],
    needs: LaunchNeeds,
    accepted: Iterable[tuple[str, str]] = (),
) -> dict[str, str]:
    """Nodes that fail a check which stops a launch, and why.

    Those of `before` worked together and are judged as at the launch. Each of the `others` must
    fit to them, one after the other: a spare that does not is at fault itself, not those that have
    trained. `accepted` are (check, node) that the user has allowed.
    """
    allowed = set(accepted)
    found: dict[str, str] = {}
    for finding, name in _stopping(before, needs):
        if (finding.id, name) not in allowed:
            found.setdefault(name, f"{finding.id}: {finding.evidence}")
    fit = [one for one in before if one.name not in found]
    for other in others:
        whys = [
            f"{finding.id}: {finding.evidence}"
            for finding, name in _stopping([*fit, other], needs)
            if name == other.name and (finding.id, name) not in allowed
        ]
        if whys:
            found[other.name] = whys[0]
        else:
            fit.append(other)
    return found


def _stopping(facts: Sequence[NodeFacts], needs: LaunchNeeds) -> Iterator[tuple[Finding, str]]:
    if not facts:
        return
    fleet = Fleet(tuple(facts), replace(needs, master=facts[0].name))
    report = run_checks(fleet, without=WITHOUT)
    for finding in report.findings:
        if report.stops(finding):
            yield from ((finding, name) for name in finding.nodes)
