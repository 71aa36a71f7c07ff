"""Leaves excluded nodes out of those chosen, and says which and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.errors import HostfileError
from clusterctl.exclude.entries import FILE, Exclusion, stamp
from clusterctl.nodes import Node, fold, grouped


@dataclass(frozen=True, slots=True)
class Chosen:
    """The nodes that may be used, the entries that hold, and sentences about both for people."""

    nodes: list[Node]
    excluded: tuple[Exclusion, ...]
    sentences: tuple[str, ...]


def short_names(names: Sequence[str], entries: Sequence[Exclusion], now_s: float) -> list[str]:
    """A sentence for each entry that is of none of these nodes, and may mean one of them: n2 and
    n2.example.com. Which machine it means cannot be known, as a folder may have several hostfiles.
    """
    known = set(names)
    labels = grouped((name.partition(".")[0], name) for name in names)
    found = []
    for entry in entries:
        if entry.node in known or entry.is_over(now_s):
            continue
        short = entry.node.partition(".")[0]
        alike = [name for name in labels.get(short, ()) if short in (name, entry.node)]
        if alike:
            names = ", ".join(alike)
            text = (
                f"{entry.node} is excluded ({entry.reason}) and the hostfile has {names}, which is"
            )
            found.append(f"{text} used: {FILE} needs the name as the hostfile has it")
    return found


def leave_out(
    nodes: Sequence[Node], entries: Sequence[Exclusion], now_s: float, *, named: bool = False
) -> Chosen:
    """The nodes of `nodes` that no entry excludes at `now_s`, unix seconds.

    `named` says that the user named the nodes. Entries of other nodes are no concern: a folder may
    have several hostfiles. Raises `HostfileError` where none is left.
    """
    by_name = {entry.node: entry for entry in entries}
    found = [by_name[node.name] for node in nodes if node.name in by_name]
    held = tuple(entry for entry in found if not entry.is_over(now_s))
    sentences = []
    for entry in held:
        again = f" (clusterctl exclude remove {entry.node} lets it in again)" if named else ""
        sentences.append(f"excluded: {entry.sentence}{again}")
    for entry in found:
        if entry.is_over(now_s) and entry.until_s is not None:
            over = f"{entry.node} was excluded until {stamp(entry.until_s)}, which is over"
            sentences.append(f"{over}: it is used; reason then: {entry.reason}")
    sentences += short_names([node.name for node in nodes], entries, now_s)
    out = {entry.node for entry in held}
    kept = [node for node in nodes if node.name not in out]
    if not kept:
        names = fold([entry.node for entry in held])
        text = f"no node is left: {FILE} excludes {names} ({held[0].node}: {held[0].reason})"
        hint = f"clusterctl exclude remove {names}"
        raise HostfileError(text, hint=hint)
    return Chosen(kept, held, tuple(sentences))
