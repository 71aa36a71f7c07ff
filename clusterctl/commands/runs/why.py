"""Why a run ended: its first cause, what followed, what to do.

Reads the run directory on this machine; no node is asked.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.settings import FILE, flag, option, output_options

if TYPE_CHECKING:
    from clusterctl.why.explain import Explanation

BUNDLE = "Write what the verdict rests on to a .tar.gz to hand to somebody, secrets masked."


@click.command(
    "why",
    epilog="""\b
Examples:
  clusterctl why
  clusterctl why 3 --attempt 1
  clusterctl why 3 --bundle run3.tar.gz --dry-run
  clusterctl why --logs /scratch/torchrun_logs""",
)
@click.argument("run", required=False)
@option("--attempt", "The first cause of this attempt.", type=click.IntRange(1), metavar="N")
@option(
    "--logs",
    "logs",
    "A folder of logs that no launcher wrote, instead of RUN.",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
)
@option("--bundle", BUNDLE, type=FILE, metavar="FILE")
@flag("--dry-run", "With --bundle: list what it would hold, write nothing.")
@flag("--force", "With --bundle: replace FILE if it exists.")
@output_options
def command(
    output: Output,
    run: str | None,
    attempt: int | None,
    logs: Path | None,
    bundle: Path | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Why a run ended: its first cause, what followed, what to do.

    RUN is a run directory, or the number or name of one in outputs/; default: the newest. Of a run
    with several attempts the last one that failed is explained in full. Nothing is named without
    evidence. Exit code 1 where the run failed, 3 where its cause or its end is unknown.
    """
    from clusterctl.runs.find import find_run
    from clusterctl.why.document import to_json
    from clusterctl.why.explain import explain, explain_logs
    from clusterctl.why.show import lines

    if logs is not None and (run is not None or attempt is not None):
        raise UsageError("--logs goes without RUN and --attempt")
    if bundle is None and (dry_run or force):
        raise UsageError("--dry-run and --force go with --bundle FILE")
    if bundle is not None and not dry_run:
        from clusterctl.why.bundle import check_place

        check_place(bundle, force=force)
    if logs is not None:
        if not logs.is_dir():
            raise UsageError(f"there is no folder {logs}")
        found = explain_logs(logs)
    else:
        found = explain(find_run(run), attempt, time.time())
    answer = to_json(found)
    if not output.json:
        for text, style in lines(found, is_quiet=output.quiet):
            output.line(text, style)
    if bundle is not None:
        answer["bundle"] = _bundle(output, bundle, found, answer, dry_run=dry_run)
    if output.json:
        output.document("why", **answer)
    return found.exit_code


def _bundle(
    output: Output, path: Path, found: Explanation, answer: dict[str, Any], *, dry_run: bool
) -> dict[str, Any]:
    """List what the bundle holds, then write it."""
    from checks.units import counted
    from clusterctl.why import bundle

    held = bundle.collect(found.run_dir, answer, found.stacks, time.time())
    masked = sum(one.masked for one in held.entries)
    files = f"{counted(len(held.entries), 'file')}, {held.size:,} bytes"
    output.note(f"{path}: {files}, secrets masked in {counted(masked, 'line')}")
    for line in bundle.lines(held):
        output.note(line)
    size = None
    if not dry_run:
        size = bundle.write(path, held, f"why-{found.run_dir.resolve().name}")
        output.note(f"{path} is written, {size:,} bytes; read it before you hand it on")
    return {"path": str(path), "bytes": size, "masked_lines": masked, **bundle.to_json(held)}
