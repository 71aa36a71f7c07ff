"""Seconds that `dump-stacks` takes over ssh with NCCL's RAS and without: `python -m tests.bench.ras`.

Every node is a namespace of this machine with its own sshd, a process that hangs, and a server of
RAS's protocol that replays an answer; all share the cores of this machine. The peer is the same
command with `--no-ras`. The limit is 5 s on top of the pause between the two samples.

Before that, the processor time that RAS and the GPUs' counters add to the payload of one node, by
the same payload without both: an answer about 192 ranks in three communicators, asked twice, and a
stand-in for NVML (what a driver takes for its answers is not in it). The limit is 50 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterctl.remote import payload
from tests.bench import payloads, tiny
from tests.captures import nvml_library
from tests.clusterctl.stacks.ras_answers import Comm, as_json
from tests.clusterctl.stacks.test_over_ssh import HERE, clusterctl, plant
from tests.clusterctl.stacks.test_ras_asked import serving
from tests.clusterctl.stacks.test_ras_over_ssh import serve
from tests.lab import Lab, why_not

INTERVAL_S, LIMIT_S, LIMIT_MS = 0.5, 5.0, 50.0
WORDS = ("--run", "bench", "--interval", str(INTERVAL_S), "--sites", str(HERE / "crew.toml"))


def plant_job(lab: Lab) -> str:
    """A process of the job on each node, and RAS; returns what a right verdict says."""
    places, world = [], len(lab.nodes)
    for rank, node in enumerate(lab.nodes):
        plant(node, rank, world, "bench", 0)
        found = node.exec(["pgrep", "-f", "[c]rew.py 0"]).stdout  # as the node numbers them
        places.append((node.address, int(found.split()[0])))
    missing = world // 2
    counts = [{"AllReduce": 700 - (rank == missing)} for rank in range(world)]
    answer = as_json([Comm(0xABC, counts, places)])
    for node in lab.nodes:
        serve(node, answer)
    return f"rank {missing} ({lab.nodes[missing].name}) never launched AllReduce number 700"


def payload_ms(times: int) -> float:
    """The median of the differences of neighbouring runs, with counters and without."""
    places = [(f"10.0.0.{rank // 8}", 500 + rank) for rank in range(192)]
    answer = as_json(Comm(number, [{"AllReduce": 7}] * 192, places) for number in range(3))
    tag = {"CLUSTERCTL_RUN": payloads.RUN, "RANK": "0", "WORLD_SIZE": "1"}
    with tempfile.TemporaryDirectory() as folder, serving(answer) as port:
        rank = subprocess.Popen([sys.executable, "-c", payloads.RANK], env={**os.environ, **tag})
        try:
            nvml_library.build(Path(folder), rank.pid)
            with_nvml = {**os.environ, "LD_LIBRARY_PATH": folder}
            asks, silent = (
                payload.request("stacks", {**payloads.DUMP, "ras": ras})
                for ras in (["127.0.0.1", port], None)
            )
            return statistics.median(
                payloads.cpu_ms(asks, with_nvml) - payloads.cpu_ms(silent, dict(os.environ))
                for _ in range(times)
            )
        finally:
            rank.kill()
            rank.wait()


def timed(lab: Lab, *more: str) -> tuple[float, float, str]:
    """(seconds, seconds of the head's processor time, output)."""
    before, begun = os.times(), time.perf_counter()
    done = clusterctl(lab, "dump-stacks", *WORDS, *more)
    after = os.times()
    return time.perf_counter() - begun, sum(after[2:4]) - sum(before[2:4]), done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    given = tiny.parse(parser, nodes=3, rounds=1)
    ways = {"stacks alone": ("--no-ras",), "stacks and RAS": ()}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    cost_ms = payload_ms(3 * given.rounds)
    print(f"RAS and counters: {cost_ms:.1f} ms of a node's processor time (limit {LIMIT_MS:g})")
    if (reason := why_not()) is not None:
        for way in ways:
            print(f"not measured: {way}: {reason}")
        return 3
    with tempfile.TemporaryDirectory() as name, Lab(given.nodes, Path(name)) as lab:
        wanted = plant_job(lab)
        print(f"{given.nodes} nodes on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        for _ in range(given.rounds):
            for way, more in ways.items():
                seconds, cpu_s, said = timed(lab, *more)
                took[way].append((seconds, cpu_s))
                if (wanted in said) != (not more):
                    print(f"wrong verdict of {way}:\n{said}")
                    return 1
    for way, figures in took.items():
        seconds, cpu_s = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{way}: {seconds:.1f} s, head {cpu_s:.2f} s cpu, pause {INTERVAL_S:g} s of it")
    slow_s = statistics.median(seconds for seconds, _ in took["stacks and RAS"])
    is_good = slow_s <= LIMIT_S + INTERVAL_S and cost_ms <= LIMIT_MS
    return 0 if is_good or given.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
