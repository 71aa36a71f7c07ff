"""`index.json` of a folder of sampled videos: what made them, and which file shows which prompt.

A run has such folders below `samples/`: that folder itself (`trainer.infer`), or one for each
checkpoint, also below the name of a preset. Standard library only: readers need no torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.runlog import run_files
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.json_file import number, text, whole
from trainer.runlog.units import counted

INDEX, SHEET = "index.json", "contact_sheet.png"
SUFFIXES = (".mp4", ".png")
SCHEMA = 1
MOST_BYTES = 64 << 20  # of an index: a video takes 300
_DEEPEST = 3  # folders below samples/: preset, checkpoint, and one more


@dataclass(frozen=True, slots=True)
class Video:
    """One file of the folder, or of a folder in it; `index` is its prompt's place in the list."""

    file: str
    prompt: str
    index: int
    sample: int
    seed: int


@dataclass(frozen=True, slots=True)
class Samples:
    """The document. Sizes are those of the files: an enlarged video counts enlarged."""

    checkpoint: str  # its name, or the path or hub id of other weights
    step: int | None  # None for weights that are no checkpoint of a run
    epoch: int | None
    weights: str  # model or ema
    preset: str  # "" without one
    settings: str  # one line for people
    fps: float
    frames: int
    height: int
    width: int
    videos: tuple[Video, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of videos as it is on the disk. Without `samples`, `why` has the reason: it is not
    finished, or cannot be read."""

    path: Path
    samples: Samples | None
    why: str = ""
    is_unfinished: bool = False
    missing: tuple[str, ...] = ()  # files that the index names and that are not there
    more: tuple[str, ...] = ()  # videos that it does not name


def write(folder: Path, samples: Samples) -> None:
    """Replace the index at once, if it says something new. What an earlier one of the same weights
    and settings names and still exists is kept: a list of prompts can be made in parts. Raises
    OSError."""
    before = None
    with contextlib.suppress(OSError, ValueError):
        before = read(folder)
    videos = list(samples.videos)
    if before is not None and replace(before, videos=samples.videos) == samples:
        ours = {video.file for video in videos}
        others = (video for video in before.videos if video.file not in ours)
        videos += (video for video in others if (folder / video.file).is_file())
        videos.sort(key=lambda video: (video.index, video.sample))
    found = replace(samples, videos=tuple(videos))
    if found == before:
        return
    document = {"schema": SCHEMA, **asdict(found)}
    write_whole(folder / INDEX, json.dumps(document, indent=1) + "\n")


def read(folder: Path) -> Samples:
    """Unknown keys are passed over, and values that are no good read as unknown (None, 0 or "").
    Raises OSError, and ValueError in words for a file that is no index."""
    found = run_files.read_object(folder, INDEX, MOST_BYTES)
    if found.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {found.get('schema')!r}, not {SCHEMA}")
    rows = found.get("videos")
    if not isinstance(rows, list):
        raise ValueError("it has no list of videos")
    return Samples(
        checkpoint=text(found.get("checkpoint")),
        step=whole(found.get("step")),
        epoch=whole(found.get("epoch")),
        weights=text(found.get("weights")),
        preset=text(found.get("preset")),
        settings=text(found.get("settings")),
        fps=number(found.get("fps")) or 0.0,
        frames=whole(found.get("frames")) or 0,
        height=whole(found.get("height")) or 0,
        width=whole(found.get("width")) or 0,
        videos=tuple(_videos(rows)),
    )


def find(samples_dir: Path) -> list[Folder]:
    """All folders of videos below a run's `samples/`, by preset, step and name. None is left out:
    one that cannot be read, or has videos and no index, says why. No error is raised."""
    if os.path.islink(samples_dir):  # noqa: PTH114 - is_symlink raises where it may not look
        return [Folder(samples_dir, None, "it is a link: links are not followed")]
    folders = list(_walk(samples_dir, 0))
    return sorted(folders, key=_order)


def _walk(folder: Path, depth: int) -> Iterator[Folder]:
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in entries
                if entry.name[0] != "." and not entry.is_symlink()  # of another folder, perhaps
            ]
    except FileNotFoundError:
        return  # no samples yet, or deleted since it was listed
    except OSError as error:
        yield Folder(folder, None, f"it cannot be read: {error.strerror or error}")
        return
    files = {name for name, is_dir in found if not is_dir}
    videos = {name for name in files if name.endswith(SUFFIXES) and name != SHEET}
    inner: set[str] = set()  # folders whose videos this index names
    if INDEX in files:
        one, inner = _indexed(folder, videos)
        yield one
    elif videos:
        count = counted(len(videos), "video")
        why = f"it has {count} and no {INDEX} yet: they are being made, or were interrupted"
        yield Folder(folder, None, why, is_unfinished=True, more=tuple(sorted(videos)))
    for name, is_dir in sorted(found):
        if is_dir and depth < _DEEPEST and name not in inner:
            yield from _walk(folder / name, depth + 1)


def _indexed(folder: Path, videos: set[str]) -> tuple[Folder, set[str]]:
    """A folder with an index, and the names of folders in it that hold videos of the index."""
    try:
        samples = read(folder)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        found = Folder(folder, None, f"{INDEX} cannot be read: {why}", more=tuple(sorted(videos)))
        return found, set()
    named = {video.file for video in samples.videos}
    inner = {file.partition("/")[0] for file in named if "/" in file}
    there = set(videos)
    for name in inner:
        with (
            contextlib.suppress(OSError),  # then its videos are missing
            run_files.folder_below(folder, name) as place,
            os.scandir(place) as entries,
        ):
            there |= {f"{name}/{one.name}" for one in entries if not one.is_symlink()}
    missing = tuple(video.file for video in samples.videos if video.file not in there)
    more = (file for file in there - named if file.endswith(SUFFIXES))
    more = (file for file in more if not file.rpartition("/")[2].startswith("."))
    return Folder(folder, samples, missing=missing, more=tuple(sorted(more))), inner


def _order(folder: Folder) -> tuple[str, float, str]:
    samples = folder.samples
    if samples is None:
        return "", math.inf, str(folder.path)
    step = math.inf if samples.step is None else samples.step
    return samples.preset, step, str(folder.path)


def _videos(rows: list[Any]) -> Iterator[Video]:
    """Those that name a file beside the index, or in a folder beside it: a page or a server must
    not reach others."""
    for row in rows:
        file = row.get("file") if isinstance(row, dict) else None
        if not isinstance(file, str) or not file.endswith(SUFFIXES) or "\0" in file:
            continue
        parts = file.split("/")
        if len(parts) > 2 or not all(parts) or any(part[0] == "." for part in parts):
            continue
        numbers = [whole(row.get(name)) or 0 for name in ("index", "sample", "seed")]
        yield Video(file, text(row.get("prompt")), *numbers)
