"""The page of a gallery: one HTML file that a browser shows without a server, beside the videos."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from clusterctl.errors import UsageError
from dashboards.gallery.contents import Counts, RunFolders, counts, document
from dashboards.report import svg
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.samples import INDEX, find
from trainer.runlog.video_figures import read_current

HERE = Path(__file__).parent
SAMPLES, NAME, OF_SEVERAL = "samples", "index.html", "gallery.html"


@dataclass(frozen=True, slots=True)
class Gallery:
    """A page that was written."""

    path: Path
    counts: Counts


def write_gallery(run_dirs: Sequence[Path], out: Path | None = None) -> Gallery:
    """Write the page of one run or of several; readers see the old or the new one. It is in
    `samples/` of the run, or in the folder that holds all runs. Raises `UsageError`."""
    path = out or default_place(run_dirs)
    # As the browser follows them: by names, whatever links are on the way.
    here = os.path.abspath(path.parent)  # noqa: PTH100
    runs = read(run_dirs)
    data = document(runs, lambda folder: _relative(folder, here))
    text = page(runs, data, time.time())
    try:
        if out is None and len(run_dirs) == 1:
            if path.parent.is_symlink():  # it may lead to a folder with a page of its own
                raise UsageError(f"{path.parent} is a link", hint="--out FILE names another place")
            path.parent.mkdir(exist_ok=True)
        write_whole(path, text, 0o600)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise UsageError(why, hint="--out FILE names another place") from None
    return Gallery(path, counts(data))


def default_place(run_dirs: Sequence[Path]) -> Path:
    if len(run_dirs) == 1:
        return run_dirs[0] / SAMPLES / NAME
    return Path(os.path.commonpath([run.absolute().parent for run in run_dirs])) / OF_SEVERAL


def read(run_dirs: Sequence[Path]) -> list[RunFolders]:
    """The folders of videos of every run, as they are now. No error is raised."""
    found = []
    for run in run_dirs:
        samples_dir = run / SAMPLES
        folders = tuple(find(samples_dir))
        figures = {one.path: read_current(one.path, one.path / INDEX) for one in folders}
        found.append(RunFolders(run.resolve().name, samples_dir, folders, figures))
    return found


def page(runs: Sequence[RunFolders], data: dict[str, Any], now_s: float) -> str:
    """The page as HTML. Its policy lets it run its own script and show files of its own place."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    style = (HERE / "page.css").read_text(encoding="utf-8")
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s))
    # "<" could end the element that holds the data.
    embedded = json.dumps({**data, "made": made}, separators=(",", ":")).replace("<", "\\u003c")
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=svg.safe(", ".join(run.name for run in runs)),
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        data=embedded,
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _relative(folder: Path, here: str) -> str:
    return quote(os.fsencode(os.path.relpath(folder, here)))
