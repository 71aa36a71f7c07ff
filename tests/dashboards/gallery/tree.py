"""A run with real videos of many prompts and checkpoints: a few mp4 files, linked many times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer.data.video.mp4 import write_mp4
from trainer.runlog import samples
from trainer.runlog.samples import Samples, Video

FPS, FRAMES, HEIGHT, WIDTH = 8.0, 16, 96, 160
WORDS = ("a lighthouse at dusk", "two dogs run on a beach", "steam over a cup of tea", "a train in the snow", "paper boats on a pond")  # fmt: skip


def prompts_of(count: int) -> list[str]:
    return [f"{WORDS[n % len(WORDS)]}, take {n}" for n in range(count)]


def real_videos(folder: Path, count: int) -> list[Path]:
    """Moving squares of different colours; each brighter than the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    for number in range(count):
        frames = np.empty((FRAMES, HEIGHT, WIDTH, 3), np.uint8)
        shade = 60 + 120 * number // max(1, count - 1)
        for at in range(FRAMES):
            frames[at] = np.stack([shade + rows // 4, np.full_like(rows, shade), columns // 2], -1)
            x = (at * 8 + 20 * number) % (WIDTH - 24)
            frames[at, 36:60, x : x + 24] = (240, 200 - 30 * (number % 5), 40 * (number % 6))
        path = folder / f"{number}.mp4"
        write_mp4(path, frames, FPS)
        made.append(path)
    return made


def make_samples(
    run_dir: Path,
    videos: Sequence[Path],
    prompts: Sequence[str],
    steps: Sequence[int],
    preset: str = "low4s",
) -> None:
    """`samples/<preset>/<checkpoint>/` for every step, as `trainer.infer` leaves it."""
    for place, step in enumerate(steps):
        name = f"epoch{step // 1000}-global_step{step}"
        folder = run_dir / "samples" / preset / name
        folder.mkdir(parents=True)
        rows = []
        for index, prompt in enumerate(prompts):
            file = f"sample_{index:04d}.mp4"
            os.link(videos[(place + index) % len(videos)], folder / file)
            rows.append(Video(file, prompt, index, 0, 42))
        settings = f"{FRAMES} frames of {HEIGHT}x{WIDTH} at 8 fps, 30 steps, guidance 7, seed 42"
        found = Samples(
            name, step, step // 1000, "ema", preset, settings, FPS, FRAMES, HEIGHT, WIDTH, tuple(rows)
        )  # fmt: skip
        samples.write(folder, found)
