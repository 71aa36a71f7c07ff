"""Compare the clocks of all nodes, and show what steers them.

Offsets come from exchanges over the open ssh channel, with their error bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checks import units
from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.param_types import Number
from clusterctl.settings import NO_FOLD, NO_RECORD, Settings, cluster_command, option, watch_options

if TYPE_CHECKING:
    from checks.facts import NodeFacts
    from checks.profile import Profile
    from clusterctl.clocks.report import Clocks
    from clusterctl.remote.cluster import Answers, Cluster

COLUMNS = ["NODE", "OFFSET", "±", "STEP", "STEERED BY", "SOURCES", "FLAGS"]
MOST_PAIRS = 20
WATCH = "Go on measuring; say at once when a clock is stepped."
LIMIT = "Milliseconds from the others, beyond the error bound, that are too many."


@cluster_command(
    "clock",
    option("--limit", "limit_ms", LIMIT, type=Number(0, min_open=True), default=10.0),
    option("--pairs", "Also each node against each other one, widest first.", is_flag=True),
    watch_options(WATCH, interval_s=1.0, least_s=0.1),
    NO_FOLD,
    NO_RECORD,
    json="One JSON document on stdout; with --watch a line of JSON for each reading and step.",
    keeps_answers=True,
    examples="""
  clusterctl clock nodes.txt
  clusterctl clock --watch --for 600 -w 'ml-64-node-[001-024]'""",
)
def command(
    settings: Settings, output: Output, pairs: bool, watch: bool, no_fold: bool, **options: Any
) -> int:
    """OFFSET is against this machine, STEP how far wall time moved against boot time during this
    run and since the previous one. Exit code 1 when a clock is too far from the others, was stepped
    or is not steered as it should be, 3 when a node gave no answer.
    """
    from dataclasses import replace

    from checks.profile import Profile

    if watch and pairs:
        raise UsageError("--pairs cannot be used with --watch")
    limits = replace(Profile(), clock_skew_warn_s=options["limit_ms"] / 1000)
    cluster = settings.cluster(output.sweep)
    if watch:
        from clusterctl.clocks.monitor import show

        return show(cluster, output, limits, options["interval_s"], options["for_s"])
    clocks, facts, results = _measure(cluster, output, limits, not options["no_history"])
    if output.json:
        from clusterctl.clocks.report import to_document

        output.document("clock", **to_document(clocks, facts, pairs))
    else:
        if not output.quiet:
            _show(output, clocks, facts, no_fold, pairs)
        output.summary(clocks.summary(), clocks.exit_code)
    output.connections(results)
    return clocks.exit_code


def _measure(
    cluster: Cluster, output: Output, limits: Profile, use_record: bool
) -> tuple[Clocks, tuple[NodeFacts, ...], Answers]:
    from clusterctl.clocks.exchange import HeadClock, collect_clocks
    from clusterctl.clocks.report import judge, read_clocks
    from clusterctl.payload.proc_files import read_word
    from clusterctl.preflight import last_census

    head = HeadClock()
    results = collect_clocks(cluster, head)
    facts = read_clocks(results)
    if use_record:
        # Another file than preflight's, which has the error counters beside the clock.
        path = last_census.default_path().with_name("last-clock.json")
        facts, problem = last_census.compare(path, cluster.nodes, facts)
        if problem is not None:
            output.warn(f"the record for the next run cannot be written: {problem}")
    boot_id = read_word("/proc/sys/kernel/random/boot_id")
    clocks = judge(facts, limits, head_boot_id=boot_id, head_moved_s=head.moved_s())
    return clocks, facts, results


def _show(
    output: Output, clocks: Clocks, facts: tuple[NodeFacts, ...], no_fold: bool, pairs: bool
) -> None:
    from checks.facts import Clock
    from clusterctl.clocks.report import all_pairs, cells, folded

    groups = [(row.node, [row]) for row in clocks.rows] if no_fold else folded(clocks)
    rows = [(names, members[0].verdict, cells(members)) for names, members in groups]
    output.node_table(COLUMNS, rows, COLUMNS[1:4])
    if pairs:
        every = all_pairs(clocks)
        widest = [
            [a, b, units.offset(apart), units.measured(error)]
            for a, b, apart, error in every[:MOST_PAIRS]
        ]
        output.line("")
        output.table(["A", "B", "A IS AHEAD BY", "±"], widest, ["A IS AHEAD BY", "±"])
        if len(every) > MOST_PAIRS:
            output.note(f"{len(every) - MOST_PAIRS} nearer pairs are in --json", "dim")
    for node in facts if output.verbose else ():
        sources = node.clock.sources if isinstance(node.clock, Clock) else ()
        for one in sources if isinstance(sources, tuple) else ():
            offset = units.offset(one.offset_s) if isinstance(one.offset_s, float) else "-"
            output.note(
                f"{node.name}: {one.address} {one.state}, stratum {one.stratum}, "
                f"reach {one.reach:o}, poll {units.duration(one.poll_s)}, we are {offset}",
                "dim",
            )
