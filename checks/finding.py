"""What a check finds about nodes, and all findings together: the report."""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from checks.facts import NOT_ASKED, Active, Maybe, Unknown, to_json

T = TypeVar("T")


class Verdict(str, enum.Enum):
    """UNKNOWN is "could not find out": never good, never a failure."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    SKIP = "SKIP"  # does not apply here, and why


WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS, Verdict.SKIP)


SAME_MACHINE = "host.same_machine"  # names of one machine: one of them can be used


class Action(str, enum.Enum):
    """What has to happen to the machine; printed, never done."""

    NONE = "none"
    RESTART_APP = "restart-app"
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    SERVICE = "service"


Source = Literal["fixed", "profile", "majority"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict of one check about one or more nodes."""

    id: str
    verdict: Verdict
    nodes: tuple[str, ...]
    evidence: str  # what was seen, one line
    value: str | None = None
    expected: str | None = None
    source: Source = "fixed"  # where the expected value comes from
    fix: str | None = None  # the line that repairs it; "": there is none, not even the check's
    action: Action = Action.NONE
    because: str | None = None  # id of the check that gives the reason: this follows from it

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        return {**data, "verdict": self.verdict.value, "action": self.action.value}


Found = Finding | Iterable[Finding]
"""What a rule returns."""

_all_but_nodes = operator.attrgetter(
    *(item.name for item in dataclasses.fields(Finding) if item.name != "nodes")
)


def _draft(verdict: Verdict) -> Callable[..., Finding]:
    def make(
        evidence: object,
        value: object = None,
        expected: object = None,
        *,
        nodes: tuple[str, ...] = (),
        **more: Any,
    ) -> Finding:
        return Finding("", verdict, nodes, str(evidence), _text(value), _text(expected), **more)

    return make


def _text(value: object) -> str | None:
    return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)


# What a check found: evidence, then the value and what was expected. The runner fills in the id,
# the node, and the check's fix.
passed, warn, fail = _draft(Verdict.PASS), _draft(Verdict.WARN), _draft(Verdict.FAIL)
unknown, skip = _draft(Verdict.UNKNOWN), _draft(Verdict.SKIP)


def lacking(why: Unknown, what: str = "") -> Finding:
    """SKIP for a fact that was not asked for, else UNKNOWN; `what` begins the evidence."""
    return (skip if why == NOT_ASKED else unknown)(f"{what}{why}")


class Lacks(Exception):
    """Raised by `need`: the rule ends with this finding."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def drafts(rule: Callable[..., Found], *facts: Any) -> list[Finding]:
    """All that a rule finds; where it ends by `need`, that alone."""
    try:
        found = rule(*facts)
        return [found] if isinstance(found, Finding) else list(found)
    except Lacks as error:
        return [error.finding]


def need(value: Maybe[T], what: str = "", lacks: Callable[..., Finding] | None = None) -> T:
    """The value; a rule without it ends here, with `lacks` (None: as `lacking`)."""
    if isinstance(value, Unknown):
        raise Lacks(lacks(f"{what}{value}") if lacks else lacking(value, what))
    return value


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, one for each check and node (fleet checks: for each group of nodes)."""

    nodes: tuple[str, ...]  # all that were asked, in the hostfile's order
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    advisory: frozenset[str] = frozenset()  # checks whose UNKNOWN alone stops no launch
    node_cpu_s: float | None = None  # CPU time of the census on a node, on average
    active: Active | None = None  # what the active tests measured

    @property
    def exit_code(self) -> int:
        """1 with any FAIL, else 3 with any UNKNOWN, else 0: a warning is good enough to go."""
        verdicts = {finding.verdict for finding in self.findings}
        return 1 if Verdict.FAIL in verdicts else 3 if Verdict.UNKNOWN in verdicts else 0

    @property
    def go(self) -> bool:
        """Whether a launch may start; an UNKNOWN of an advisory check does not stop it."""
        return not any(map(self.stops, self.findings))

    def stops(self, finding: Finding) -> bool:
        """Whether a finding alone is reason enough not to launch on its nodes."""
        if finding.verdict is Verdict.UNKNOWN:
            return finding.id not in self.advisory
        return finding.verdict is Verdict.FAIL

    def counts(self) -> dict[Verdict, int]:
        """Rows of the folded report by verdict, without those that only follow."""
        rows = Counter(one.verdict for one in self.folded(following=False))
        return {verdict: rows[verdict] for verdict in WORST_FIRST}

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes with a FAIL or UNKNOWN of their own that stops a launch."""
        named = {node for one in self.findings if self.stops(one) for node in one.nodes}
        return tuple(node for node in self.nodes if node in named)

    @property
    def good_nodes(self) -> tuple[str, ...]:
        bad = set(self.bad_nodes)
        return tuple(node for node in self.nodes if node not in bad)

    @property
    def to_drop(self) -> tuple[str, ...]:
        """The bad nodes without those that are good once another name of their machine is gone."""
        stop = [one for one in self.findings if self.stops(one)]
        others = {node for one in stop if one.id != SAME_MACHINE for node in one.nodes}
        stays: set[str] = set()
        for one in stop:
            if one.id == SAME_MACHINE and one.verdict is Verdict.FAIL:
                stays |= set([node for node in one.nodes if node not in others][:1])
        return tuple(node for node in self.bad_nodes if node not in stays)

    def folded(self, following: bool = True) -> list[Finding]:
        """Equal findings of several nodes as one, worst first, then by id.

        Without `following` those are left out that only repeat another check's reason.
        """
        order = {node: index for index, node in enumerate(self.nodes)}
        bad = {
            (one.id, node)
            for one in self.findings
            if one.verdict in (Verdict.FAIL, Verdict.UNKNOWN)
            for node in one.nodes
        }
        groups: dict[tuple[object, ...], list[Finding]] = {}
        for finding in self.findings:
            reason = finding.because
            if reason and not following and all((reason, node) in bad for node in finding.nodes):
                continue
            groups.setdefault(_all_but_nodes(finding), []).append(finding)
        folded = []
        for members in groups.values():
            nodes = sorted({node for one in members for node in one.nodes}, key=order.__getitem__)
            folded.append(dataclasses.replace(members[0], nodes=tuple(nodes)))
        return sorted(folded, key=lambda one: (WORST_FIRST.index(one.verdict), one.id))

    def bad_by_node(self) -> dict[str, list[Finding]]:
        """Findings other than PASS and SKIP."""
        found: dict[str, list[Finding]] = {}
        for one in self.findings:
            if one.verdict not in (Verdict.PASS, Verdict.SKIP):
                for node in one.nodes:
                    found.setdefault(node, []).append(one)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": "GO" if self.go else "NO-GO",
            "exit_code": self.exit_code,
            "nodes": list(self.nodes),
            "good_nodes": list(self.good_nodes),
            "bad_nodes": list(self.bad_nodes),
            "counts": {verdict.value: number for verdict, number in self.counts().items()},
            "checks": [finding.to_json() for finding in self.folded()],
            "seconds": round(self.seconds, 3),
            "node_cpu_s": None if self.node_cpu_s is None else round(self.node_cpu_s, 3),
            "active": to_json(self.active),
        }


def override(
    findings: Iterable[Finding], severity: Mapping[str, Verdict], silenced: Sequence[str]
) -> list[Finding]:
    """Findings with a profile's changes: a bad verdict of a check replaced, or turned into SKIP."""
    changed = []
    for finding in findings:
        if finding.id in silenced and finding.verdict is not Verdict.PASS:
            text = f"silenced: {finding.evidence}"
            finding = dataclasses.replace(finding, verdict=Verdict.SKIP, evidence=text)
        elif finding.id in severity and finding.verdict in (Verdict.WARN, Verdict.FAIL):
            finding = dataclasses.replace(finding, verdict=severity[finding.id])
        changed.append(finding)
    return changed
