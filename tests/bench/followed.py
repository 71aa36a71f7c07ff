"""What it costs a run that its checkpoints are sampled on another node while it trains.

python -m tests.bench.followed [--pairs 30] [--saves 250]. Needs root.

A real training on one core, which also has the sshd of its node (a namespace of this machine); the
server and the sampler have another core, as on another node, and get the weights over ssh. Cores
share caches and memory, which nodes do not, so the sampler makes one frame in one step, and a
process of the idle class takes what is left of its core. The server takes every second checkpoint:
the steps from one save to the next are compared with those from that save to the one after it, so
that what else goes on in the machine is nearly the same for both.

Seconds are those of whole steps, saves included; the ratio of a pair is that of their means. Beside
it, to see where time goes: how long the training's main thread stood ready and did not get its core
(run delay of /proc/PID/schedstat), as a share of the time; and the CPU seconds of its node without
the training, which are those of the ssh sessions and what they run: those for a checkpoint, and
those of looking for new ones. Exit code 1 where the median of the ratios is 1 % or more.

Two shared virtual cores, 70 ms a step, a checkpoint every 17 s, 40 pairs: median 0.996, mean 0.996
(standard error 0.005), the training waits 0.24 % of the time longer (0.04 %), 0.065 CPU s of its
node a checkpoint. Halves with and without a server that are 20 to 40 s apart cannot show this: with
nothing to follow their ratios were 0.83 to 1.11, and so was the CPU time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import tiny
from tests.lab import Lab, why_not
from trainer.runlog.telemetry import FILE, StepRecord, Tail

LIMIT = 0.01
WAIT_S = 600.0
WARM_UP = 20  # steps


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.followed")
    parser.add_argument("--pairs", type=int, default=30, help="default: 30")
    parser.add_argument("--saves", type=int, default=250, help="steps to a save (default: 250)")
    given = tiny.parse(parser, pairs=1, saves=200)
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
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(pid, {core})
            os.sched_setaffinity(0, {cores[1]})
            with _idle_load(), _training(folder, cores[0], given.saves) as run:
                return _measure(*run, lab, folder, given)


@dataclass(frozen=True)
class _Interval:
    """From one save to the next."""

    step_s: float
    waited: float  # of the time
    node_s: float  # CPU seconds of the node without the training
    took_s: float


def _measure(run: Path, pid: int, lab: Lab, folder: Path, given: argparse.Namespace) -> int:
    steps = _Steps(run)
    steps.until(WARM_UP)
    ratios, waits, costs, looks = [], [], [], []
    with _server(run, lab, folder, 2 * given.saves, steps) as said:
        begin = _next(steps.last, 2 * given.saves)
        steps.until(begin)
        for pair in range(given.pairs):
            begin += given.saves
            followed = _until(begin, steps, pid, lab)
            if begin - given.saves not in _finished(said):
                raise SystemExit(
                    "error: a checkpoint was not sampled by the next one: raise --saves"
                )
            begin += given.saves
            alone = _until(begin, steps, pid, lab)
            ratios.append(followed.step_s / alone.step_s)
            waits.append(followed.waited - alone.waited)
            costs.append(followed.node_s - alone.node_s)
            looks.append(alone.node_s / alone.took_s)
            print(
                f"pair {pair + 1}: {1000 * followed.step_s:.1f} and {1000 * alone.step_s:.1f} ms a "
                f"step ({ratios[-1]:.4f}), waited {followed.waited:.2%} and {alone.waited:.2%}",
                flush=True,
            )
    print(
        f"load {os.getloadavg()[0]:.1f}, a checkpoint every {alone.took_s:.0f} s, "
        f"with / without one to follow or the difference, {given.pairs} pairs:"
    )
    ratio = statistics.median(ratios)
    print(f"step time: median {ratio:.4f}, {_mean(ratios, '.4f')}")
    print(f"waiting for its core: median {statistics.median(waits):.2%}, {_mean(waits, '.2%')}")
    print(
        f"CPU of the training's node: {statistics.median(costs):.3f} s a checkpoint, and "
        f"{statistics.median(looks):.2%} of a core to look for new ones"
    )
    return 1 if ratio >= 1 + LIMIT and not given.tiny else 0


def _mean(values: list[float], form: str) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"mean {statistics.fmean(values):{form}} (standard error {error:{form}})"


def _next(step: int, of: int) -> int:
    """The next multiple after a step."""
    return (step // of + 1) * of


def _until(step: int, steps: _Steps, pid: int, lab: Lab) -> _Interval:
    begun, waited_s, used_s = time.monotonic(), _waited_s(pid), _cpu_s(lab)
    found = steps.until(step)
    took_s = time.monotonic() - begun
    return _Interval(
        statistics.fmean(one.step_s for one in found),
        (_waited_s(pid) - waited_s) / took_s,
        _cpu_s(lab) - used_s,
        took_s,
    )


class _Steps:
    """Those of a run, as they are written."""

    def __init__(self, run: Path) -> None:
        self._tail = Tail(run / FILE)
        self._new: list[StepRecord] = []
        self.last = 0

    def read(self) -> None:
        time.sleep(0.1)
        self._new += [one for one in self._tail.poll() if isinstance(one, StepRecord)]
        self.last = self._new[-1].step if self._new else self.last

    def until(self, step: int) -> list[StepRecord]:
        """The steps up to this one that no earlier call gave."""
        deadline = time.monotonic() + WAIT_S
        while self.last < step:
            if time.monotonic() > deadline:
                raise SystemExit("error: the training makes no steps")
            self.read()
        found = [one for one in self._new if one.step <= step]
        self._new = self._new[len(found) :]
        return found


def _finished(said: Path) -> set[int]:
    """Steps of the checkpoints of which all videos are made."""
    whole = said.read_text().rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in whole]
    for one in events:
        if one["event"] in ("failed", "node-down", "unreadable"):
            raise SystemExit(f"error: {one}")
    return {one["step"] for one in events if one["event"] == "finished"}


@contextmanager
def _server(run: Path, lab: Lab, folder: Path, every: int, steps: _Steps) -> Iterator[Path]:
    """Follows a run; the file has what it says. Begins when its sampler is ready."""
    said = folder / "served.jsonl"
    prompts = folder / "prompts.txt"
    prompts.write_text("digit three moving left\n")
    presets = folder / "presets.toml"
    presets.write_text("[small]\nnum_frames = 1\nimage_size = [16, 16]\nnum_sampling_steps = 1\n")
    place = f"{lab.names[0]}:{run}"
    command = [sys.executable, "-m", "clusterctl", "serve", place, "--json", "-v"]
    command += ["--presets", str(presets), "--preset", "small"]
    command += ["--nodes", str(lab.hostfile), "--only", lab.names[1], "--gpus", "none"]
    command += [
        "--every",
        str(every),
        "--compute-only",
        "--prompts",
        str(prompts),
        "--copies",
        str(folder / "copies"),
    ]
    with said.open("w") as out, subprocess.Popen(command, stdout=out, cwd=folder) as server:
        try:
            deadline = time.monotonic() + WAIT_S
            while '"ready"' not in said.read_text():
                steps.read()
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("error: the server is not ready")
            yield said
        finally:
            server.terminate()
            server.wait(60)


@contextmanager
def _training(folder: Path, core: int, saves: int) -> Iterator[tuple[Path, int]]:
    """A run and the process that trains it."""
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
            yield run, training.pid
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


def _waited_s(pid: int) -> float:
    """How long the main thread was ready to run and did not."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


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
