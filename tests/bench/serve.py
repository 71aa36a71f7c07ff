"""From the seal of a checkpoint to its first video, with a warm sampler.

python -m tests.bench.serve [RUN] [--times 5]

Copies a run, by default a small one that is made here, and seals its newest checkpoint again and
again under new names, while a real server on this machine follows. Seconds are those of the wall
from the seal to the first step of sampling; CPU seconds are those of the sampler in that time, which
a busy machine does not change. Exit code 1 where the median is above 10 s.

The demo's run, 2 cores, load 25, in the idle scheduling class: 2.5 s in the median and 2.8 s at most,
of which the sampler computes for 0.2 s. The small run half an hour later: 4.7 s, once 26 s that a
process waited for a core, with 0.1 s of the sampler. A server that only waits takes 0.2 % of a core.
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
from pathlib import Path

from tests.bench import tiny

LIMIT_S = 10.0
WAIT_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.serve")
    parser.add_argument("run", type=Path, nargs="?", help="a run directory (default: a small one)")
    parser.add_argument("--times", type=int, default=5, help="checkpoints (default: 5)")
    given = tiny.parse(parser, times=1)
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as folder:
        run = given.run or _small(Path(folder) / "small")
        newest = max(run.glob("epoch*-global_step*"), key=lambda path: path.stat().st_mtime)
        copy = Path(folder) / "001-followed"
        copy.mkdir()
        shutil.copy(run / "config.json", copy)
        if (run / "text_encoder").is_dir():
            shutil.copytree(run / "text_encoder", copy / "text_encoder")
        (copy / "prompts.txt").write_text("digit three moving left\n")
        command = [sys.executable, "-m", "clusterctl", "serve", str(copy), "--json", "-v"]
        command += ["--compute-only", "--gpus", "none"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                return _measure(server, newest, copy, given.times)
            finally:
                server.terminate()


def _small(folder: Path) -> Path:
    from tests.trainer.infer.infer_run import make_run
    from trainer.config import load as configuration
    from trainer.config.load import to_dict

    folder.mkdir()
    file, _ = make_run(folder)
    document = {"schema": 1, "config": to_dict(configuration.load(file))}
    (folder / "config.json").write_text(json.dumps(document, default=str))
    return folder


def _measure(server: subprocess.Popen[str], newest: Path, copy: Path, times: int) -> int:
    _until(server, "ready")
    sampler = _sampler(server.pid)
    _settle(sampler)  # the encoders are read
    walls, cpus = [], []
    for number in range(times):
        part = copy / f".tmp-{number}"
        shutil.copytree(newest, part)
        (part / "manifest.json").touch()
        before = _cpu_s(sampler)
        part.rename(copy / f"epoch0-global_step{10**6 + number}")
        begun = _until(server, "begun")
        cpus.append(_cpu_s(sampler) - before)
        walls.append(float(begun["after_seal_s"]))
        _until(server, "finished")
    load = os.getloadavg()[0]
    print(f"checkpoints: {times}, {len(os.sched_getaffinity(0))} cores, load {load:.1f}")
    print(f"seal to first step   median {statistics.median(walls):.2f} s, most {max(walls):.2f} s")
    print(f"CPU of the sampler   median {statistics.median(cpus):.2f} s, most {max(cpus):.2f} s")
    return 1 if statistics.median(walls) > LIMIT_S else 0


def _until(server: subprocess.Popen[str], event: str) -> dict[str, object]:
    assert server.stdout is not None
    for line in server.stdout:
        found: dict[str, object] = json.loads(line)
        if found["event"] == event:
            return found
        if found["event"] in ("failed", "node-down"):
            raise SystemExit(f"error: {found}")
    raise SystemExit("error: the server has ended")


def _sampler(server: int) -> int:
    """The process of the warm sampler, below the server."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for pid in parents:
        above, words = pid, b""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        while above in parents and above != server:
            above = parents[above]
        if above == server and b"trainer.infer.warm" in words.split(b"\0"):
            return pid
    raise SystemExit("error: there is no sampler")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _settle(pid: int) -> None:
    """Until it has used no CPU for two seconds."""
    deadline, before = time.monotonic() + WAIT_S, -1.0
    while _state(pid) == "R" or _cpu_s(pid) > before:
        if time.monotonic() > deadline:
            raise SystemExit("error: the sampler does not come to rest")
        before = _cpu_s(pid)
        time.sleep(2.0)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    sys.exit(main())
