"""Manifests as files, small or of many rows."""

from __future__ import annotations

import csv
import random
from pathlib import Path

NAMES = (
    "path",
    "text",
    "num_frames",
    "height",
    "width",
    "aspect_ratio",
    "fps",
    "resolution",
    "vmaf",
)
SIZES = ((360, 640), (720, 1280), (1080, 1920), (1920, 1080))


def write_table(path: Path, count: int, seed: int = 0, copies: int = 0) -> Path:
    """`count` rows; the last `copies` have paths of the first ones."""
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        for index in range(count):
            height, width = rng.choice(SIZES)
            place = index - (count - copies) if index >= count - copies else index
            row = [f"v/{place}.mp4", f'clip {index}, größer\n"{seed}"', rng.randint(1, 300)]
            row += [height, width, round(height / width, 4), rng.choice(["24.0", "23.976", ""])]
            writer.writerow([*row, height * width, round(rng.random(), 3)])
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))
