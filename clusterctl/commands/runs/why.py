"""Why a run ended: its first cause, what followed, what to do.

Reads the run directory on this machine; no node is asked.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.settings import FILE, flag, option, output_options

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
@option("--logs", "logs", "A folder of logs that no launcher wrote, instead of RUN.", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")  # fmt: skip
@output_options
def command(output: Output, run: str | None, attempt: int | None, logs: Path | None) -> int:
    """Why a run ended: its first cause, what followed, what to do.

    RUN is a run directory, or the number or name of one in outputs/; default: the newest. Of a run
    with several attempts the last one that failed is told in full. What no evidence names is not
    named. Exit code 1 where the run failed, 3 where its cause or its end cannot be told.
    """
    from clusterctl.runs.find import find_run
    from clusterctl.why.explain import explain, explain_logs, to_json
    from clusterctl.why.show import lines

    if logs is not None and (run is not None or attempt is not None):
        raise UsageError("--logs goes without RUN and --attempt")
    if logs is not None:
        if not logs.is_dir():
            raise UsageError(f"there is no folder {logs}")
        found = explain_logs(logs)
    else:
        found = explain(find_run(run), attempt, time.time())
    if output.json:
        output.document("why", **to_json(found))
        return found.exit_code
    for text, style in lines(found):
        output.line(text, style)
    return found.exit_code
