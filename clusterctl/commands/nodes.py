"""List the nodes of the hostfile, folded or one a line; what happened to them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import click

from checks.units import counted
from clusterctl.errors import TransportError, UsageError
from clusterctl.exclude.entries import path_beside, read, why_bad_text
from clusterctl.node_sets import expand
from clusterctl.nodes import Node, fold
from clusterctl.output import Cell, Output
from clusterctl.param_types import Moment
from clusterctl.settings import Settings, cluster_command, flag, option

HISTORY = "Show what happened to nodes: incidents, failed checks, exclusions, repairs."
SINCE = "With --history: only from then on: 14d (ago), 2026-11-01."
NOTE = "Enter a line in the history of the nodes of -w."
REPAIRED = "With --note: a repair; what came before it counts no more."
SHOWN = 30  # entries that are shown unasked


@cluster_command(
    "nodes",
    option("--expand", "to_expand", "Print the names of a node set.", metavar="SET"),
    flag("--fold", "to_fold", "Print the chosen nodes as one node set."),
    flag("--history", HISTORY),
    option("--since", "since_s", SINCE, type=Moment(), metavar="TIME"),
    option("--note", NOTE, metavar="TEXT"),
    flag("--repaired", REPAIRED),
    examples="""
  clusterctl nodes nodes.txt
  clusterctl nodes --expand 'ml-64-node-[001-003]'
  clusterctl nodes --history -w node-007 --since 14d
  clusterctl nodes -w node-007 --note "GPU 3 replaced, ticket 4711" --repaired""",
)
def command(
    settings: Settings,
    output: Output,
    to_expand: str | None,
    to_fold: bool,
    history: bool,
    since_s: float | None,
    note: str | None,
    repaired: bool,
) -> int:
    if to_expand is not None:
        for name in expand(to_expand, "--expand"):
            output.line(name)
        return 0
    if since_s is not None and not history:
        raise UsageError("--since goes with --history")
    if repaired and note is None:
        raise UsageError("--repaired goes with --note", hint='--note "GPU 3 replaced" --repaired')
    if note is not None:
        if history or to_fold:
            raise UsageError("--note goes without --history and --fold")
        return _note(settings, output, note, is_repair=repaired)
    if history:
        return _history(settings, output, since_s or 0.0)
    _list(settings, output, to_fold=to_fold)
    return 0


def _list(settings: Settings, output: Output, *, to_fold: bool) -> None:
    nodes = settings.nodes()
    now_s, entries = (
        time.time(),
        [] if to_fold and not output.json else read(path_beside(settings.hostfile)),
    )
    held = {entry.node: entry for entry in entries if not entry.is_over(now_s)}
    if output.json:
        out = {entry.node: entry.to_json(is_over=False) for entry in held.values()}
        documents = [
            {
                **asdict(node),
                "labels": dict(node.labels),
                "excluded": out.get(node.name),
                "ssh": None if isinstance(login, TransportError) else asdict(login),
            }
            for node, login in zip(nodes, _logins(nodes), strict=True)
        ]
        output.document("nodes", hostfile=str(settings.hostfile), nodes=documents)
        return
    if to_fold:
        output.line(fold([node.name for node in nodes]))
        return
    rows: list[list[str | Cell]] = []
    unresolved: dict[str, list[str]] = {}
    for node, login in zip(nodes, _logins(nodes), strict=True):
        if isinstance(login, TransportError):
            unresolved.setdefault(str(login), []).append(node.name)
            reached = ("?", "?", "?")
        else:
            reached = (login.host, str(login.port), login.user)
        rows.append([node.name, *reached, str(node.slots or "-")])
    columns = ["NODE", "ADDRESS", "PORT", "USER", "SLOTS"]
    if any(node.name in held for node in nodes):
        columns.append("EXCLUDED")
        for node, row in zip(nodes, rows, strict=True):
            entry = held.get(node.name)
            row.append(Cell(f"{entry.reason}; until {entry.end}", "warn") if entry else "-")
    output.table(columns, rows, ["PORT", "SLOTS"])
    output.note(f"{counted(len(nodes), 'node')} in {settings.hostfile}")
    for why, names in unresolved.items():
        output.warn(f"{fold(names)}: ssh_config cannot say how it is reached: {why}", "warn")
    if output.verbose:
        context = click.get_current_context()
        for name, value in context.params.items():
            source = context.get_parameter_source(name)
            if source is not None:
                output.note(f"  {name} = {value!r} ({source.name.lower()})", "dim")


@dataclass(frozen=True, slots=True)
class _Login:
    """How ssh reaches a node: by its line of the hostfile, then by ssh_config."""

    host: str
    port: int
    user: str


def _logins(nodes: Sequence[Node]) -> Iterator[_Login | TransportError]:
    from clusterctl.transport.ssh_config.host import DEFAULT_PORT, local_user
    from clusterctl.transport.ssh_config.read import SshConfig

    config = SshConfig.of_user()
    for node in nodes:
        try:
            found = config.resolve(node.address, node.user, node.port)
            yield _Login(found.hostname, found.port or DEFAULT_PORT, found.user or local_user())
        except TransportError as error:
            yield error


def _note(settings: Settings, output: Output, text: str, *, is_repair: bool) -> int:
    from clusterctl.exclude.change import author
    from clusterctl.ledger import entries as ledger
    from clusterctl.ledger.file import append

    if settings.only is None:
        raise UsageError("--note needs the nodes that it is about", hint="-w node-007")
    if not text.strip() or (problem := why_bad_text(text)):
        raise UsageError(f"--note {problem if text.strip() else 'is empty'}")
    kind = ledger.REPAIR if is_repair else ledger.NOTE
    path, now_s, by = ledger.path_beside(settings.hostfile), time.time(), author()
    made = [ledger.Entry(node.name, kind, text.strip(), now_s, by) for node in settings.nodes()]
    append(path, made, hostfile=settings.hostfile)
    if output.json:
        output.document("nodes", path=str(path), entered=[one.to_json() for one in made])
    for one in made:
        output.note(f"{one.node}: {one.sentence}")
    return 0


def _history(settings: Settings, output: Output, since_s: float) -> int:
    """Nodes of the hostfile, and without -w also those that have left it."""
    from clusterctl.ledger import entries as ledger
    from clusterctl.ledger.file import read as read_ledger
    from clusterctl.ledger.history import COLUMNS, RIGHT, entry_lines, summaries, summary_row

    names = [node.name for node in settings.nodes()]
    path = ledger.path_beside(settings.hostfile)
    known = read_ledger(path)
    is_chosen = settings.only is not None or settings.without is not None
    found = ledger.of_nodes(known.entries, names if is_chosen else None, since_s)
    told = summaries(found)
    if output.json:
        output.document(
            "nodes",
            hostfile=str(settings.hostfile),
            path=str(path),
            summary=[one.to_json() for one in told],
            history=[one.to_json() for one in found],
            skipped_lines=known.skipped,
        )
        return 0
    if told:
        output.table(COLUMNS, [summary_row(one, set(names)) for one in told], RIGHT)
    if not output.quiet and (is_chosen or output.verbose or len(found) <= SHOWN):
        for line in entry_lines(found):
            output.line(line)
    elif found:
        output.note(f"-w SET or -v shows the {len(found):,} entries")
    count = f"{len(found):,} {'entry' if len(found) == 1 else 'entries'} in"
    output.note(f"{count if known.entries else 'nothing is on record in'} {path}")
    if known.skipped:
        skipped = counted(known.skipped, "line")
        output.warn(f"{skipped} of {path} cannot be read: torn, or of another version", "warn")
    return 0
