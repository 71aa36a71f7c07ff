"""Moving handwritten digits: a real, small video data set that needs no network.

The scans are scikit-learn's `load_digits` (1,797 scans of 8 x 8 by real writers). Each clip shows
one that moves a logical pixel a frame over a 16 x 16 canvas, enlarged and encoded as h264 mp4:

    python -m trainer.data.digits --out DIR --clips 2000 --seed 1

writes `digits.csv` (the manifest) with `clips/*.mp4`, `held_out.csv` with a clip of each caption to
validate on (`held_out/*.mp4`, scans that no clip of digits.csv shows), `prompts.txt` (40 prompts,
digit by direction) and `stamp.json`. The folder appears whole or not at all, and is reused when its
stamp fits.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trainer.command_line import TRAINING, command, require
from trainer.runlog import units

if __name__ == "__main__":  # before the imports that need them
    require(*TRAINING)

import numpy as np
from numpy.typing import NDArray

from trainer.errors import TrainerError
from trainer.runlog.atomic_file import put_in_place
from trainer.runlog.json_file import read_object

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}  # (dy, dx) a frame
DIRECTIONS = tuple(STEPS)
CANVAS, BOX = 16, 8  # logical pixels
# The rest is held out, for validation and for what reads digits back: fitted to 297 scans it reads
# 0.95 of the others right, fitted to 797 0.98.
TRAIN_SCANS = 1000
FPS = 8
MANIFEST, HELD_OUT, PROMPTS, STAMP = "digits.csv", "held_out.csv", "prompts.txt", "stamp.json"
_COLUMNS = ("path", "text", "num_frames", "height", "width", "aspect_ratio", "fps", "resolution")
_FORMAT = 2  # goes up when the same parameters render other bytes


class DigitsError(TrainerError):
    """The data set cannot be rendered or read; the message says what to change."""

    exit_code = 2


@cache
def scans(split: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scans [N, 8, 8] in 0..1 (1 is ink) and their digits [N]; `split` is "train" or "held_out"."""
    parts = {"train": slice(None, TRAIN_SCANS), "held_out": slice(TRAIN_SCANS, None)}
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DigitsError("the scans come with scikit-learn, which this Python does not have")
    # What load_digits() reads; importing scikit-learn for it costs 1.4 CPU s.
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)[parts[split]]
    pixels, labels = table[:, :-1], table[:, -1]
    return pixels.reshape(-1, BOX, BOX).astype(np.float32) / np.float32(16), labels


def caption(digit: int, direction: str) -> str:
    return f"handwritten digit {WORDS[digit]} moving {direction}"


def parse_caption(text: str) -> tuple[int, str]:
    """Digit and direction of a caption; DigitsError when the text does not name one of each."""
    words = text.lower().split()
    digits = [WORDS.index(word) for word in words if word in WORDS]
    directions = [word for word in words if word in STEPS]
    if len(digits) != 1 or len(directions) != 1:
        raise DigitsError(f"not a caption of one digit and one direction: {text!r}")
    return digits[0], directions[0]


def prompts() -> list[str]:
    """All 40 captions, digit by digit, directions in the order of `DIRECTIONS`."""
    return [caption(digit, direction) for digit in range(10) for direction in DIRECTIONS]


def trajectory(direction: str, frames: int) -> list[tuple[int, int]]:
    """Top left corner (y, x) of the digit in each frame. DigitsError for more than 9 frames."""
    most = CANVAS - BOX
    if not 1 <= frames <= most + 1:
        raise DigitsError(f"{frames} frames do not fit: the box has {most + 1} positions")
    start = {0: most // 2, 1: 0, -1: most}
    dy, dx = STEPS[direction]
    return [(start[dy] + dy * t, start[dx] + dx * t) for t in range(frames)]


def draw(scan: NDArray[np.float32], direction: str, frames: int) -> NDArray[np.float32]:
    """The clip on the logical canvas: [frames, 16, 16] in 0..1, background 0."""
    clip = np.zeros((frames, CANVAS, CANVAS), np.float32)
    for t, (y, x) in enumerate(trajectory(direction, frames)):
        clip[t, y : y + BOX, x : x + BOX] = scan
    return clip


def encode(path: Path, clip: NDArray[np.float32], factor: int, fps: int = FPS) -> None:
    """Write [T, h, w] in 0..1 as grey h264 yuv420p mp4, each pixel `factor` x `factor`."""
    from trainer.data.video import mp4  # here: captions and scans need no codec

    frames, height, width = clip.shape[0], clip.shape[1] * factor, clip.shape[2] * factor
    luma = np.rint(16 + 219 * clip).astype(np.uint8)  # limited range, the default of yuv420p
    luma = luma.repeat(factor, 1).repeat(factor, 2)
    neutral = np.full((height // 2, width), 128, np.uint8)  # both chroma planes
    images = (np.concatenate([image, neutral]) for image in luma)
    # superfast: 2.7 CPU ms a clip against 3.7 (medium); no B frames, so packets come in order
    options = {"preset": "superfast", "crf": "8", "g": str(frames), "bf": "0"}
    mp4.encode(path, images, "yuv420p", (height, width), Fraction(fps), options)


def plan_clips(clips: int, seed: int, split: str = "train") -> list[tuple[int, str]]:
    """Scan and direction of each clip, shuffled: all 40 captions equally often."""
    labels = scans(split)[1]
    rng = np.random.default_rng(seed)
    pools = [
        (rng.permutation(np.flatnonzero(labels == digit)), direction)
        for digit in range(10)
        for direction in DIRECTIONS
    ]
    turns = (pools[n % len(pools)] + (n // len(pools),) for n in range(clips))
    chosen = [(int(pool[turn % len(pool)]), direction) for pool, direction, turn in turns]
    return [chosen[n] for n in rng.permutation(clips)]


def make(out: Path, clips: int, seed: int, size: int = 64, frames: int = 8) -> bool:
    """Render the data set into the folder `out`; False when it was there already. `size`: the
    clip's height and width in pixels, a multiple of 16. `frames`: the length to train on; files
    hold one more, as a clip must be longer than its bucket. Raises DigitsError for parameters that
    do not fit and for a folder that is not ours."""
    if size % CANVAS or size < CANVAS:
        raise DigitsError(f"--size {size} is not a multiple of {CANVAS}")
    if clips < 1:
        raise DigitsError(f"--clips {clips}: at least one")
    trajectory("left", frames + 1)  # refuses a length that does not fit before anything is written
    numbers = {"format": _FORMAT, "clips": clips, "seed": seed, "size": size, "frames": frames}
    text = json.dumps(numbers, sort_keys=True)
    out, stamp = out.resolve(), {**numbers, "hash": hashlib.sha256(text.encode()).hexdigest()}
    with suppress(OSError, ValueError):
        if read_object(out / STAMP) == stamp and (out / MANIFEST).is_file():
            return False
    if out.exists() and any(out.iterdir()) and not (out / STAMP).is_file():
        raise DigitsError(f"{out} is not empty and was not made by this command: choose another")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)  # left by a killed process that had our pid
    try:
        fresh.mkdir(parents=True)
        texts = prompts()
        _render(fresh / MANIFEST, "train", plan_clips(clips, seed), size, frames + 1)
        held_out = plan_clips(len(texts), seed, "held_out")
        _render(fresh / HELD_OUT, "held_out", held_out, size, frames + 1)
        (fresh / PROMPTS).write_text("\n".join(texts) + "\n")
        (fresh / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")
        put_in_place(fresh, out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def _render(
    manifest: Path, split: str, plan: Sequence[tuple[int, str]], size: int, frames: int
) -> None:
    """Write the clips of a plan and their manifest."""
    images, labels = scans(split)
    folder = manifest.parent / {"train": "clips"}.get(split, split)
    folder.mkdir()
    with manifest.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(_COLUMNS)
        for n, (scan, direction) in enumerate(plan):
            path = folder / f"{n:05d}.mp4"
            encode(path, draw(images[scan], direction, frames), size // CANVAS)
            text = caption(int(labels[scan]), direction)
            # relative to the manifest, so the folder can be moved
            place = f"{folder.name}/{path.name}"
            rows.writerow([place, text, frames, size, size, 1.0, FPS, size * size])


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data.digits", description="Render moving handwritten digits."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--clips", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--size", type=int, default=64, help="pixels, a multiple of 16")
    parser.add_argument("--frames", type=int, default=8, help="length to train on, at most 8")
    args = parser.parse_args(argv)
    began = time.monotonic()
    try:
        rendered = make(args.out, args.clips, args.seed, args.size, args.frames)
    except OSError as error:
        print(f"error: {args.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    what = "rendered" if rendered else "already there:"
    print(f"{what} {args.clips} clips, {units.duration(time.monotonic() - began)}", file=sys.stderr)
    print(args.out / MANIFEST)
    return 0


if __name__ == "__main__":
    sys.exit(main())
