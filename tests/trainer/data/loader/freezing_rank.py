"""A rank as users have it, for the freeze that FFmpeg threads, fork and Python's collector make together.

In the process that trains: threaded PyAV decoders in reference cycles (what a callback or an evaluation
leaves behind), an allocation pattern that makes the collector run at any moment, and forks. Each round
a loader starts beside them, gives batches, and is forked with its workers in mid-clip; the children
collect garbage. Prints a line a round; `control` instead proves that a forked child of this process
does hang when the decoders are collected in it, which is what freezes PyTorch's own forked workers.

python -m tests.trainer.data.loader.freezing_rank MANIFEST CLIP ROUNDS|control
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from pathlib import Path

import av

LIMIT_S = 60.0  # of a child that only collects garbage


def leave_decoders(clip: str, how_many: int = 3) -> None:
    """Decoders with threads that only the cyclic collector can free, one of them closed."""
    for number in range(how_many):
        container = av.open(clip)
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "SLICE", 4
        frames = container.decode(stream)
        for _ in range(5):
            next(frames)
        if number == 1:
            container.close()
        cycle: list[object] = [container, stream, frames]
        cycle.append(cycle)


def forked(work, limit_s: float) -> bool:
    """Whether a forked child that does `work` ends by itself in time."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    ended = os.pidfd_open(child)
    try:
        in_time = bool(select.select([ended], [], [], limit_s)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        os.close(ended)
    return in_time


def control(clip: str) -> None:
    gc.disable()
    leave_decoders(clip)
    print("child ended" if forked(gc.collect, 10.0) else "child hung", flush=True)


def rounds(manifest: str, clip: str, count: int) -> None:
    from trainer.config.keys import DatasetConfig
    from trainer.data.loader.build_loader import build_loader
    from trainer.data.manifest.read import read_manifest
    from trainer.data.plan.buckets import Buckets
    from trainer.data.plan.data_plan import Cursor, DataPlan

    buckets = Buckets.parse({"16px": {8: (1.0, 4)}})
    for number in range(count):
        began = time.monotonic()
        # Frozen objects are not collected in children: only what comes after decides.
        gc.freeze()
        gc.disable()  # the decoders below live until a child or the end of the round collects them
        leave_decoders(clip)
        plan = DataPlan(read_manifest(Path(manifest)), buckets, number)
        loader = build_loader(plan, Cursor(), 0, 1, 2, DatasetConfig(clip_timeout_s=60))
        batches, bad = 0, 0
        for batch in loader:
            batches, bad = batches + 1, bad + len(batch.bad)
        # Now without them, as a rank that never touched PyAV: forks with workers running.
        gc.collect()
        again = iter(loader)
        next(again)
        alive = forked(gc.collect, LIMIT_S)
        batches += 1 + sum(1 for _ in again)
        loader.close()
        gc.enable()
        gc.unfreeze()
        print(number, batches, bad, alive, f"{time.monotonic() - began:.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[3] == "control":
        control(sys.argv[2])
    else:
        rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]))
