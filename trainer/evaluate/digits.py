"""Scores of sampled videos, read back from their files.

    python -m trainer.evaluate digits --samples samples --prompts prompts.txt --json

`digits`: does each clip show the digit its prompt names, and does it move the way the prompt says?
The digit's box is cut out along the named direction's path, averaged over the frames, and read by
a classifier that is fitted to handwritten scans no training clip was made from. The direction is
where the ink's centre of mass went. Chance is 0.10 and 0.25; real clips of other scans score 0.98
(94 to 100 of 100 of each digit) and 1.00, so a score of digits above 0.98 says no more than 0.98.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.command_line import Parser
from trainer.data import digits
from trainer.data.video.mp4 import read_mp4
from trainer.errors import ConfigError
from trainer.infer.prompts import read_prompts

# T frames · N scans · P pixels of a box · canvas, box: logical pixels, see trainer.data.digits
# Read right of the 1,000 scans that clips are made of, by what is fitted to the other 797: 0.979;
# without the shifted ones 0.964, with the votes of 5 nearest neighbours 0.937, with scikit-learn's
# SVC 0.959. Half and twice these numbers change it by less than 0.01.
SHIFT, WIDTH, RIDGE = 0.5, 0.2, 0.05
BACKGROUND = 0.1  # ink below this is compression noise and does not pull the centre


@dataclass(frozen=True, slots=True)
class Reading:
    """The digit and direction of a video's prompt, and what the video shows."""

    prompt: str
    digit: int
    direction: str
    seen_digit: int
    seen_direction: str | None  # None: no ink, or no motion


def on_canvas(frames_THW3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A video, any multiple of the canvas, as [T, 16, 16] in 0..1 (1 is ink). Raises ValueError."""
    _, height, width, _ = frames_THW3.shape
    side = digits.CANVAS
    if height != width or height % side:
        raise ValueError(f"a digit video is {side}x{side} or a multiple, not {height}x{width}")
    grey_THW = frames_THW3.astype(np.float32).mean(-1) / 255
    factor = height // side
    return grey_THW.reshape(-1, side, factor, side, factor).mean((2, 4), dtype=np.float32)


@cache
def _fitted() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Held-out scans [N, P], as they are and moved by half a pixel to each side, and their weights
    [N, 10]: a ridge regression with a Gaussian kernel on one column a digit."""
    scans_N88, labels_N = digits.scans("held_out")
    padded_N = np.pad(scans_N88, ((0, 0), (1, 1), (1, 1)))
    box, moved = digits.BOX, [scans_N88]
    for dy, dx in digits.STEPS.values():
        beside_N88 = padded_N[:, 1 + dy : 1 + dy + box, 1 + dx : 1 + dx + box]
        moved.append((1 - SHIFT) * scans_N88 + SHIFT * beside_N88)
    scans_NP = np.concatenate(moved).reshape(-1, box * box).astype(np.float32)
    columns_N10 = np.eye(10, dtype=np.float32)[np.tile(labels_N, len(moved))] - np.float32(0.1)
    system_NN = _kernel(scans_NP, scans_NP)
    system_NN[np.diag_indices(len(system_NN))] += RIDGE
    return scans_NP, np.linalg.solve(system_NN, columns_N10)


def _kernel(a_NP: NDArray[np.float32], b_NP: NDArray[np.float32]) -> NDArray[np.float32]:
    squares = np.square(a_NP).sum(1)[:, None] + np.square(b_NP).sum(1)
    kernel: NDArray[np.float32] = np.exp(-WIDTH * (squares - 2 * a_NP @ b_NP.T))
    return kernel


def seen_digit(clip: NDArray[np.float32], direction: str) -> int:
    """The digit in the box that moves in `direction`."""
    box, path = digits.BOX, digits.trajectory(direction, len(clip))
    boxes = [frame[y : y + box, x : x + box] for frame, (y, x) in zip(clip, path, strict=True)]
    scans_NP, weights_N10 = _fitted()
    return int((_kernel(np.mean(boxes, axis=0).reshape(1, -1), scans_NP) @ weights_N10).argmax())


def seen_direction(clip: NDArray[np.float32]) -> str | None:
    """Where the ink's centre went from first to last frame; None without ink or motion."""
    ends = clip[[0, -1]]
    ink = np.clip(ends, BACKGROUND, None) - BACKGROUND
    weights = ink.sum((1, 2))
    if not weights.all():
        return None
    rows, columns = np.mgrid[: clip.shape[1], : clip.shape[2]]
    dy = np.diff((ink * rows).sum((1, 2)) / weights)[0]
    dx = np.diff((ink * columns).sum((1, 2)) / weights)[0]
    step = (0, np.sign(dx)) if abs(dx) > abs(dy) else (np.sign(dy), 0)
    return next((name for name, of_name in digits.STEPS.items() if of_name == step), None)


def read_samples(samples: Path, prompts: Sequence[str]) -> list[Reading]:
    """Readings of sample_0000.mp4 on, one per prompt. Raises ConfigError for any that has none."""
    readings = []
    for index, prompt in enumerate(prompts):
        path = samples / f"sample_{index:04d}.mp4"
        try:
            digit, direction = digits.parse_caption(prompt)
            clip = on_canvas(read_mp4(path))
            seen = seen_digit(clip, direction)
        except FileNotFoundError:
            raise ConfigError(f"there is no {path} for the prompt {prompt!r}") from None
        except digits.DigitsError as error:
            raise ConfigError(str(error)) from None
        except ValueError as error:
            text = str(error)
            raise ConfigError(text if str(path) in text else f"{path}: {text}") from None
        readings.append(Reading(prompt, digit, direction, seen, seen_direction(clip)))
    return readings


def summarize(readings: Sequence[Reading]) -> dict[str, Any]:
    """The scores as plain data."""
    count = len(readings)
    return {
        "videos": count,
        "digit_accuracy": sum(r.digit == r.seen_digit for r in readings) / count,
        "direction_accuracy": sum(r.direction == r.seen_direction for r in readings) / count,
        "wrong": [
            {"prompt": r.prompt, "seen_digit": r.seen_digit, "seen_direction": r.seen_direction}
            for r in readings
            if (r.digit, r.direction) != (r.seen_digit, r.seen_direction)
        ],
    }


def main(argv: Sequence[str]) -> int:
    parser = Parser("evaluate digits", "Scores of sampled videos of the demo's digits.")
    parser.add_argument("--samples", type=Path, required=True, help="folder of sample_0000.mp4 …")
    parser.add_argument("--prompts", type=Path, required=True, help="one prompt a line")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args(argv)
    scores = summarize(read_samples(args.samples, read_prompts(args.prompts)))
    if args.json:
        print(json.dumps({"schema": 1, "command": "evaluate digits", **scores}))
        return 0
    print(f"videos              {scores['videos']}")
    print(f"digit accuracy      {scores['digit_accuracy']:.2f}  (chance 0.10)")
    print(f"direction accuracy  {scores['direction_accuracy']:.2f}  (chance 0.25)")
    for wrong in scores["wrong"]:
        moved = wrong["seen_direction"] or "nowhere"
        print(f"  {wrong['prompt']}: seen {digits.WORDS[wrong['seen_digit']]} moving {moved}")
    return 0
