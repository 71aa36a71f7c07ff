"""Show GPUs, processes, power and memory of each node.

What is missing, broken, hung or dead stands in its node's line as what it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.errors import UsageError
from clusterctl.output import Cell, Output, local_time
from clusterctl.param_types import Duration
from clusterctl.settings import Settings, cluster_options, output_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.facts import NodeFacts
    from checks.profile import Profile
    from clusterctl.gpus.summary import Census, GpuRow

COLUMNS = ["NODE", "GPUS", "PROC", "POWER", "W/GPU", "UTIL", "MEM", "TEMP", "FLAGS"]
STYLES = {"good": None, "bad": "bad", "unknown": "warn"}


@click.command(
    "gpus",
    epilog="""\b
Examples:
  clusterctl gpus nodes.txt --processes
  clusterctl gpus --watch --interval 2 -w 'ml-64-node-[001-008]'""",
)
@click.option(
    "--processes",
    is_flag=True,
    help="Also whoever holds a GPU: owner, age, memory, run and rank, command line.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Look again and again: a page on a terminal, blocks or JSON lines elsewhere.",
)
@click.option(
    "--interval",
    "interval_s",
    type=Duration(0.5),
    default=5.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@click.option(
    "--for",
    "for_s",
    type=Duration(0, min_open=True),
    help="Seconds to watch. Default: until Ctrl-C.",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What `preflight --record` wrote: GPUs per node; without it the majority is right.",
)
@click.option("--no-fold", is_flag=True, help="One line for each node, also for equal ones.")
@cluster_options
@output_options
def command(
    settings: Settings,
    output: Output,
    processes: bool,
    watch: bool,
    interval_s: float,
    for_s: float | None,
    profile: Path | None,
    no_fold: bool,
) -> int:
    """Show GPUs, processes, power and memory of each node.

    POWER is the node's, W/GPU and UTIL are means, TEMP is the hottest GPU's. Exit code 1 when a
    GPU is missing against the other nodes (or the profile) or a driver fails, 3 when a node or its
    nvidia-smi gave no answer.
    """
    from clusterctl.gpus.summary import read_fleet, take_census, to_document
    from clusterctl.preflight.export import read_profile
    from clusterctl.remote.fanout import in_order
    from clusterctl.remote.run_payload import ask, tool_timeout

    if for_s and not watch:
        raise UsageError("--for goes with --watch")
    limits = read_profile(profile, {})
    nodes = settings.nodes()
    arguments = {"tool_timeout_s": tool_timeout(settings.limits)}
    if watch:
        view = View(output, limits, processes=processes, no_fold=no_fold)
        return _watch(settings, arguments, interval_s, for_s, view)
    sweep = ask(
        nodes,
        settings.transport(),
        "census",
        arguments,
        limits=settings.limits,
        width=settings.width,
    )
    results = in_order(nodes, list(output.sweep(sweep, len(nodes))))
    facts = read_fleet(results)
    census = take_census(facts, limits)
    if output.json:
        output.document("gpus", **to_document(census, facts))
    else:
        View(output, limits, processes=processes, no_fold=no_fold).once(census, facts)
    for node in facts:
        if output.verbose and node.gpus.message != node.gpus.summary:
            output.note(f"{node.name}: {node.gpus.message}", "dim")
    output.ways(results)
    output.unreachable(results)
    return census.exit_code


def _watch(
    settings: Settings,
    arguments: dict[str, float],
    interval_s: float,
    for_s: float | None,
    view: View,
) -> int:
    from clusterctl.gpus.poller import Poller, repeat

    poller = Poller(
        settings.nodes(),
        settings.transport(),
        settings.limits,
        arguments,
        interval_s,
        settings.width,
    )
    with poller:
        return repeat(poller, interval_s, for_s, view.again)


class View:
    """Writes a census: once, or again and again as a page, as blocks, or as JSON lines."""

    def __init__(self, output: Output, limits: Profile, *, processes: bool, no_fold: bool) -> None:
        self._output, self._limits = output, limits
        self._processes, self._no_fold = processes, no_fold
        self._width: int | None = None
        self._room: int | None = None  # lines for tables; None: no edge

    def once(self, census: Census, facts: Sequence[NodeFacts]) -> None:
        if self._output.quiet:
            self._output.line(census.summary(), None if census.exit_code == 0 else "bad")
            return
        self._census(census)
        if self._processes:
            self._output.line("")
            self._list(facts)
        self._output.note(census.summary())
        if census.extremes():
            self._output.note(census.extremes(), "warn" if census.idle else None)

    def again(self, facts: list[NodeFacts], ages: list[float | None]) -> int:
        """One look of --watch; returns its exit code."""
        import time

        from clusterctl.gpus.poller import mark_stale
        from clusterctl.gpus.summary import take_census, to_document

        census = mark_stale(take_census(facts, self._limits), ages)
        output = self._output
        if output.json:
            output.document(
                "gpus", type="look", time_s=round(time.time(), 3), **to_document(census, facts)
            )
            return census.exit_code
        is_page = output.can_repaint() and not output.quiet
        if is_page:
            output.repaint()
            self._width = output.columns()
            # The clock, the summary, the extremes, and the line below them stay free.
            self._room = max(3, (output.rows() or 24) - 4)
        line = f"{local_time(time.time())}  {census.summary()}"
        output.line(_cut(line, self._width), None if census.exit_code == 0 else "bad")
        if not output.quiet:
            words = census.extremes()
            if words:
                output.line(_cut(words, self._width), "warn" if census.idle else None)
            self._census(census)
            if self._processes and (self._room is None or self._room > 3):
                output.line("")
                self._list(facts)
            if not is_page:
                output.line("")
        output.flush()
        return census.exit_code

    def _census(self, census: Census) -> None:
        rows = [(row.node, row) for row in census.rows] if self._no_fold else census.folded()
        rows, hidden = self._fit(rows)
        self._output.table(
            COLUMNS,
            [
                [Cell(names), *(Cell(c, STYLES[row.verdict]) for c in row.cells())]
                for names, row in rows
            ],
            right=COLUMNS[1:-1],
            width=self._width,
        )
        if hidden:
            self._output.line(
                f"... and {hidden} more lines, nothing flagged: a taller window shows them", "dim"
            )
        if self._room is not None:
            self._room -= len(rows) + 1 + (hidden > 0)

    def _fit(self, rows: list[tuple[str, GpuRow]]) -> tuple[list[tuple[str, GpuRow]], int]:
        """Rows for the page: what is flagged first, then the others as long as there is room."""
        if self._room is None or len(rows) + 1 <= self._room:
            return rows, 0
        keep = max(1, self._room - 2)
        ranked = sorted(range(len(rows)), key=lambda at: (not rows[at][1].flags, at))
        chosen = sorted(ranked[:keep])
        return [rows[at] for at in chosen], len(rows) - len(chosen)

    def _list(self, facts: Sequence[NodeFacts]) -> None:
        from clusterctl.gpus.processes import columns, list_processes

        found = list_processes(facts)
        if not found:
            self._output.line("no process on a GPU that could be asked")
            return
        with_run = any(row.run is not None or row.rank is not None for row in found)
        hidden = 0
        if self._room is not None and len(found) + 2 > self._room:
            hidden = len(found) - max(1, self._room - 3)
        width = self._width or self._output.columns()
        names = columns(with_run)
        cells = [row.cells(with_run) for row in found[: len(found) - hidden]]
        self._output.table(names, cells, right=["PID", "AGE", "MEM", "RANK"], width=width)
        if hidden:
            self._output.line(f"... and {hidden} more processes", "dim")


def _cut(text: str, width: int | None) -> str:
    return text if width is None else text[:width]
