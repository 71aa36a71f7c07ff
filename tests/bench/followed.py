"""What it costs a run that its checkpoints are sampled on another node while it trains.

python -m tests.bench.followed [--pairs 8] [--seconds 40] [--saves 500]. Needs root.

A real training on one core, which also has the sshd of its node (a namespace of this machine); the
server and the sampler have another core, as on another node, and get the weights over ssh. Cores
share caches and memory, which nodes do not, so the sampler makes one frame in one step, and a
process of the idle class takes what is left of its core. One half of each pair has the server, the
other has none. Which half comes first alternates.

Seconds are those of whole steps, saves included; the ratio of a pair is that of their means. Beside
it, to see where time goes: how long the training's main thread stood ready and did not get its core
(run delay of /proc/PID/schedstat), as a share of the time; and the CPU seconds of its node without
the training, which are those of the ssh sessions and what they run. Exit code 1 where the median of
the ratios is 1 % or more.

Two shared virtual cores, 64 ms a step, a checkpoint every 35 s, 8 pairs of 36 s: 1.018 (0.97 to
1.08), not below the limit. The training waits 0.38 % of the time longer (0.12 to 1.00 %) and its
node works 0.47 % of a core for the server; what makes up the rest is not known.
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
from contextlib import contextmanager, nullcontext, suppress
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
    parser.add_argument("--pairs", type=int, default=8, help="default: 8")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a half (default: 40)")
    parser.add_argument("--saves", type=int, default=500, help="steps to a save (default: 500)")
    given = tiny.parse(parser, pairs=1, seconds=2.0, saves=100)
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


def _measure(run: Path, pid: int, lab: Lab, folder: Path, given: argparse.Namespace) -> int:
    steps = _Steps(run)
    steps.wait_for(WARM_UP)
    ratios, waits, costs = [], [], []
    for pair in range(given.pairs):
        mean_s: dict[bool, float] = {}
        waited: dict[bool, float] = {}
        for follows in (pair % 2 == 0, pair % 2 == 1):
            with _server(run, lab, folder, steps) if follows else nullcontext() as said:
                begun, waited_s, used_s = time.monotonic(), _waited_s(pid), _cpu_s(lab)
                found = steps.for_a_while(given.seconds, said)
                took_s = time.monotonic() - begun
            mean_s[follows] = statistics.fmean(one.step_s for one in found)
            waited[follows] = (_waited_s(pid) - waited_s) / took_s
            if follows:
                costs.append((_cpu_s(lab) - used_s) / took_s)
        ratios.append(mean_s[True] / mean_s[False])
        waits.append(waited[True] - waited[False])
        print(
            f"pair {pair + 1}: {1000 * mean_s[True]:.1f} and {1000 * mean_s[False]:.1f} ms a step "
            f"({ratios[-1]:.4f}), waited {waited[True]:.2%} and {waited[False]:.2%}",
            flush=True,
        )
    print(f"load {os.getloadavg()[0]:.1f}, followed / alone or the difference, median of pairs:")
    ratio = statistics.median(ratios)
    print(f"step time:  {ratio:.4f} ({min(ratios):.4f} to {max(ratios):.4f})")
    wait = f"{statistics.median(waits):.2%} of the time ({min(waits):.2%} to {max(waits):.2%})"
    print(f"waiting for its core: {wait}")
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

    def for_a_while(self, seconds: float, said: Path | None) -> list[StepRecord]:
        """Steps that end in this time, and until a file, if any, holds a finished checkpoint."""
        self.new()
        begun, found = time.monotonic(), []
        while (
            time.monotonic() < begun + seconds
            or len(found) < 3
            or (said is not None and not _has_finished(said))
        ):
            found += self.new()
            if time.monotonic() > begun + WAIT_S:
                raise SystemExit("error: nothing was sampled")
        return found


def _has_finished(said: Path) -> bool:
    whole = said.read_text().rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in whole]
    for one in events:
        if one["event"] in ("failed", "node-down", "unreadable"):
            raise SystemExit(f"error: {one}")
    return any(one["event"] == "finished" for one in events)


@contextmanager
def _server(run: Path, lab: Lab, folder: Path, steps: _Steps) -> Iterator[Path]:
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
