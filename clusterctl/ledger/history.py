"""What the ledger says of each node: for people, and as a fact for preflight. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from checks.facts import History, NodeFacts, PastFault, Unknown
from clusterctl.ledger.entries import (
    CHECK,
    EXCLUDED,
    FAILED,
    INCIDENT,
    PASSED,
    REPAIR,
    Entry,
    stamp,
)
from clusterctl.ledger.file import LedgerError, read
from clusterctl.ledger.write import is_of_people
from clusterctl.report_lines import WIDTH, wrapped
from trainer.runlog.output import printable


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of a node's entries. `last` is its newest fault, None without one."""

    node: str
    incidents: int
    runs: int
    checks: int
    exclusions: int
    repaired_s: float | None
    last: Entry | None

    def to_json(self) -> dict[str, Any]:
        last = self.last
        return {
            "node": self.node,
            "incidents": self.incidents,
            "runs": self.runs,
            "failed_checks": self.checks,
            "exclusions": self.exclusions,
            "repaired": None if self.repaired_s is None else stamp(self.repaired_s),
            "last": None if last is None else last.to_json(),
        }


def summaries(entries: Iterable[Entry]) -> list[Summary]:
    """One for each node that has an entry, most faults first."""
    by_node: dict[str, list[Entry]] = {}
    for one in entries:
        by_node.setdefault(one.node, []).append(one)
    found = [_summary(node, own) for node, own in by_node.items()]
    return sorted(found, key=lambda one: -(one.incidents + one.checks))


def _summary(node: str, own: Sequence[Entry]) -> Summary:
    incidents = [one for one in own if one.kind == INCIDENT]
    checks = [one for one in own if _is_failed_check(one)]
    repairs = [one.time_s for one in own if one.kind == REPAIR]
    faults = sorted([*incidents, *checks], key=lambda one: one.time_s)
    return Summary(
        node,
        len(incidents),
        len({one.run_id or one.run for one in incidents}),
        len(checks),
        sum(one.kind == EXCLUDED for one in own),
        max(repairs, default=None),
        faults[-1] if faults else None,
    )


def _is_failed_check(one: Entry) -> bool:
    return one.kind == CHECK and one.state == FAILED


def with_history(path: Path, facts: Sequence[NodeFacts], now_s: float) -> tuple[NodeFacts, ...]:
    """Facts of nodes with what the ledger has of them; Unknown where it cannot be read."""
    try:
        ledger = read(path)
    except LedgerError as error:
        why = Unknown(str(error))
        return tuple(replace(one, history=why) for one in facts)
    own: dict[str, list[Entry]] = {}
    for entry in ledger.entries:
        own.setdefault(entry.node, []).append(entry)
    return tuple(
        replace(one, history=history_of(own.get(one.name, ()), ledger.skipped, now_s))
        for one in facts
    )


def history_of(own: Sequence[Entry], skipped: int, now_s: float) -> History:
    """Faults of a node that count, and its exclusions, since it was last repaired."""
    repaired_s = max((one.time_s for one in own if one.kind == REPAIR), default=0.0)
    since = [one for one in own if one.time_s > repaired_s]
    # Lines of an older version say of a kill by hand that it counts.
    faults = [
        one for one in since if one.counts and one.state != PASSED and not is_of_people(one.what)
    ]
    return History(
        tuple(_fault(one, now_s) for one in faults),
        tuple(now_s - one.time_s for one in since if one.kind == EXCLUDED),
        skipped,
    )


def _fault(one: Entry, now_s: float) -> PastFault:
    kind: Literal["incident", "check"] = "check" if one.kind == CHECK else "incident"
    day = stamp(one.time_s)[:10]
    return PastFault(kind, one.what, now_s - one.time_s, day, one.run_id or one.run)


LEAST, DEEPEST = 40, 40
COLUMNS = ["NODE", "INCIDENTS", "RUNS", "CHECKS", "EXCLUDED", "REPAIRED", "LAST FAULT"]
RIGHT = COLUMNS[1:5]


def summary_row(one: Summary, known: Collection[str]) -> list[str]:
    """A node by `COLUMNS`; `known` are the nodes of the hostfile."""
    last = f"{one.last.what} on {stamp(one.last.time_s)[:10]}" if one.last else "-"
    repaired = "-" if one.repaired_s is None else stamp(one.repaired_s)[:10]
    counts = (one.incidents, one.runs, one.checks, one.exclusions)
    name = one.node if one.node in known else f"{one.node} (not in hostfile)"
    return [name, *map(str, counts), repaired, last]


def entry_lines(found: Sequence[Entry]) -> Iterator[str]:
    """Each entry behind its time and node, the oldest first."""
    wide = max((len(one.node) for one in found), default=0)
    for one in found:
        start = f"{stamp(one.time_s)}  {printable(one.node):<{wide}}  "
        first, *more = wrapped(printable(one.sentence), max(LEAST, WIDTH - len(start)))
        yield start + first
        yield from (" " * min(len(start), DEEPEST) + line for line in more)
