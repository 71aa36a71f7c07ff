"""The answer of each node to the payload `census` as facts; a node without one is `unreached`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from checks.facts import NodeFacts, Unreached
from checks.parsers.census import parse_census
from clusterctl.nodes import is_loopback
from clusterctl.remote.fanout import NodeResult


def read_node(result: NodeResult[dict[str, Any]]) -> NodeFacts:
    """Facts of one node; one that gave no answer is `unreached`."""
    node = result.node
    if result.value is not None:
        return parse_census(node.name, result.value, loopback=is_loopback(node))
    why = result.unreachable
    assert why is not None
    return NodeFacts(node.name, loopback=is_loopback(node), unreached=Unreached(**asdict(why)))
