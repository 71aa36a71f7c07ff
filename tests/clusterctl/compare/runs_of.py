"""Run directories for comparisons: two buckets, losses that fall, noise that a seed gives."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

from trainer.runlog.telemetry import Event, Record, StepRecord, encode

BEGAN = 1_795_269_600.0
BUCKETS = {"256px 16f 1.00": (0.4, 0.2), "512px 1f 1.00": (0.9, 0.5)}  # seconds and loss of a step


def steps(
    count: int,
    seed: int,
    *,
    first: int = 1,
    order: int = 0,  # seed of the order of buckets
    loss: Callable[[int, float], float] = lambda step, value: value,
    slower: float = 1.0,
    clips: int = 32,
    world: int = 8,
) -> list[StepRecord]:
    """`loss` changes the loss of a step."""
    noise, mix = random.Random(seed), random.Random(order)
    made, at_s = [], BEGAN
    for step in range(first, first + count):
        bucket = mix.choice(list(BUCKETS))
        usual_s, level = BUCKETS[bucket]
        step_s = usual_s * slower * (1 + 0.05 * noise.random())
        at_s += step_s
        value = loss(step, level + math.exp(-step / 100) + 0.05 * noise.gauss(0, 1))
        seconds = {"data": 0.01 * step_s, "forward": 0.3 * step_s, "backward": 0.6 * step_s}
        made.append(
            StepRecord(
                step,
                count,
                0,
                clips,
                100 * clips,
                value,
                1.0 + noise.random(),
                1e-4,
                step_s,
                seconds,
                None,
                0.02,
                0,
                bucket,
                1e15,
                1 << 30,
                None,
                world,
                at_s,
            )
        )
    return made


def write(run_dir: Path, records: list[StepRecord], *, device: str = "", end: str = "done") -> Path:
    """The directory of a run without a launcher."""
    run_dir.mkdir(parents=True, exist_ok=True)
    data = {"world": records[0].world, **({"device": device} if device else {})}
    begun = Event("start", "x", data, records[0].step - 1, BEGAN)
    every: list[Record] = [begun, *records]
    every += [Event(end, "it is", {}, records[-1].step, records[-1].time_s)] if end else []
    (run_dir / "telemetry.jsonl").write_text("".join(f"{encode(one)}\n" for one in every))
    return run_dir


def write_config(run_dir: Path, **config: object) -> None:
    about = {"config": config, "commit": "0123456789abcdef", "python": "3.11", "environment": {}}
    (run_dir / "config.json").write_text(json.dumps(about))
