"""Check all nodes before a launch: go or no-go, and the line that fixes it.

Reads only. Each node is asked once; nodes are compared with each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from clusterctl.errors import UsageError
from clusterctl.render import Cell, Output
from clusterctl.settings import Settings, cluster_options, output_options

STYLES = {"FAIL": "bad", "UNKNOWN": "warn", "WARN": "warn", "PASS": "good", "SKIP": "dim"}


_OPTIONS = (
    click.option("--python", "python", default=lambda: sys.executable, show_default="this one", metavar="PATH", help="Interpreter that training will run on, on the nodes."),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True, help="What ranks will compute on; auto: cuda where any node has a GPU."),
    click.option("--nproc-per-node", "--nproc_per_node", "ranks", type=click.IntRange(1), help="Ranks on each node. Default: slots= of the hostfile, else 1."),
    click.option("--master-port", "--master_port", "port", type=click.IntRange(1, 65535), default=29500, show_default=True, help="Rendezvous port on the first node."),
    click.option("--outputs", type=click.Path(path_type=Path), default=Path("outputs"), show_default=True, help="Folder of the run directories."),
    click.option("--min-free", "min_free_gib", type=click.FloatRange(0), default=20.0, show_default=True, help="GiB that must be free there."),
    click.option("--check", "checks", metavar="IDS", multiple=True, help="Only these checks or subjects: gpu,ssh.reachable."),
    click.option("--skip-check", "skipped", metavar="IDS", multiple=True, help="Leave these checks or subjects out."),
    click.option("--write-good", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a hostfile of the nodes without a FAIL or UNKNOWN."),
)  # fmt: skip


def _needs_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(
    "preflight",
    epilog="""\b
Examples:
  clusterctl preflight nodes.txt
  clusterctl preflight --check gpu --write-good good.txt nodes.txt""",
)
@_needs_options
@cluster_options
@output_options
def command(
    settings: Settings,
    output: Output,
    python: str,
    device: Any,
    ranks: int | None,
    port: int,
    outputs: Path,
    min_free_gib: float,
    checks: tuple[str, ...],
    skipped: tuple[str, ...],
    write_good: Path | None,
) -> int:
    """Check all nodes before a launch: go or no-go, and the line that fixes it.

    Exit code 0 go (warnings allowed), 1 a check failed, 3 something could not be found out.
    """
    from checks.facts import LaunchNeeds
    from clusterctl.preflight import fix_lines, headline, run_preflight, table_rows

    nodes = settings.nodes()
    needs = LaunchNeeds(
        python=python,
        port=port,
        slots={node.name: ranks or node.slots or 1 for node in nodes},
        device=device,
        run_dir_parent=str(outputs.absolute()),
        min_free_bytes=int(min_free_gib * (1 << 30)),
        master=nodes[0].name,
    )
    try:
        report = run_preflight(
            nodes, settings.transport(), settings.limits, needs, settings.width,
            only=_ids(checks), without=_ids(skipped), sweep=output.sweep,
        )  # fmt: skip
    except KeyError as error:
        raise _unknown_check(error.args[0]) from None
    if write_good is not None:
        _write_good(write_good, settings, report.good_nodes)
    verdict = headline(report)
    if output.json:
        output.document("preflight", headline=verdict, **report.to_json())
        return report.exit_code
    if not output.quiet:
        rows = table_rows(report, everything=output.verbose > 0)
        if rows:
            output.table(
                ["VERDICT", "CHECK", "NODES", "EVIDENCE"],
                [[Cell(one.value, STYLES[one.value]), id, names, text] for one, id, names, text in rows],
            )  # fmt: skip
        for line in fix_lines(report):
            output.line(line)
    output.line(verdict, "good" if report.go else "bad")
    if write_good is not None:
        output.note(f"{len(report.good_nodes)} nodes written to {write_good}")
    output.note(f"{len(nodes)} nodes in {report.seconds:.1f} s", "dim")
    return report.exit_code


def _ids(options: tuple[str, ...]) -> list[str]:
    return [id for option in options for id in option.split(",") if id]


def _unknown_check(name: str) -> UsageError:
    import difflib

    from checks.runner import all_checks

    ids = list(all_checks())
    subjects = sorted({id.split(".")[0] for id in ids})
    near = difflib.get_close_matches(name, ids + subjects, n=1)
    hint = f"did you mean {near[0]}?" if near else f"checks: {', '.join(ids)}"
    return UsageError(f"no check is called {name!r}", hint=hint)


def _write_good(path: Path, settings: Settings, good: tuple[str, ...]) -> None:
    """A hostfile of the good nodes, every key as it stands in the original."""
    from clusterctl.nodes import hostfile_line

    lines = [hostfile_line(node) for node in settings.nodes() if node.name in set(good)]
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
