"""Manifests made of numbers, for tests that need no files."""

import csv
from pathlib import Path

import numpy as np

from trainer.data.manifest.manifest import Manifest


def manifest_of(num_frames, height, width, texts=None, root: Path = Path("/data")) -> Manifest:
    count = len(num_frames)
    return Manifest(
        source=root / "clips.csv",
        root=root,
        paths=[f"v/{index}.mp4" for index in range(count)],
        texts=texts or [f"clip {index}" for index in range(count)],
        num_frames=np.asarray(num_frames, np.int32),
        height=np.asarray(height, np.int32),
        width=np.asarray(width, np.int32),
        fps=np.full(count, 24, np.float32),
    )


def random_manifest(count: int, seed: int = 0) -> Manifest:
    rng = np.random.default_rng(seed)
    height = rng.choice([240, 360, 480, 720, 1080], count)
    width = (height * rng.choice([0.5625, 1.0, 1.3333, 1.7778], count)).astype(int)
    frames = np.where(rng.random(count) < 0.1, 1, rng.integers(40, 500, count))
    return manifest_of(frames, height, width)


def read_rows(path: Path) -> Manifest:
    """A golden table as a manifest."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [[int(row[name]) for row in rows] for name in ("num_frames", "height", "width")]
    return manifest_of(*columns)
