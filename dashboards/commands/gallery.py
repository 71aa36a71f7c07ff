"""Write a page that shows a run's videos: prompts by checkpoints, side by side.

One HTML file beside the videos, which a browser shows without a server; or served with --web.
"""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.settings import FILE, flag, option, output_options

OUT = (
    "Where to. Default: samples/index.html of the run; of several, gallery.html in the folder that"
    " holds them all."
)
PORT = click.IntRange(0, 65535)


@click.command(
    "gallery",
    epilog="""\b
Examples:
  clusterctl gallery outputs/003-STDiT3-XL-2
  clusterctl gallery 656 657 --out compare.html
  clusterctl gallery 3 --web --port 0      # and open the address it prints""",
)
@click.argument("runs", nargs=-1)
@option("--out", OUT, type=FILE, metavar="FILE")
@flag("--web", "Serve page and videos on this machine until Ctrl-C: pip install '.[web]'.")
@option("--host", "Address that --web listens on.", default="127.0.0.1")
@option("--port", "Port of --web; 0 takes a free one.", type=PORT, default=8000)
@output_options
def command(
    output: Output, runs: tuple[str, ...], out: Path | None, web: bool, host: str, port: int
) -> int:
    """Write a page that shows a run's videos: prompts by checkpoints, side by side.

    RUNS are run directories, or numbers or names of those in outputs/; default: the newest. The
    page is of this moment; an earlier one is replaced. What cannot be shown is named on it and on
    stderr; exit code 3 when a folder of videos cannot be read.
    """
    from clusterctl.runs.find import find_run
    from dashboards.gallery.page import write_gallery

    run_dirs = list(dict.fromkeys(find_run(run) for run in runs or (None,)))
    if web:
        from dashboards.gallery.web import serve

        if out is not None:
            raise UsageError("--web serves the page and writes no file", hint="leave out --out")
        return serve(run_dirs, host=host, port=port, say=output.warn)  # under -q, too
    gallery = write_gallery(run_dirs, out)
    found = gallery.counts
    if output.json:
        output.document(
            "gallery",
            runs=[str(run) for run in run_dirs],
            page=str(gallery.path),
            prompts=found.prompts,
            checkpoints=found.checkpoints,
            videos=found.videos,
            problems=list(found.problems),
        )
    else:
        for problem in found.problems:
            output.warn(problem)
        output.line(str(gallery.path))
    return 3 if found.unreadable else 0
