"""Copy a file or folder to all nodes: checked on arrival, put in place by one rename.

What stands at the destination is replaced, a folder as a whole. A node that has the same file
already is left alone.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import click

from checks import units
from checks.units import counted
from clusterctl.nodes import Node, fold, grouped
from clusterctl.output import Output, unreachable_json
from clusterctl.remote.fanout import Fanout, NodeResult, in_order
from clusterctl.settings import PATH, YES, Settings, cluster_command, flag
from clusterctl.signal_handlers import handled_by
from clusterctl.transport.base import Progress


@cluster_command(
    "push",
    click.argument("source", metavar="SRC", type=PATH),
    click.argument("dest", metavar="DEST"),
    YES,
    flag("--dry-run", "Print what would be done and stop."),
    examples="""
  clusterctl push OpenVid1M.csv /data/OpenVid1M.csv nodes.txt
  clusterctl push --dry-run -w 'ml-64-node-[001-004]' .venv /opt/trainer/ nodes.txt""",
)
def command(
    settings: Settings, output: Output, source: Path, dest: str, yes: bool, dry_run: bool
) -> int:
    """DEST is the name it gets there, or, with a slash at its end, the folder it goes into; a
    relative one starts in the home of the user who logs in. Exit code 1 when a node had to refuse,
    3 when one could not be reached.
    """
    from clusterctl.transfer import push

    cluster = settings.cluster(output.sweep)
    nodes = cluster.nodes
    targets = counted(len(nodes), "node")
    plan = push.make_plan(source, dest)
    names = [node.name for node in nodes]
    about = {"source": str(plan.source), "dest": plan.dest, "folder": plan.folder}
    about |= {"files": plan.files, "bytes": plan.size, "targets": names}
    output.note(f"push {plan.sentence()}")
    output.note(f"  on {targets}: {fold(names)}")
    whole = ", the folder as a whole" if plan.folder else ""
    output.note(f"  what exists there is replaced{whole}")
    if dry_run:
        if output.json:
            output.document("push", dry_run=True, **about, nodes=[])
        return 0
    output.confirm(f"Push to {targets}?", "nothing was pushed", yes=yes)

    with push.packed(plan) as parcel:

        def work(node: Node, progress: Progress) -> push.Delivery:
            return push.deliver(parcel, cluster, node, progress)

        width, deadline_s = min(cluster.width, push.BULK_WIDTH), push.deadline_s(parcel, cluster)
        sweep = Fanout(nodes, work, deadline_s=deadline_s, width=width)
        started = time.monotonic()
        line = push.progress_line(parcel, len(nodes), started)
        ending = (signal.SIGTERM, signal.SIGHUP)
        try:
            with handled_by(signal.default_int_handler, ending):
                results = in_order(nodes, output.sweep(sweep, len(nodes), line))
        except KeyboardInterrupt:
            with handled_by(signal.SIG_IGN, ending):
                parcel.end()
            raise
    if output.json:
        output.document("push", dry_run=False, **about, nodes=[_json(one) for one in results])
    else:
        _show(output, results, time.monotonic() - started)
    output.connections(results)
    if any(result.value and result.value.error for result in results):
        return 1
    return 3 if any(result.unreachable for result in results) else 0


def _show(output: Output, results: list[NodeResult[Any]], seconds: float) -> None:
    """Nodes with the same result in one line; an error in the node's own words."""
    endings = grouped(((one.value.state, one.value.error), one) for one in results if one.value)
    for (state, error), members in endings.items():
        names = fold(member.node.name for member in members)
        ending = error or f"{state}, {units.duration(max(member.seconds for member in members))}"
        output.line(f"{names}: {ending}", "bad" if error else "good")
    good = sum(bool(result.value and not result.value.error) for result in results)
    have = "has" if len(results) == 1 else "have"
    output.note(f"{good} of {counted(len(results), 'node')} {have} it, {units.duration(seconds)}")


def _json(result: NodeResult[Any]) -> dict[str, Any]:
    delivery = result.value
    return {
        "node": result.node.name,
        "state": delivery.state if delivery else None,
        "bytes_sent": delivery.sent if delivery else 0,
        "seconds": round(result.seconds, 3),
        "error": delivery.error if delivery else None,
        "unreachable": unreachable_json(result),
    }
