"""Show GPUs, processes, power and memory of each node."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from clusterctl.output import Output, local_time
from clusterctl.settings import FILE, NO_FOLD, Settings, cluster_command, option, watch_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.facts import NodeFacts
    from checks.profile import Profile
    from clusterctl.gpus.summary import Census, GpuRow

COLUMNS = ["NODE", "GPUS", "PROC", "POWER", "W/GPU", "UTIL", "MEM", "TEMP", "FLAGS"]
PROCESSES = "Also the processes on GPUs: owner, age, memory, run and rank, command line."
WATCH = "Repeat the reading: a page on a terminal, blocks or JSON lines elsewhere."
PROFILE = "What `preflight --record` wrote: GPUs per node; without it the majority is right."


@cluster_command(
    "gpus",
    option("--processes", PROCESSES, is_flag=True),
    watch_options(WATCH, interval_s=5.0, least_s=0.5),
    option("--profile", PROFILE, type=FILE, metavar="FILE"),
    NO_FOLD,
    json="One JSON document on stdout; with --watch a line of JSON for each reading.",
    keeps_answers=True,
    examples="""
  clusterctl gpus nodes.txt --processes
  clusterctl gpus --watch --interval 2 -w 'ml-64-node-[001-008]'""",
)
def command(
    settings: Settings, output: Output, processes: bool, watch: bool, no_fold: bool, **options: Any
) -> int:
    """POWER is the node's, W/GPU and UTIL are means, TEMP is the hottest GPU's. Exit code 1 when a
    GPU is missing against the other nodes (or the profile) or a driver fails, 3 when a node or its
    nvidia-smi gave no answer.
    """
    from clusterctl.gpus.poller import Poller, repeat
    from clusterctl.gpus.summary import take_census, to_document
    from clusterctl.preflight.files import read_profile
    from clusterctl.remote.facts import read_node

    view = View(output, read_profile(options["profile"], {}), processes, no_fold)
    cluster = settings.cluster(output.sweep)
    args = {"tool_timeout_s": cluster.limits.tool_s}
    if watch:
        interval_s, for_s = options["interval_s"], options["for_s"]
        with Poller(cluster, args, interval_s) as poller:
            return repeat(poller, interval_s, for_s, view.again)
    results = cluster.ask("census", args)
    facts = tuple(map(read_node, results))
    census = take_census(facts, view.limits)
    if output.json:
        output.document("gpus", **to_document(census, facts))
    else:
        view.once(census, facts)
    for node in facts if output.verbose else ():
        if node.gpus.message != node.gpus.summary:
            output.note(f"{node.name}: {node.gpus.message}", "dim")
    output.connections(results)
    return census.exit_code


class View:
    """Writes a census: once, or again and again as a page, as blocks, or as JSON lines."""

    def __init__(self, output: Output, limits: Profile, processes: bool, no_fold: bool) -> None:
        self.limits = limits
        self._output = output
        self._processes, self._no_fold = processes, no_fold
        self._width: int | None = None
        self._left = math.inf  # lines for tables on the page

    def once(self, census: Census, facts: Sequence[NodeFacts]) -> None:
        if not self._output.quiet:
            self._tables(census, facts)
        self._output.summary(census.summary(), census.exit_code)
        if census.extremes():
            self._output.note(census.extremes(), "warn" if census.idle else None)

    def again(self, facts: list[NodeFacts], ages: list[float | None]) -> int:
        """One reading of --watch; returns its exit code."""
        import time

        from clusterctl.gpus.poller import mark_stale
        from clusterctl.gpus.summary import take_census, to_document

        census = mark_stale(take_census(facts, self.limits), ages)
        output, now_s = self._output, time.time()
        if output.json:
            document = to_document(census, facts)
            output.document("gpus", type="look", time_s=round(now_s, 3), **document)
            return census.exit_code
        is_page = output.can_repaint() and not output.quiet
        if is_page and (page := output.page()):
            output.repaint()
            # The clock, the summary, the extremes, and the line below them stay free.
            self._width, self._left = page.columns, max(3, page.lines - 4)
        line = f"{local_time(now_s)}  {census.summary()}"
        output.line(line[: self._width], "bad" if census.exit_code else None)
        if not output.quiet:
            if words := census.extremes():
                output.line(words[: self._width], "warn" if census.idle else None)
            self._tables(census, facts)
            if not is_page:
                output.line("")
        output.flush()
        return census.exit_code

    def _tables(self, census: Census, facts: Sequence[NodeFacts]) -> None:
        rows = [(row.node, row) for row in census.rows] if self._no_fold else census.folded()
        shown = self._fit(rows)
        hidden = len(rows) - len(shown)
        cells = [(names, row.verdict, row.cells()) for names, row in shown]
        self._output.node_table(COLUMNS, cells, COLUMNS[1:-1], self._width)
        if hidden:
            how = "nothing flagged: a taller window shows them"
            self._output.line(f"... and {hidden} more lines, {how}", "dim")
        self._left -= len(shown) + 1 + (hidden > 0)
        if self._processes and self._left > 3:
            self._output.line("")
            self._list(facts)

    def _fit(self, rows: list[tuple[str, GpuRow]]) -> list[tuple[str, GpuRow]]:
        """Rows for the page: all that are flagged, then the others while there are lines left."""
        if len(rows) + 1 <= self._left:
            return rows
        ranked = sorted(range(len(rows)), key=lambda at: (not rows[at][1].flags, at))
        return [rows[at] for at in sorted(ranked[: max(1, int(self._left) - 2)])]

    def _list(self, facts: Sequence[NodeFacts]) -> None:
        from clusterctl.gpus.processes import columns, list_processes

        found = list_processes(facts)
        if not found:
            self._output.line("no process on a GPU that could be asked")
            return
        with_run = any(row.run is not None or row.rank is not None for row in found)
        fits = len(found) + 2 <= self._left
        cells = [row.cells(with_run) for row in found]
        cells = cells if fits else cells[: max(1, int(self._left) - 3)]
        page = self._output.page()
        width = page.columns if page else None
        self._output.table(columns(with_run), cells, ["PID", "AGE", "MEM", "RANK"], width)
        if len(cells) < len(found):
            self._output.line(f"... and {len(found) - len(cells)} more processes", "dim")
