"""Look at a job and judge it in one call: what the command, a supervisor and a dashboard use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.remote.fanout import NodeResult, in_order
from clusterctl.stacks.collect import DumpOptions, collect
from clusterctl.stacks.evidence import Clue, clues
from clusterctl.stacks.files import write_folder
from clusterctl.stacks.judge import judge
from clusterctl.stacks.model import JobSnapshot, read_snapshot
from clusterctl.stacks.verdict import Verdict
from clusterctl.stacks.wait_sites import Sites
from clusterctl.transport.base import Limits, Transport

Sweep = Callable[[Any, int], Iterable[NodeResult[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was seen of a job at one time, and what it means."""

    snapshot: JobSnapshot
    verdict: Verdict
    clues: list[Clue]
    results: list[NodeResult[dict[str, Any]]]

    def write(self, folder: Path) -> None:
        """All stacks, report.json and index.html. Raises OSError."""
        write_folder(folder, self.snapshot, self.verdict, self.clues, {})


def diagnose(
    nodes: Sequence[Node],
    transport: Transport,
    pick: Pick,
    options: DumpOptions | None = None,
    *,
    limits: Limits,
    width: int,
    sites: Sites | None = None,
    is_part: bool = False,
    sweep: Sweep | None = None,
) -> Diagnosis:
    """Stacks of a job on all nodes, judged. Never raises for what happens on nodes.

    `is_part` says that the user left nodes out. Takes the interval between samples and some
    seconds; at most the command limit, the intervals and the connection limits together.
    """
    options = options or DumpOptions()
    begun = time.monotonic()
    fanout = collect(nodes, transport, pick, options, limits=limits, width=width)
    results = in_order(nodes, list(sweep(fanout, len(nodes)) if sweep else fanout))
    snapshot = read_snapshot(
        results,
        sites or Sites(),
        interval_s=options.interval_s,
        samples=options.samples,
        seconds=time.monotonic() - begun,
        taken_s=time.time(),
        is_part=is_part,
    )
    return Diagnosis(snapshot, judge(snapshot), clues(snapshot), results)
