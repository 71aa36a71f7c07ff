"""Loaded by every Python of a node whose run belongs to a campaign: it makes each rank write down
what it trains on, and do the harm that a rank can only do to itself.

$FAULTS_DIR/samples/RANK.jsonl has a line per step that the rank has done. An order is a file
$FAULTS_DIR/orders/RANK with the name of one of the harms; it is taken at the begin of a step.
$FAULTS_PACE_S is slept in each step, so that a small model has steps of a useful length.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("FAULTS_DIR", "")
KEPT = "always-"  # an order that begins with it is not taken away: it holds for each attempt


class Kept:
    """Batches, of which the last one given out is kept."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self.last = batches, None

    def __iter__(self) -> Kept:
        return self

    def __next__(self) -> Any:
        self.last = next(self._batches)
        return self.last


def digest(batch: Any) -> str:
    found = hashlib.sha256(repr(batch.text).encode())
    for name in ("video", "fps", "height", "width", "num_frames"):
        found.update(getattr(batch, name).numpy().tobytes())
    return found.hexdigest()[:16]


def install() -> None:
    """In a process that was forked from the starter, where the trainer is imported."""
    loop = sys.modules.get("trainer.loop")
    if loop is None or hasattr(loop, "plain_step"):
        return
    plain = loop.plain_step = loop.step  # type: ignore[attr-defined]

    def step(run: Any, batches: Iterator[Any]) -> bool:
        time.sleep(float(os.environ.get("FAULTS_PACE_S", "0")))
        obey(run)
        kept = Kept(batches)
        stopped: bool = plain(run, kept)
        if kept.last is not None:
            note(run, kept.last)
        return stopped

    loop.step = step  # type: ignore[attr-defined]


def note(run: Any, batch: Any) -> None:
    epoch, index = batch.microbatch
    line = {
        "attempt": int(os.environ.get("CLUSTERCTL_ATTEMPT", "1")),
        "rank": int(os.environ["RANK"]),
        "step": run.step,
        "epoch": epoch,
        "microbatch": index,
        "rows": [int(row) for row in batch.rows],
        "digest": digest(batch),
        "code": getattr(sys.modules["trainer.step"], "CAMPAIGN", ""),  # which version of it
    }
    path = Path(FOLDER) / "samples" / f"{line['rank']}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def obey(run: Any) -> None:
    path = Path(FOLDER) / "orders" / os.environ["RANK"]
    try:
        name = path.read_text()
    except OSError:
        return
    if not name.startswith(KEPT):
        path.unlink()
    HARMS[name.removeprefix(KEPT)](run)


def raise_error(run: Any) -> None:
    raise RuntimeError("planned by the campaign")


def run_out_of_gpu_memory(run: Any) -> None:
    import torch

    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
    )


def spin(run: Any) -> None:
    while True:
        pass


def hold_gil(run: Any) -> None:
    ctypes.PyDLL(None).sleep(100_000)  # PyDLL keeps the lock during the call


def call_barrier(run: Any) -> None:
    """A collective that the other ranks do not call."""
    import torch.distributed

    torch.distributed.barrier()


def fill_memory(run: Any) -> None:
    pieces = []
    while True:
        pieces.append(os.urandom(1 << 20) * 16)


def spoil_loss(run: Any) -> None:
    """The loss of the next microbatch of this rank is not a number."""
    kind = type(run.parts.flow)
    plain = kind.training_losses

    def losses(*args: Any, **options: Any) -> Any:
        kind.training_losses = plain
        return plain(*args, **options) * float("nan")

    kind.training_losses = losses


def flood(run: Any) -> None:
    """Print 20 MB in the background."""
    line = b"flood " * 20_000 + b"\n"

    def work() -> None:
        for _ in range(170):
            os.write(1, line)

    threading.Thread(target=work, daemon=True).start()


HARMS = {
    "error": raise_error,
    "cuda-oom": run_out_of_gpu_memory,
    "spin": spin,
    "gil": hold_gil,
    "barrier": call_barrier,
    "memory": fill_memory,
    "nan-loss": spoil_loss,
    "flood": flood,
}

if FOLDER:
    os.register_at_fork(after_in_child=install)
