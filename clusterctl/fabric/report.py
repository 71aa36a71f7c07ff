"""InfiniBand and RoCE ports of a cluster, a line for nodes that are alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checks.facts import Fabric, Fleet, Maybe, NodeFacts, Unknown, known, to_json
from checks.finding import Finding, Verdict
from checks.nccl.recommend import Suggestion
from checks.runner import run_checks
from checks.units import counted
from clusterctl.nodes import fold, grouped


@dataclass(frozen=True, slots=True)
class FabricRow:
    """One node's ports. `flags` are its faults; an unknown value makes it unknown."""

    node: str
    active: int | None = None  # None: unknown
    ports: int = 0
    layers: str = "-"  # 8 InfiniBand, 1 Ethernet
    rates: str = "-"  # of active ports, Gb/s
    names: str = "-"
    firmware: str = "-"
    grown: int | None = None  # error counts that were added during the measurement
    flags: tuple[str, ...] = ()
    verdict: str = "unknown"  # good, bad (exit 1), unknown (exit 3)

    def cells(self) -> list[str]:
        mark = {"bad": "!", "unknown": "?"}.get(self.verdict, " ")
        count = "-" if self.active is None else f"{self.active}/{self.ports}"
        grown = "-" if self.grown is None else f"+{self.grown}"
        ports = [f"{count}{mark}", self.layers, self.rates, self.names, self.firmware]
        return [*ports, grown, "; ".join(self.flags)]


@dataclass(frozen=True, slots=True)
class FabricReport:
    """All rows in the hostfile's order, and what would be set because of them."""

    rows: tuple[FabricRow, ...]
    suggestions: tuple[Suggestion, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        verdicts = {row.verdict for row in self.rows}
        if "bad" in verdicts or any(one.odd for one in self.suggestions):
            return 1
        unsure = any(one.unsure for one in self.suggestions)
        return 3 if "unknown" in verdicts or unsure or not self.rows else 0

    def folded(self) -> list[tuple[str, FabricRow]]:
        """(node set, row) of nodes that are alike, in order of their first node."""
        groups = grouped(((*row.cells(), row.verdict), row) for row in self.rows)
        return [(fold([row.node for row in rows]), rows[0]) for rows in groups.values()]

    def summary(self) -> str:
        """`24 nodes, 192 of 192 ports active`."""
        count = len(self.rows)
        words = [counted(count, "node")]
        known = [row for row in self.rows if row.active is not None]
        active, ports = sum(row.active or 0 for row in known), sum(row.ports for row in self.rows)
        if ports:
            words.append(f"{active} of {ports} ports active")
        elif known:
            where = "" if len(known) == count else " where that could be read"
            words.append(f"no InfiniBand or RoCE card{where}")
        for verdict in ("bad", "unknown"):
            named = [row.node for row in self.rows if row.verdict == verdict]
            words += [f"{verdict}: {fold(named)}"] if named else []
        return ", ".join(words)


def report_fabric(nodes: Sequence[NodeFacts], suggested: Sequence[Suggestion]) -> FabricReport:
    """Rows with what the checks of `ib` find. Nodes that gave no answer have theirs too."""
    checked = run_checks(Fleet(tuple(nodes)), only=("ib",))
    found = checked.bad_by_node()
    rows = tuple(_row(node, found.get(node.name, ())) for node in nodes)
    return FabricReport(rows, tuple(suggested), checked.findings)


def _row(node: NodeFacts, findings: Sequence[Finding]) -> FabricRow:
    fabric = node.fabric
    if node.unreached is not None:
        return FabricRow(node.name, flags=(f"no answer: {node.unreached}",))
    bad = [one.evidence for one in findings if one.verdict is not Verdict.UNKNOWN]
    unsure = [one.evidence for one in findings if one.verdict is Verdict.UNKNOWN]
    if isinstance(fabric, Unknown):
        verdict = "bad" if bad else "unknown"
        return FabricRow(node.name, flags=(fabric.reason, *bad), verdict=verdict)
    verdict = "bad" if bad else "unknown" if unsure else "good"
    if not fabric.ports:  # what is not known of the kernel's log says nothing about a card
        return FabricRow(node.name, 0, flags=tuple(bad), verdict="bad" if bad else "good")
    active = [port for port in fabric.ports if port.is_active]
    grown = known(port.growth for port in fabric.ports)
    return FabricRow(
        node=node.name,
        active=len(active),
        ports=len(fabric.ports),
        layers=_counted([port.link_layer for port in fabric.ports]),
        rates=_counted([port.rate_gbps for port in active], "{:g}") or "-",
        names=_names(fabric),
        firmware=", ".join(dict.fromkeys(_text(port.firmware) for port in fabric.ports)),
        grown=sum(sum(growth.values()) for growth in grown) if grown else None,
        flags=tuple(dict.fromkeys([*bad, *unsure])),
        verdict=verdict,
    )


def _text(value: Maybe[Any], form: str = "{}") -> str:
    return "?" if isinstance(value, Unknown) else form.format(value)


def _counted(values: Sequence[Maybe[Any]], form: str = "{}") -> str:
    """`8 InfiniBand, 1 Ethernet`; `8x400`."""
    counts = Counter(_text(value, form) for value in values)
    join = "{}x{}" if form != "{}" else "{} {}"
    return ", ".join(join.format(count, word) for word, count in counts.items())


def _names(fabric: Fabric) -> str:
    """`mlx5_[0-1,4-9],mlx5_bond_0`; with port numbers where a card has several."""
    devices = [port.device for port in fabric.ports]
    several = len(set(devices)) < len(devices)
    return fold([port.name if several else port.device for port in fabric.ports])


def port_lines(node: NodeFacts) -> list[list[str]]:
    """Cells of each port: name, state, layer, rate, interface, lid, firmware, errors that grew."""
    lines = []
    for port in () if isinstance(node.fabric, Unknown) else node.fabric.ports:
        grown = str(port.growth)
        if not isinstance(port.growth, Unknown):
            grown = ", ".join(f"{name} +{by}" for name, by in port.growth.items() if by) or "+0"
        state = f"{_text(port.state)}/{_text(port.phys_state)}"
        rate = _text(port.rate_gbps, "{:g}")
        rest = map(_text, (port.netdev, port.lid, port.model, port.firmware))
        lines.append([node.name, port.name, state, _text(port.link_layer), rate, *rest, grown])
    return lines


def quote(value: str) -> str:
    """A word for any shell: shlex.quote leaves a `=` at the start bare, which zsh expands."""
    if re.fullmatch(r"[A-Za-z0-9_.]+", value):
        return value
    return "'" + value.replace("'", "'\"'\"'") + "'"


def suggestion_lines(suggested: Sequence[Suggestion]) -> list[tuple[str, str]]:
    """(line, kind) for people: what is set and why, what is left out, and which nodes differ."""
    lines: list[tuple[str, str]] = []
    for one in suggested:
        if one.value is not None:
            lines.append((f"{one.name}={quote(one.value)}  ({one.reason})", "set"))
        else:
            lines.append((f"{one.name} is left out: {one.reason}", "left out"))
        odd = grouped((words, node) for node, words in one.odd)
        lines += [(f"  {fold(names)}: {words}", "odd") for words, names in odd.items()]
    return lines


def unsure_lines(suggested: Sequence[Suggestion]) -> list[str]:
    """Nodes of which something is not known, each reason once, with the variables it concerns."""
    found = grouped(
        ((fold(nodes), why), one.name)
        for one in suggested
        for why, nodes in grouped((why, node) for node, why in one.unsure).items()
    )
    return [f"{nodes}: unknown for {', '.join(of)}: {why}" for (nodes, why), of in found.items()]


def suggestion_json(one: Suggestion) -> dict[str, Any]:
    return {
        "name": one.name,
        "value": one.value,
        "reason": one.reason,
        "odd": [{"node": node, "why": why} for node, why in one.odd],
        "unknown": [{"node": node, "why": why} for node, why in one.unsure],
    }


def to_document(report: FabricReport, nodes: Sequence[NodeFacts]) -> dict[str, Any]:
    """Everything for --json; a value that could not be read is null."""
    return {
        "nodes": [
            {**to_json(row), "unreachable": to_json(node.unreached), "fabric": to_json(node.fabric)}
            for node, row in zip(nodes, report.rows, strict=True)
        ],
        "suggested": [suggestion_json(one) for one in report.suggestions],
        "findings": [one.to_json() for one in report.findings],
        "exit_code": report.exit_code,
    }
