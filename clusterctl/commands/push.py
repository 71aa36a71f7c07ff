"""Copy a file or folder to all nodes: checked on arrival, put in place by one rename.

What stands at the destination is replaced, a folder as a whole. A node that has the same file
already is left alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from clusterctl.nodes import Node, counted, fold
from clusterctl.output import Live, Output, clock, unreachable_json
from clusterctl.remote.fanout import Fanout, NodeResult, in_order
from clusterctl.settings import Settings, cluster_options, output_options
from clusterctl.transport.base import Progress


@click.command(
    "push",
    epilog="""\b
Examples:
  clusterctl push OpenVid1M.csv /data/OpenVid1M.csv nodes.txt
  clusterctl push --dry-run -w 'ml-64-node-[001-004]' .venv /opt/trainer/ nodes.txt""",
)
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("dest", metavar="DEST")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and stop.")
@cluster_options
@output_options
def command(
    settings: Settings, output: Output, source: Path, dest: str, yes: bool, dry_run: bool
) -> int:
    """Copy a file or folder to all nodes: checked on arrival, put in place by one rename.

    DEST is the name it gets there, or, with a slash at its end, the folder it goes into; a relative
    one starts in the home of the user who logs in. Exit code 1 when a node had to refuse, 3 when
    one could not be reached.
    """
    from clusterctl.transfer import push

    nodes = settings.nodes()
    plan = push.make_plan(source, dest)
    output.note(f"push {plan.sentence()}")
    output.note(f"  on {counted(len(nodes), 'node')}: {fold([node.name for node in nodes])}")
    output.note(
        "  what stands there is replaced" + (", the folder as a whole" if plan.folder else "")
    )
    if dry_run:
        if output.json:
            output.document("push", dry_run=True, **_plan_json(plan, nodes), nodes=[])
        return 0
    output.confirm(f"Push to {counted(len(nodes), 'node')}?", "nothing was pushed", yes=yes)

    transport = settings.transport()
    with push.packed(plan) as parcel:

        def work(node: Node, progress: Progress) -> push.Delivery:
            return push.deliver(parcel, node, transport, settings.limits, progress)

        sweep = Fanout(
            nodes,
            work,
            deadline_s=push.deadline_s(parcel, len(nodes), settings.limits),
            width=min(settings.width, push.BULK_WIDTH),
        )
        started = time.monotonic()
        results: list[NodeResult[push.Delivery]] = []
        live = Live(enabled=not output.quiet)
        with (
            live,
            live.every(0.2, lambda: push.progress_text(parcel, len(nodes), len(results), started)),
        ):
            for result in sweep:
                results.append(result)
    results = in_order(nodes, results)
    seconds = time.monotonic() - started
    if output.json:
        output.document(
            "push", dry_run=False, **_plan_json(plan, nodes), nodes=[_json(r) for r in results]
        )
    else:
        _show(output, results, seconds)
    output.ways(results)
    output.unreachable(results)
    if any(result.value and result.value.error for result in results):
        return 1
    return 3 if any(result.unreachable for result in results) else 0


def _show(output: Output, results: list[NodeResult[Any]], seconds: float) -> None:
    """Nodes with the same ending together; a refusal with the node's own words."""
    endings: dict[tuple[str, str | None], list[NodeResult[Any]]] = {}
    for result in results:
        if result.value:
            endings.setdefault((result.value.state, result.value.error), []).append(result)
    for (state, error), members in endings.items():
        names = fold([member.node.name for member in members])
        slowest = max(member.seconds for member in members)
        words = f"{names}: {error}" if error else f"{names}: {state}, {clock(slowest)}"
        output.line(words, "bad" if error else "good")
    good = sum(bool(result.value and not result.value.error) for result in results)
    output.note(
        f"{good} of {counted(len(results), 'node')} "
        f"{'has' if len(results) == 1 else 'have'} it, {clock(seconds)}"
    )


def _plan_json(plan: Any, nodes: list[Node]) -> dict[str, Any]:
    return {
        "source": str(plan.source),
        "dest": plan.dest,
        "folder": plan.folder,
        "files": plan.files,
        "bytes": plan.size,
        "targets": [node.name for node in nodes],
    }


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
