"""What a gallery shows: columns (checkpoints) and rows (prompts) of each preset, as one document.

Pure: folders as they were found on the disk in, a document for the page's script out. A folder that
cannot be shown, or not whole, is named in the document.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from checks.units import counted
from trainer.runlog.output import printable
from trainer.runlog.samples import Folder, Samples, Video
from trainer.runlog.video_figures import FIGURES, Measured, means

Address = Callable[[Path], str]
"""Of a folder, as the page shall write it: without a slash at its end."""
Row = tuple[str, int, int]
"""A prompt, which of several equal ones, and which sample of it: the same row in every column."""


@dataclass(frozen=True, slots=True)
class RunFolders:
    """A run, the folders of videos that were found below its `samples/`, and what was measured in
    each of them."""

    name: str
    samples_dir: Path
    folders: tuple[Folder, ...]
    figures: Mapping[Path, Mapping[str, Measured]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a gallery, for people and for `--json`."""

    prompts: int
    checkpoints: int
    videos: int
    problems: tuple[str, ...]
    unreadable: int  # folders of which is not known what they hold


def document(runs: Sequence[RunFolders], address: Address) -> dict[str, Any]:
    """The data of the page. Numbers and addresses only, and text without control characters."""
    presets: dict[str, list[_Column]] = {}
    for run in runs:
        for folder in run.folders:
            if folder.samples is not None and folder.samples.videos:
                figures = run.figures.get(folder.path, {})
                column = (run.name, folder, folder.samples, figures)
                presets.setdefault(folder.samples.preset, []).append(column)
    return {
        "runs": [printable(run.name) for run in runs],
        "presets": [_preset(name, found, address) for name, found in sorted(presets.items())],
        "figures": [list(one) for one in FIGURES],
        "problems": list(problems(runs)),
        "unreadable": sum(
            folder.samples is None and not folder.is_unfinished
            for run in runs
            for folder in run.folders
        ),
    }


def counts(found: dict[str, Any]) -> Counts:
    """Of a document."""
    columns = [column for preset in found["presets"] for column in preset["columns"]]
    return Counts(
        prompts=len({row[0] for preset in found["presets"] for row in preset["rows"]}),
        checkpoints=len({(column["run"], column["checkpoint"]) for column in columns}),
        videos=sum(file != 0 for column in columns for file in column["files"]),
        problems=tuple(found["problems"]),
        unreadable=found["unreadable"],
    )


def problems(runs: Sequence[RunFolders]) -> Iterator[str]:
    """A sentence for everything that the page cannot show."""
    for run in runs:
        if not run.folders:
            yield f"{printable(run.name)}: there are no videos in {printable(str(run.samples_dir))}"
        for folder in run.folders:
            where = f"{printable(run.name)}: {_place(run, folder)}"
            if folder.samples is None:
                yield f"{where}: {printable(folder.why)}"
            if folder.missing:
                some = f"{counted(len(folder.missing), 'video')} of the index"
                yield f"{where}: {some} not there, first {printable(folder.missing[0])}"
            if folder.samples is not None and folder.more:
                some = f"{counted(len(folder.more), 'video')} that the index does not name"
                yield f"{where}: {some}, first {printable(folder.more[0])}"


def _place(run: RunFolders, folder: Folder) -> str:
    place = os.path.relpath(folder.path, run.samples_dir)
    return printable(run.samples_dir.name if place == "." else f"{run.samples_dir.name}/{place}")


_Column = tuple[str, Folder, Samples, Mapping[str, Measured]]


def _preset(name: str, found: Sequence[_Column], address: Address) -> dict[str, Any]:
    """All checkpoints of a preset; rows are in the order of the first list of prompts."""
    rows: dict[Row, str] = {}  # with the name that the file has as a rule
    keyed = []
    for _, _, samples, _ in found:
        files = dict(_keys(samples.videos))
        keyed.append(files)
        for row, video in files.items():
            rows.setdefault(row, video.file)
    order = {row: number for number, row in enumerate(rows)}
    columns = []
    for (run, folder, samples, figures), files in zip(found, keyed, strict=True):
        missing = frozenset(folder.missing)
        cells: list[int | str] = [0] * len(rows)
        flags = {}
        for row, video in files.items():
            if video.file not in missing:
                cells[order[row]] = 1 if video.file == rows[row] else _quoted(video.file)
            if video.file in figures and (flag := figures[video.file].flag):
                flags[order[row]] = flag
        columns.append(
            {
                "run": printable(run),
                "checkpoint": printable(samples.checkpoint or folder.path.name),
                "step": samples.step,
                "epoch": samples.epoch,
                "weights": printable(samples.weights),
                "settings": printable(samples.settings),
                "fps": samples.fps,
                "frames": samples.frames,
                "height": samples.height,
                "width": samples.width,
                "at": address(folder.path),
                "files": cells,
                "figures": {key: round(value, 6) for key, value in means(figures).items()},
                "flags": flags,
            }
        )
    return {
        "name": printable(name),
        "rows": [
            [printable(prompt), n, _quoted(rows[prompt, same, n])] for prompt, same, n in rows
        ],
        "columns": columns,
    }


def _keys(videos: Iterable[Video]) -> Iterator[tuple[Row, Video]]:
    """Each video with its row. Lists of prompts may differ between checkpoints: a prompt is found
    by its text, equal ones by their order."""
    places: dict[str, dict[int, int]] = {}
    for video in sorted(videos, key=lambda video: (video.index, video.sample)):
        same = places.setdefault(video.prompt, {})
        yield (video.prompt, same.setdefault(video.index, len(same)), video.sample), video


def _quoted(file: str) -> str:
    """Of a path below its folder, as an address. Names are bytes: not all of them are UTF-8."""
    return quote(os.fsencode(file))
