"""Where the demo's time goes, and what the cluster way costs against one plain process.

`python -m tests.bench.demo [--steps 60]` runs `clusterctl demo --steps N` (two ssh nodes, ColossalAI,
one process each) and the same trainer as one plain process with the same data, one thread each.
The ratio is clips per CPU second: of the two ranks together against the one. CPU time is what carries
over between machines; wall time depends on what else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import tiny
from trainer.runlog.telemetry import PHASES, StepRecord, read

WARM_UP = 10  # first steps at most: allocators, thread pools, decoded clips not yet cached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = tiny.parse(parser, steps=2).steps
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder)
        wall_s, cpu_s, out = _timed(
            "-m", "clusterctl", "demo", "--json", "--outputs", outputs, "--steps", steps
        )
        if not out:
            sys.exit("clusterctl demo printed no result")
        demo = json.loads(out.splitlines()[-1])
        print(f"demo, {steps} steps: {wall_s:.1f} s wall, {cpu_s:.1f} s CPU")
        print(f"  training incl. start of the ranks: {demo['train_seconds']:.1f} s")
        pair = _show("two nodes, ZeRO-2 over gloo", Path(demo["run_dir"]))

        alone_dir = outputs / "alone"
        _timed(
            "-m", "trainer.train", "demo", "--run-dir", alone_dir, "--max-steps", steps,
            "--data-path", outputs / "demo-digits" / "digits.csv", "--num-workers", 0,
        )  # fmt: skip
        alone = _show("one plain process", alone_dir)
    # Each rank has one thread, so its step's wall time bounds its CPU time.
    print(f"clips per rank second, two nodes against one process: {pair / alone:.2f}x")


def _timed(*words: object) -> tuple[float, float, str]:
    """Wall and CPU seconds (with children) of a python run, and its stdout."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    child = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        out, _ = child.communicate()
    except BaseException:
        child.send_signal(signal.SIGINT)  # not SIGKILL: it ends its nodes and deletes their keys
        try:
            child.wait(30)
        finally:
            child.kill()
        raise
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode not in (0, 1):  # 1: a score too low, as few steps must have
        sys.exit(f"{' '.join(map(str, words))} ended with {child.returncode}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begun, cpu_s, out


def _show(title: str, run_dir: Path) -> float:
    """Print the medians of a run's steps; returns clips per rank and second."""
    steps = [one for one in read(run_dir) if isinstance(one, StepRecord)]
    steps = steps[min(WARM_UP, len(steps) // 2) :]
    step_s = statistics.median(one.step_s for one in steps)
    split = "  ".join(
        f"{name} {1000 * statistics.median(one.seconds[name] for one in steps):.0f}"
        for name in PHASES
        if name != "checkpoint"
    )
    clips = steps[0].samples
    print(f"{title}: {1000 * step_s:.0f} ms a step of {clips} clips ({split} ms)")
    return clips / steps[0].world / step_s


if __name__ == "__main__":
    main()
