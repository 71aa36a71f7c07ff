"""The history of nodes as rows and lines of 80 columns for people. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from clusterctl.ledger.entries import Entry, stamp
from clusterctl.ledger.history import Summary
from clusterctl.report_lines import WIDTH, wrapped
from trainer.runlog.output import printable

LEAST, DEEPEST = 40, 40
COLUMNS = ["NODE", "INCIDENTS", "RUNS", "CHECKS", "EXCLUDED", "REPAIRED", "LAST FAULT"]
RIGHT = COLUMNS[1:5]


def row(one: Summary, known: Collection[str]) -> list[str]:
    """A node by `COLUMNS`; `known` are the nodes of the hostfile."""
    last = f"{one.last.what} on {stamp(one.last.time_s)[:10]}" if one.last else "-"
    repaired = "-" if one.repaired_s is None else stamp(one.repaired_s)[:10]
    counts = (one.incidents, one.runs, one.checks, one.exclusions)
    name = one.node if one.node in known else f"{one.node} (not in hostfile)"
    return [name, *map(str, counts), repaired, last]


def lines(found: Sequence[Entry]) -> Iterator[str]:
    """Each entry behind its time and node, the oldest first."""
    wide = max((len(one.node) for one in found), default=0)
    for one in found:
        start = f"{stamp(one.time_s)}  {printable(one.node):<{wide}}  "
        first, *more = wrapped(printable(one.sentence), max(LEAST, WIDTH - len(start)))
        yield start + first
        yield from (" " * min(len(start), DEEPEST) + line for line in more)
