"""Scores of sampled videos, read back from their files.

    python -m trainer.evaluate digits --samples samples --prompts prompts.txt --json

`digits`: does each clip show the digit its prompt names, and does it move the way the prompt says?
The digit's box is cut out along the named direction's path, averaged over the frames, and compared
with handwritten scans no training clip was made from (5 nearest neighbours vote). The direction is
where the ink's centre of mass went. Chance is 0.10 and 0.25; real clips score 0.91 (eights
are often read as ones) and 1.00.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.command_line import Parser
from trainer.data import digits
from trainer.data.video.mp4 import read_mp4
from trainer.errors import ConfigError
from trainer.infer.prompts import read_prompts

# T frames · N scans · canvas and box in logical pixels, see trainer.data.digits
NEIGHBOURS = 5
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


def seen_digit(clip: NDArray[np.float32], direction: str) -> int:
    """The digit in the box that moves in `direction`, by vote of the nearest held-out scans."""
    scans_N88, labels_N = digits.scans("held_out")
    box, path = digits.BOX, digits.trajectory(direction, len(clip))
    boxes = [frame[y : y + box, x : x + box] for frame, (y, x) in zip(clip, path, strict=True)]
    distances_N = np.square(scans_N88 - np.mean(boxes, axis=0)).sum((1, 2))
    votes = np.bincount(labels_N[distances_N.argsort(kind="stable")[:NEIGHBOURS]], minlength=10)
    return int(votes.argmax())


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
