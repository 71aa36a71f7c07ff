"""`metrics.json` beside an index of videos: figures of each file, and what they mean. Pure, but for
reading and writing the file. `trainer.evaluate videos` measures; the gallery shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.runlog import run_files
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.json_file import number

FILE = "metrics.json"
SCHEMA = 1
# Key, label, definition; trainer/evaluate/figures.py measures them.
FIGURES = (
    ("brightness", "brightness", "mean luma, 0 black to 1 white"),
    (
        "colourfulness",
        "colour",
        "as Hasler and Suesstrunk define it: 0 grey, 109 extremely colourful",
    ),
    ("sharpness", "sharpness", "variance of the Laplacian; compare videos of one size only"),
    ("motion", "motion", "change of luma between frames, of the 5 % of pixels that change most"),
    ("stillness", "stillness", "VBench's temporal_flickering: 1 - mean change of RGB"),
    ("flicker", "flicker", "how far the brightness of frames jumps back and forth; 0 for a fade"),
    ("black", "black", "share of frames that are nearly black"),
    ("frozen", "frozen", "share of frames that repeat the one before"),
)
BLACK, FROZEN = 0.5, 0.9  # from this share on a video is said to be so
Stamp = tuple[int, int]
"""Size and time of a file when it was measured: another one is measured again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one video, by key; a still has no motion."""

    stamp: Stamp
    figures: Mapping[str, float]

    @property
    def flag(self) -> str:
        """What is wrong with it at first sight, in a word, or ""."""
        if self.figures.get("black", 0.0) >= BLACK:
            return "black"
        return "frozen" if self.figures.get("frozen", 0.0) >= FROZEN else ""


def stamp_of(path: Path) -> Stamp:
    """Raises OSError."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def write(folder: Path, videos: Mapping[str, Measured]) -> None:
    """Replace the file at once; keys are files as the index names them. Raises OSError."""
    rows = {name: {"stamp": list(one.stamp), **one.figures} for name, one in videos.items()}
    write_whole(folder / FILE, json.dumps({"schema": SCHEMA, "videos": rows}) + "\n")


def read(folder: Path) -> dict[str, Measured]:
    """By file; {} where nothing was measured or the file is no good: it is measured again."""
    found = run_files.object_in(folder, FILE)
    rows = found.get("videos")
    if found.get("schema") != SCHEMA or not isinstance(rows, dict):
        return {}
    known = ((name, _measured(row)) for name, row in rows.items())
    return {name: one for name, one in known if one is not None}


def read_current(folder: Path, index: Path) -> dict[str, Measured]:
    """As `read`; {} where the index was written after the file: its videos may be others."""
    try:
        is_older = (folder / FILE).stat().st_mtime_ns < index.stat().st_mtime_ns
    except OSError:
        return {}
    return {} if is_older else read(folder)


def means(videos: Mapping[str, Measured]) -> dict[str, float]:
    """The mean of each figure over the videos that have it."""
    found = {}
    for key, *_ in FIGURES:
        values = [one.figures[key] for one in videos.values() if key in one.figures]
        if values:
            found[key] = math.fsum(values) / len(values)
    return found


def _measured(row: Any) -> Measured | None:
    stamp = row.get("stamp") if isinstance(row, dict) else None
    if not isinstance(stamp, list) or [type(part) for part in stamp] != [int, int]:
        return None
    figures = {key: number(row.get(key), -1e12, 1e12) for key, *_ in FIGURES}
    known = {key: value for key, value in figures.items() if value is not None}
    return Measured((stamp[0], stamp[1]), known)
