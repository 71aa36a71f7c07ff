"""List nodes that no run may use, add to them, remove from them."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.exclude.entries import Exclusion, path_beside, read, stamp, why_bad_text
from clusterctl.exclude.leave_out import short_names
from clusterctl.hostfile import read_hostfile
from clusterctl.node_sets import expand
from clusterctl.nodes import fold
from clusterctl.output import Cell, Output
from clusterctl.param_types import Duration
from clusterctl.settings import PATH, option, output_options

if TYPE_CHECKING:
    from clusterctl.ledger.entries import Entry

WORDS = {"add": "NODE [HOSTFILE]", "remove": "NODE [HOSTFILE]", "list": "[HOSTFILE]"}
REASON = "Why, in one line; with add."
FOR = "TIME until the node is used again; with add. Default: until it is removed."


@click.command(
    "exclude",
    epilog="""\b
Examples:
  clusterctl exclude add node-007 --reason "Xid 79, ticket 4711" --for 2d
  clusterctl exclude list""",
)
@click.argument("verb", type=click.Choice(list(WORDS)))
@click.argument("words", nargs=-1, metavar="[NODE] [HOSTFILE]")
@click.option("--hostfile", "given", type=PATH, envvar="CLUSTERCTL_HOSTFILE", help="Same as the argument HOSTFILE. Default: nodes.txt.")  # fmt: skip
@option("--reason", REASON, metavar="TEXT", default="", show_default=False)
@option("--for", "for_s", FOR, type=Duration(1), show_default=False)
@output_options
def command(
    output: Output,
    verb: str,
    words: tuple[str, ...],
    given: Path | None,
    reason: str,
    for_s: float | None,
) -> int:
    """List nodes that no run may use, add to them, remove from them.

    NODE is a name or a set: n[1-3]. The entries are in exclude.toml beside the hostfile. preflight
    and launch leave these nodes out and say so; all other commands still use them.
    """
    names, hostfile = _targets(verb, words, given)
    if verb != "add" and (reason or for_s is not None):
        raise UsageError(f"{'--reason' if reason else '--for'} goes with add")
    path = path_beside(hostfile)
    if verb == "list":
        return _list(output, path, hostfile)
    from clusterctl.exclude import change
    from clusterctl.ledger.write import of_exclusions, of_returns

    if verb == "remove":
        gone = change.remove(path, names)
        again = [(entry.node, entry.reason) for entry in gone]
        _enter(output, hostfile, of_returns(again, time.time(), change.author()))
        _tell(output, verb, path, {"removed": gone})
        for entry in gone:
            output.note(f"{entry.node} is used again; it was excluded for: {entry.reason}")
        return 0
    if not reason.strip():
        raise UsageError("add needs --reason", hint='--reason "Xid 79, ticket 4711"')
    if problem := why_bad_text(reason):
        raise UsageError(f"--reason {problem}")
    known = {node.name for node in read_hostfile(hostfile)}
    if strangers := [name for name in names if name not in known]:
        text = f"{fold(strangers)} is not in {hostfile}, so nothing was excluded"
        raise UsageError(text, hint="clusterctl nodes lists what is")
    now_s = time.time()
    until_s = None if for_s is None else now_s + for_s
    fresh = [Exclusion(name, reason.strip(), now_s, until_s, change.author()) for name in names]
    replaced = change.add(path, fresh, mode=stat.S_IMODE(hostfile.stat().st_mode))
    out = [(entry.node, entry.reason, entry.until_s) for entry in fresh]
    _enter(output, hostfile, of_exclusions(out, now_s, change.author()))
    _tell(output, verb, path, {"added": fresh, "replaced": replaced})
    for old in replaced:
        output.note(f"{old.node} was excluded before for: {old.reason}")
    for entry in fresh:
        output.note(f"excluded: {entry.sentence}")
    return 0


def _enter(output: Output, hostfile: Path, entries: list[Entry]) -> None:
    from clusterctl.ledger.entries import path_beside as ledger_beside
    from clusterctl.ledger.write import enter

    if why := enter(ledger_beside(hostfile), entries, hostfile):
        output.warn(why, "warn")


def _targets(verb: str, words: tuple[str, ...], given: Path | None) -> tuple[list[str], Path]:
    """The names of the nodes and the hostfile among the words behind the verb."""
    needs_node = verb != "list"
    rest = list(words)
    if needs_node and not rest:
        raise UsageError(f"{verb} needs a node: clusterctl exclude {verb} {WORDS[verb]}")
    names = expand(rest.pop(0), "NODE") if needs_node else []
    if len(rest) > 1:
        hint = f"clusterctl exclude {verb} {WORDS[verb]}; several nodes are one set: n1,n2"
        raise UsageError(f"{rest[1]!r} is too much", hint=hint)
    source = click.get_current_context().get_parameter_source("given")
    is_typed = source is click.core.ParameterSource.COMMANDLINE
    if rest and is_typed and Path(rest[0]) != given:
        raise UsageError(f"two hostfiles: {rest[0]} and --hostfile {given}")
    return names, Path(rest[0]) if rest else given or Path("nodes.txt")


def _list(output: Output, path: Path, hostfile: Path) -> int:
    known = {node.name for node in read_hostfile(hostfile)}
    entries, now_s = read(path), time.time()
    if output.json:
        documents = [
            {**one.to_json(is_over=one.is_over(now_s)), "is_in_hostfile": one.node in known}
            for one in entries
        ]
        output.document("exclude", verb="list", path=str(path), entries=documents)
        return 0
    rows = []
    for entry in entries:
        until = f"{entry.end} (over)" if entry.is_over(now_s) else entry.end
        since = "-" if entry.since_s is None else stamp(entry.since_s)
        style = "dim" if entry.is_over(now_s) else None
        cells = (entry.node, since, until, entry.by or "-", entry.reason)
        rows.append([Cell(text, style) for text in cells])
    if rows:
        output.table(["NODE", "SINCE", "UNTIL", "BY", "REASON"], rows)
    held = sum(not entry.is_over(now_s) for entry in entries)
    output.note(f"{counted(held, 'node')} excluded by {path}" if entries else "no node is excluded")
    if strangers := [entry.node for entry in entries if entry.node not in known]:
        output.warn(f"{fold(strangers)} is not in {hostfile}", "warn")
    for sentence in short_names(sorted(known), entries, now_s):
        output.warn(sentence, "warn")
    return 0


def _tell(output: Output, verb: str, path: Path, changed: dict[str, list[Exclusion]]) -> None:
    if not output.json:
        return
    now_s = time.time()
    documents: dict[str, Any] = {
        key: [entry.to_json(is_over=entry.is_over(now_s)) for entry in entries]
        for key, entries in changed.items()
    }
    output.document("exclude", verb=verb, path=str(path), **documents)
