"""Saves that are killed at random moments: `python -m tests.trainer.checkpoint.killed_saves FOLDER TRIALS SEED`.

Each trial is a fork of this process (torch is imported once) that does nothing but save; it is killed
with SIGKILL, and what it left is looked at. The next trial goes on in the same folder.
"""

from __future__ import annotations

import functools
import json
import os
import random
import select
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from tests.trainer.checkpoint.saving import Rank, Together
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saver
from trainer.config.load import Config
from trainer.weights import checkpoints
from trainer.weights.load import read_weights

BYTES = 4_000_000  # of the optimizer's state; the weights are half as many
_LIMIT_S = 60


def save_for_ever(folder: Path, step: int, told: int) -> None:
    """In the fork: one save after another, the number of each whole one into the pipe."""
    engine = Rank(Together(1), 0, BYTES)
    saver = Saver(folder, engine, Config(keep_checkpoints=2))  # type: ignore[arg-type]
    while True:
        step += 1
        model = {"w": torch.full((BYTES // 8,), float(step))}
        engine.weights = functools.partial(dict, model)
        documents = functools.partial(dict, {"a.json": step})
        saver.save(0, step, engine.average(), documents)
        for saved in saver.finish():
            os.write(told, f"{saved.step}\n".encode())


def left_behind(folder: Path) -> str:
    """How far the save was that the kill met."""
    parts = list(folder.glob(".tmp-epoch*"))
    if list(folder.glob(".tmp-old-*")):
        return "taking the place of one of the same name"
    if not parts:
        return "between two saves, or deleting the oldest"
    for name in ("manifest.json", "a.json", "ema", "model", "optimizer"):
        if (parts[0] / name).exists():
            return {"optimizer": "this rank's part", "model": "the weights", "ema": "the average"}.get(name, name)  # fmt: skip
    return "making folders"


def trial(folder: Path, last: int, wait_s: float) -> tuple[int, str]:
    """Kill one; returns the newest step that is whole, and where the kill met it."""
    reads, told = os.pipe()  # keeps 64 KB, thousands of numbers: read at the end
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            save_for_ever(folder, last, told)
        finally:
            os._exit(1)
    os.close(told)
    try:
        if not select.select([reads], [], [], _LIMIT_S)[0]:
            raise AssertionError("no save within the limit")
        threading.Event().wait(wait_s)  # the moment
    finally:
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == -signal.SIGKILL, ended
    with os.fdopen(reads) as file:
        done = max(int(line) for line in file)
    where = left_behind(folder)
    found = checkpoints.find(folder)
    checkpoint.verify(found)
    step = int(found.name.rpartition("step")[2])
    assert step >= done, f"{found} although {done} was whole"
    assert read_weights(found / "model")["w"].unique().tolist() == [float(step)]
    assert json.loads((found / "a.json").read_text()) == step
    return step, where


def main(folder: Path, trials: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw, last, met = random.Random(seed), 0, dict[str, int]()
    began, span_s = time.monotonic(), 0.2
    for _ in range(trials):
        before = last
        start = time.monotonic()
        last, where = trial(folder, last, draw.uniform(0, span_s))
        # As long as two saves take here and now: so every moment of one is as likely.
        span_s = 2 * (time.monotonic() - start) / max(1, last - before)
        met[where] = met.get(where, 0) + 1
    took = time.monotonic() - began
    print(json.dumps({"trials": trials, "whole": trials, "met": met, "seconds": round(took, 1)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
