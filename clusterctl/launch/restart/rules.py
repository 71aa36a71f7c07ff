"""What a user allows a run to do when an attempt fails: restarts, spares, fewer nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.facts import LaunchNeeds
from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.launch.restart.choose import Pool
from clusterctl.nodes import Node, fold, select


@dataclass(frozen=True, slots=True)
class Rules:
    """`max_restarts` None: no limit of its own. Nodes are those that the run began with."""

    max_restarts: int | None = 0
    nodes: tuple[Node, ...] = ()
    spares: tuple[Node, ...] = ()
    min_nodes: int | None = None
    slots: Mapping[str, int] = field(default_factory=dict)  # ranks of each of these nodes
    needs: LaunchNeeds | None = None  # checked before each attempt; None: the user skipped it
    exclude_file: Path | None = None  # where a node with a fault of its own is entered
    patience_s: float = 86400.0  # while too few nodes can be used
    accepted: tuple[tuple[str, str], ...] = ()  # (check, node): failures that the user allowed

    @property
    def every_node(self) -> tuple[Node, ...]:
        return (*self.nodes, *self.spares)

    @property
    def pool(self) -> Pool:
        names = [tuple(node.name for node in group) for group in (self.nodes, self.spares)]
        return Pool(names[0], names[1], self.min_nodes)


def part_spares(
    every: Sequence[Node], chosen: Sequence[Node], named: str | None, wanted: str | None
) -> tuple[list[Node], list[Node]]:
    """The nodes that a run begins with, and its spares.

    `every` are those of the hostfile, `chosen` those that the user lets the run use, `named` the
    user's own choice (-w), `wanted` is --spares; both None without one. Raises `UsageError` for a
    spare that is chosen by name as well, or left out.
    """
    if wanted is None:
        return list(chosen), []
    spares = select(list(every), wanted, option="--spares")
    names, usable = {node.name for node in spares}, {node.name for node in chosen}
    if named is not None and (both := sorted(names & usable)):
        hint = "a spare waits until a node fails; name it in one of the two"
        raise UsageError(f"{fold(both)} is in -w {named} and in --spares {wanted}", hint=hint)
    if named is None and (out := sorted(names - usable)):
        text = f"{fold(out)} is in --spares {wanted} and is left out by -x"
        raise UsageError(text, hint="leave it out of --spares, too")
    return [node for node in chosen if node.name not in names], spares


def check_nodes(nodes: Sequence[Node], min_nodes: int | None) -> None:
    """Raises `UsageError` where none is left to begin with, or fewer than --min-nodes."""
    if not nodes:
        raise UsageError("no node is left to begin with: all are spares or excluded")
    if min_nodes is not None and min_nodes > len(nodes):
        text = f"--min-nodes {min_nodes} is more than the {counted(len(nodes), 'node')} of the run"
        raise UsageError(text, hint="spares do not count: they replace nodes that fail")
