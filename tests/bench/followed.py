"""What it costs a run that its checkpoints are sampled on another node while it trains.

python -m tests.bench.followed [--pairs 8] [--seconds 40]. Needs root.

A real training on one core, which also has the sshd of its node (a namespace of this machine); the
server and the sampler have another core, as on another node, and get the weights over ssh. In one
half of each pair the server follows the training, in the other a copy that is sealed whenever the
training seals, so that the other core does the same work: cores share caches and memory. Which
half comes first alternates; what is left of the other core is taken by a process of the idle class.

Seconds are those of whole steps, saves included; the ratio of a pair is that of their means, and
that of the medians beside it. CPU seconds are those of the training's node, without the training:
its ssh sessions and what they run. Exit code 1 where the median of the ratios is 1 % or more.

Two shared cores, 66 ms a step, a checkpoint every 7 s: 1.04 (1.00 to 1.11 in 5 pairs of 30 s), and
1.1 % of a core on the training's node. Pairs differ by more than the limit on that machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.bench import tiny
from tests.lab import Lab, why_not
from trainer.runlog.telemetry import FILE, StepRecord, Tail

LIMIT = 0.01
WAIT_S = 600.0
WARM_UP = 20  # steps
SAVES = 100  # steps between two checkpoints; one of the demo takes 8 s or so here


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.followed")
    parser.add_argument("--pairs", type=int, default=8, help="default: 8")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a half (default: 40)")
    given = tiny.parse(parser, pairs=1, seconds=2.0)
    cores = sorted(os.sched_getaffinity(0))
    reason = why_not() or (None if len(cores) > 1 else "needs two cores")
    if reason is not None:
        print(f"not measured: followed: {reason}")
        return 3
    with tempfile.TemporaryDirectory(prefix="bench-followed-") as name:
        folder = Path(name)
        with Lab(2, folder / "lab", shared=[folder]) as lab:
            for node, core in zip(lab.nodes, cores, strict=False):
                for pid in node.processes():
                    os.sched_setaffinity(pid, {core})
            os.sched_setaffinity(0, {cores[1]})
            with _idle_load(), _training(folder, cores[0], 10 if given.tiny else SAVES) as run:
                return _measure(run, lab, folder, given)


def _measure(run: Path, lab: Lab, folder: Path, given: argparse.Namespace) -> int:
    steps = _Steps(run)
    steps.wait_for(WARM_UP)
    means, medians, costs = [], [], []
    for pair in range(given.pairs):
        found: dict[bool, list[StepRecord]] = {}
        for follows in (pair % 2 == 0, pair % 2 == 1):
            before_s = _cpu_s(lab)
            copy = None if follows else _Copy(run, folder / "copy" / f"{pair:03d}-alone")
            with _server(
                run if copy is None else copy.run, copy is None, lab, folder, steps
            ) as said:
                found[follows] = steps.for_a_while(given.seconds, said, copy)
            if follows:
                costs.append((_cpu_s(lab) - before_s) / sum(one.step_s for one in found[True]))
        times = {key: [one.step_s for one in half] for key, half in found.items()}
        means.append(statistics.fmean(times[True]) / statistics.fmean(times[False]))
        medians.append(statistics.median(times[True]) / statistics.median(times[False]))
        counts = f"{len(times[True])} and {len(times[False])} steps"
        print(f"pair {pair + 1}: {means[-1]:.4f}, medians {medians[-1]:.4f}, {counts}", flush=True)
    ratio = statistics.median(means)
    print(f"load {os.getloadavg()[0]:.1f}, {1000 * statistics.median(times[False]):.0f} ms a step")
    print(f"followed / copied, means:   {ratio:.4f} ({min(means):.4f} to {max(means):.4f})")
    print(f"followed / copied, medians: {statistics.median(medians):.4f}")
    print(f"CPU of the training's node for the server: {statistics.median(costs):.2%} of a core")
    return 1 if ratio >= 1 + LIMIT and not given.tiny else 0


class _Steps:
    """Those of a run, as they are written."""

    def __init__(self, run: Path) -> None:
        self._tail = Tail(run / FILE)

    def new(self) -> list[StepRecord]:
        time.sleep(0.1)
        return [one for one in self._tail.poll() if isinstance(one, StepRecord)]

    def wait_for(self, step: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while not any(one.step >= step for one in self.new()):
            if time.monotonic() > deadline:
                raise SystemExit("error: the training makes no steps")

    def for_a_while(self, seconds: float, said: Path, copy: _Copy | None) -> list[StepRecord]:
        """Steps that end in this time, and until this file holds a finished checkpoint."""
        self.new()
        begun, found = time.monotonic(), []
        while time.monotonic() < begun + seconds or len(found) < 3 or not _has_finished(said):
            found += self.new()
            if copy is not None:
                copy.follow()
            if time.monotonic() > begun + WAIT_S:
                raise SystemExit("error: nothing was sampled")
        return found


class _Copy:
    """A run of its own that gets each new checkpoint of a training, by this core."""

    def __init__(self, original: Path, run: Path) -> None:
        self._original, self.run = original, run
        run.mkdir(parents=True)
        shutil.copy(original / "config.json", run)
        shutil.copytree(original / "text_encoder", run / "text_encoder")
        self._seen: set[Path] = set()

    def follow(self) -> None:
        for checkpoint in sorted(set(self._original.glob("epoch*")) - self._seen):
            self._seen.add(checkpoint)
            part = self.run / f".tmp-{checkpoint.name}"
            try:
                shutil.copytree(checkpoint, part)
            except (OSError, shutil.Error):
                continue  # the training has deleted it
            part.rename(self.run / checkpoint.name)


def _has_finished(said: Path) -> bool:
    whole = said.read_text().rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in whole]
    for one in events:
        if one["event"] in ("failed", "node-down", "unreadable"):
            raise SystemExit(f"error: {one}")
    return any(one["event"] == "finished" for one in events)


@contextmanager
def _server(run: Path, over_ssh: bool, lab: Lab, folder: Path, steps: _Steps) -> Iterator[Path]:
    """Follows a run; the file has what it says. Begins when its sampler is ready."""
    said = folder / "served.jsonl"
    prompts = folder / "prompts.txt"
    prompts.write_text("digit three moving left\n")
    place = f"{lab.names[0]}:{run}" if over_ssh else str(run)
    command = [sys.executable, "-m", "clusterctl", "serve", place, "--json", "-v"]
    command += ["--nodes", str(lab.hostfile), "--only", lab.names[1], "--gpus", "none"]
    command += ["--compute-only", "--prompts", str(prompts), "--copies", str(folder / "copies")]
    with said.open("w") as out, subprocess.Popen(command, stdout=out, cwd=folder) as server:
        try:
            deadline = time.monotonic() + WAIT_S
            while '"ready"' not in said.read_text():
                steps.new()
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("error: the server is not ready")
            yield said
        finally:
            server.terminate()
            server.wait(60)


@contextmanager
def _training(folder: Path, core: int, saves: int) -> Iterator[Path]:
    run, digits = folder / "001-followed", folder / "digits"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    make = [sys.executable, "-m", "trainer.data.digits", "--out", str(digits)]
    make += ["--clips", "200", "--seed", "1"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, env=environment)
    options = {
        "run-dir": run,
        "dataset.data-path": digits / "digits.csv",
        "max-steps": 10**6,
        "epochs": 10**6,
        "ckpt-every": saves,
        "keep-checkpoints": 3,
    }
    command = [sys.executable, "-m", "trainer.train", "demo"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with (folder / "train.log").open("w") as log:
        training = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command], stdout=log, stderr=log, env=environment
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while not (run / FILE).exists():
                if training.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"error: {(folder / 'train.log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield run
        finally:
            training.kill()
            training.wait()


@contextmanager
def _idle_load() -> Iterator[None]:
    """A process that takes what others leave of this core."""
    code = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    load = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        load.kill()
        load.wait()


def _cpu_s(lab: Lab) -> float:
    """Of all processes of the first node, those that have ended too."""
    found = 0.0
    for pid in lab.nodes[0].processes():
        try:
            found += sum(psutil.Process(pid).cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
