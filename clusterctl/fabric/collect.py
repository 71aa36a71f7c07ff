"""Cards, network and GPUs of all nodes: what `fabric`, `env` and a launch work from."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from checks.facts import Fabric, Fleet, LaunchNeeds, NodeFacts
from checks.finding import Verdict
from checks.nccl.recommend import Suggestion, suggest
from checks.parsers.kernel_log import INTERESTING
from checks.rules.gpu import no_gpu
from clusterctl.errors import CouldNotFindOut, TransportError
from clusterctl.nodes import Node
from clusterctl.output import unreachable_lines
from clusterctl.preflight import last_census
from clusterctl.remote.cluster import Answers, Cluster
from clusterctl.remote.facts import read_node
from clusterctl.remote.fanout import Fanout
from clusterctl.transport.base import Progress

RESOLVE_S = 3.0
RECORD = "last-fabric.json"


def collect_fabric(
    cluster: Cluster, *, growth_s: float = 0.0, sudo: bool = False, memory: bool = False
) -> tuple[tuple[NodeFacts, ...], Answers]:
    """Facts of all nodes in order; counters are read twice, `growth_s` apart.

    With `memory` the error counters are compared with the previous run's, and written for the next.
    nvidia-smi is asked and not NVML, because only it tells how GPUs and cards are connected.
    """
    args = {"everything": True, "log": INTERESTING, "tool_timeout_s": cluster.limits.tool_s}
    args |= {"sudo": sudo, "growth_s": growth_s, "names": ["@"]}
    results = cluster.ask("census", args)
    facts = tuple(map(read_node, results))
    if memory:
        path = last_census.default_path().with_name(RECORD)
        facts, _ = last_census.compare(path, cluster.nodes, facts)
    return facts, results


def no_answers(results: Answers) -> CouldNotFindOut:
    """The error of a command that cannot go on, since no node answered."""
    lines = [f"  {line}" for line in unreachable_lines(results)]
    return CouldNotFindOut("no node answered, so the environment is unknown", more=lines)


def suggestions(
    nodes: Sequence[Node], facts: Sequence[NodeFacts], device: str, ranks: int | None = None
) -> tuple[Suggestion, ...]:
    """The environment that fits these nodes; `device` and `ranks` a node as for a launch."""
    from clusterctl.launch.start import choose_device, choose_slots

    chosen = choose_device(device, facts)
    slots = choose_slots(nodes, facts, ranks, chosen)
    # The fleet computes on the chosen device, whatever GPUs there are.
    needs = LaunchNeeds("", 0, slots, "cuda" if chosen == "cuda" else "cpu", "", 0)
    return suggest(Fleet(tuple(facts), needs), slots=slots, addresses=addresses_of(nodes))


def without_hardware(facts: Sequence[NodeFacts]) -> bool:
    """No node has a GPU or a card, and that is known: NCCL has no work there."""
    return all(
        node.unreached is None
        and isinstance(node.fabric, Fabric)
        and not node.fabric.ports
        and (without := no_gpu(node.gpus)) is not None
        and without.verdict is Verdict.SKIP
        for node in facts
    )


def addresses_of(nodes: Sequence[Node]) -> dict[str, str]:
    """IP address of each node as this machine resolves it; none for one only in ssh_config."""
    found: dict[str, str] = {}
    names = []
    for node in nodes:
        try:
            found[node.name] = str(ipaddress.ip_address(node.host or node.name))
        except ValueError:
            names.append(node)

    def resolve(node: Node, _progress: Progress) -> str:
        try:
            answers = socket.getaddrinfo(node.host or node.name, None, 0, socket.SOCK_STREAM)
            return str(answers[0][4][0])
        except OSError as error:
            raise TransportError("resolve", str(error)) from None

    for result in Fanout(names, resolve, deadline_s=RESOLVE_S) if names else ():
        if result.value is not None:
            found[result.node.name] = result.value
    return found
