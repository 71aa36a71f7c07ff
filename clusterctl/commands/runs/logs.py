"""What the ranks of a run printed: the last lines, an attempt, or as it comes.

Reads the run directory on this machine; no node is asked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.output import Output
from clusterctl.param_types import Moment
from clusterctl.settings import flag, line_output_options, option

if TYPE_CHECKING:
    from clusterctl.runs.logs.files import Chosen, LogFile
    from clusterctl.runs.logs.layout import Layout

MOST_RANKS = 1 << 20


class Ranks(click.ParamType):  # type: ignore[type-arg]
    """Numbers of ranks: `3`, `0,4-7`."""

    name = "ranks"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        found: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip(), re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, MOST_RANKS)
            if not 0 <= last - first < MOST_RANKS:
                self.fail(f"{value!r} is not a set of ranks: 3 or 0,4-7", param, ctx)
            found |= set(range(first, last + 1))
        return frozenset(found)


class Tail(click.ParamType):  # type: ignore[type-arg]
    """A number of lines, or `all`."""

    name = "lines"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        return "all" if value == "all" else click.IntRange(0, 10**9).convert(value, param, ctx)


SINCE = "Lines since then: 10m (ago), 14:30, '2026-11-23 14:30'. Exit code 2 where that is unknown."
TAIL = "Last lines of each log. Default: 20; all with --attempt or --since."


@click.command(
    "logs",
    epilog="""\b
Examples:
  clusterctl logs -f
  clusterctl logs 3 --rank 0,8 --tail 100
  clusterctl logs outputs/003-STDiT3-XL-2 --attempt 2 --node n3""",
)
@click.argument("run", required=False)
@flag("-f", "--follow", "Go on with what comes, until the run ends.")
@option("--rank", "ranks", "Only these ranks: 3 or 0,4-7.", type=Ranks(), metavar="SET")
@option(
    "--node", "nodes", "Only ranks that ran on these nodes, and what started them.", metavar="SET"
)
@option("--since", "since_s", SINCE, type=Moment(), metavar="TIME")
@option("--attempt", "Only what was printed in this attempt.", type=click.IntRange(1), metavar="N")
@option("--tail", TAIL, type=Tail(), metavar="N")
@line_output_options
def command(
    output: Output,
    run: str | None,
    follow: bool,
    ranks: frozenset[int] | None,
    nodes: str | None,
    since_s: float | None,
    attempt: int | None,
    tail: int | str | None,
) -> int:
    """What the ranks of a run printed: the last lines, an attempt, or as it comes.

    RUN is a run directory, or the number or name of one in outputs/; default: the newest. Each line
    begins with its rank; with --node, lines of what starts the ranks begin with the node. Lines
    have no timestamps, so logs come one after the other; with -f, new lines come as they are
    written. Secrets are masked. Exit code 3 when a log cannot be read.
    """
    from clusterctl.runs.find import find_run
    from clusterctl.runs.logs.layout import LayoutReader
    from clusterctl.runs.logs.show import TAIL as FEW
    from clusterctl.runs.logs.show import Logs, Wanted

    run_dir = find_run(run)
    layout = LayoutReader(run_dir).read()
    count = tail if isinstance(tail, int) else None
    if tail is None and attempt is None and since_s is None:
        count = FEW
    wanted = Wanted(_chosen(run_dir, layout, ranks, nodes), attempt, since_s, count, follow)
    lines = _Lines(output, layout)
    logs = Logs(run_dir, wanted, lines.write, lambda text: output.warn(text, "warn"), output.flush)
    try:
        found = logs.show()
        missing = sorted((ranks or frozenset()) - {file.rank for file in found})
        if not found and not follow:
            which = "log of a rank" if ranks is None and nodes is None else "log of these ranks"
            raise CouldNotFindOut(f"{run_dir} has no {which}", hint=_there(layout))
        if follow:
            if not found:
                output.note(f"{run_dir} has no such log so far", "dim")
            logs.follow()
        elif missing:
            output.warn(f"there is no log of rank {', '.join(map(str, missing[:9]))}", "warn")
    finally:
        logs.close()
    return CouldNotFindOut.exit_code if logs.refused or (missing and not follow) else 0


def _chosen(
    run_dir: Path, layout: Layout, ranks: frozenset[int] | None, nodes: str | None
) -> Chosen:
    from clusterctl.node_sets import expand
    from clusterctl.runs.logs.files import Chosen

    if nodes is None:
        return Chosen(ranks)
    names = expand(nodes)
    strange = [name for name in names if name not in layout.ranks]
    if strange:
        raise UsageError(f"{run_dir.name} had no rank on {strange[0]}", hint=_there(layout))
    on_nodes = frozenset(rank for name in names for rank in layout.ranks[name])
    if ranks is not None:
        return Chosen(on_nodes & ranks)
    return Chosen(on_nodes, frozenset(name.replace("/", "_") for name in names))


def _there(layout: Layout) -> str | None:
    from clusterctl.nodes import fold

    return f"its nodes are {fold(layout.ranks)}" if layout.ranks else None


class _Lines:
    """Writes lines of logs, each behind its rank or node."""

    def __init__(self, output: Output, layout: Layout) -> None:
        self._output, self._layout = output, layout
        names = [*map(str, layout.nodes), "0"]
        self._width = max(len(name) for name in names)

    def write(self, file: LogFile, text: str) -> None:
        if self._output.json:
            node = file.node or self._layout.nodes.get(file.rank or 0)
            self._output.document("logs", rank=file.rank, node=node, text=text)
            return
        label = f"{file.label:>{self._width}} | "
        number = file.rank if file.rank is not None else sum(file.node.encode())
        self._output.labelled(label, text, number)
