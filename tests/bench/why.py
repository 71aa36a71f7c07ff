"""What `clusterctl why` takes: `python -m tests.bench.why [--ranks 192] [--megabytes 5]`.

Logs of steps and NCCL's information, which end with the loss of a peer. In the worst case the error
of one rank stands before a flood that fills the rest of its log, so every log is searched. The peer
is `grep -l` for tracebacks, which reads all bytes and judges nothing; the limit is 10 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import tiny
from tests.clusterctl.runs.attempts_of import Attempts

LIMIT_S = 10.0
LINE = "n1:3468:3905 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0 step {}\n"
PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:30130\n"
OWN = "Traceback (most recent call last):\nValueError: clip 7 has no frames\n"
FLOOD = "[W1123 09:14:05.100 ProcessGroupGloo.cpp:88] Warning: a pair is still open\n"


def write(outputs: Path, ranks: int, size: int, *, is_hidden: bool) -> int:
    """A run directory; returns the rank whose error is the first cause."""
    run = Attempts()
    run.attempt(world_size=ranks)
    run.train(100)
    run.end(1, "a rank ended with exit code 1")
    folder = run.write(outputs / "001-x") / "ranks"
    folder.mkdir()
    steps = "".join(LINE.format(step) for step in range(1000))
    text = (steps * (size // len(steps) + 1))[:size].rpartition("\n")[0] + "\n"
    first = ranks * 2 // 3
    for rank in range(ranks):
        own = OWN + FLOOD * ((1 << 20) // len(FLOOD)) if is_hidden else OWN
        (folder / f"{rank}.log").write_text(text + (own if rank == first else PEER))
    return first


def timed(words: list[str], folder: Path) -> tuple[float, float, str]:
    """(seconds, seconds of processor time, output)."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    after = os.times()
    used_s = sum(after[2:4]) - sum(before[2:4])
    return time.perf_counter() - began, used_s, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=192)
    parser.add_argument("--megabytes", type=float, default=5.0)
    given = tiny.parse(parser, ranks=4, megabytes=0.1)
    is_good = True
    print(f"{given.ranks} logs of {given.megabytes:g} MB, load {os.getloadavg()[0]:.1f}")
    for case, is_hidden in (("error at the end", False), ("error before a flood", True)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            outputs = folder / "outputs"
            first = write(outputs, given.ranks, int(given.megabytes * 1e6), is_hidden=is_hidden)
            why = [sys.executable, "-m", "clusterctl", "why"]
            took_s, cpu_s, said = timed(why, folder)
            grep = ["grep", "-rl", "Traceback (most recent call last)", "outputs"]
            peer_s, peer_cpu_s, _ = timed(grep, folder)
        is_right = f"on rank {first}" in said and took_s <= LIMIT_S
        is_good = is_good and is_right
        print(f"{case}: why {took_s:.1f} s ({cpu_s:.1f} s cpu), grep {peer_s:.1f} s ({peer_cpu_s:.1f} s cpu), {'right' if is_right else 'WRONG'}")  # fmt: skip
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
