"""What supervision costs: `python -m tests.bench.supervise [--nodes 1000] [--seconds 30]`.

The agents are simulated (`play`, in other processes): a heartbeat of 8 ranks a second each, and from
the first node a step every two seconds. The peer is the limit of 0.3 of a core for 1,000 nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from clusterctl.launch import environment
from clusterctl.launch.plan import LaunchPlan, Timing, assign_ranks, new_run_id
from clusterctl.launch.state import RunState
from clusterctl.launch.supervise import supervise
from clusterctl.remote import payload as ship
from clusterctl.remote.cluster import Cluster
from tests.bench import tiny
from tests.bench.simulated import Simulated
from trainer.runlog.telemetry import StepRecord, encode

RANKS = 8
LIMIT = 0.3  # of a core
SETTLE_S = 5.0  # after the first step: what the starts have left to do
STEP_S = 2.0


class Agent:
    """One node: answers orders, then beats."""

    def __init__(self, out: int, number: int) -> None:
        self._out, self._first, self.runs = out, RANKS * number, False
        self._at = self._steps = 0
        os.write(out, ship.MARKER.encode() + b"\n")
        facts = {"shared": True, "cores": 208, "python_found": True, "workdir_found": True}
        where = {"same_job": [], "port": 29500 if number == 0 else None, "addresses": ["10.0.0.1"]}
        self.say(type="hello", ends_at_logout=None, **facts, **where)

    def say(self, **message: object) -> None:
        os.write(self._out, json.dumps(message).encode() + b"\n")

    def obey(self, order: dict[str, object]) -> None:
        if order.get("op") == "probe":
            addresses = order["addresses"]
            assert isinstance(addresses, list)
            self.say(type="probed", errors=dict.fromkeys(addresses))
        if order.get("op") == "start":
            self.runs = True
            self.say(type="started", pid=1000)
            for rank in range(self._first, self._first + RANKS):
                self.say(type="rank", rank=rank, pid=2000 + rank)
        if order.get("op") == "stop":
            self.say(type="ended", code=0, tail=[])
            self.say(type="gone", left=[])
            self.runs = False

    def beat(self, turn: int) -> None:
        ranks = range(self._first, self._first + RANKS)
        beat = {"step": turn, "phase": "backward", "age_s": 0.4}
        self.say(type="beat", ranks={str(rank): beat for rank in ranks})
        if self._first == 0 and turn % int(STEP_S) == 0:
            self._steps += 1
            text = encode(step(self._steps)) + "\n"
            self.say(type="telemetry", text=text, at=self._at, end=self._at + len(text))
            self._at += len(text)


def step(number: int) -> StepRecord:
    phases = {"data": 0.1, "forward": 0.6, "backward": 1.1, "optimizer": 0.1}
    sums = {"samples": 8, "tokens": 90_000, "loss": 0.9, "grad_norm": 0.3, "lr": 1e-4}
    about = {"step_s": STEP_S, "seconds": phases, "weight_norm": 900.0, "time_s": time.time()}
    return StepRecord(step=number, steps_total=100_000, epoch=0, **sums, **about)  # type: ignore[arg-type]


def play(begin: int, count: int, seconds: float, descriptors: Sequence[int]) -> None:
    """Agents of nodes from `begin` on, until the readers are gone or the time is over."""
    outs, ins = descriptors[:count], descriptors[count:]
    agents = [Agent(out, begin + index) for index, out in enumerate(outs)]
    of = dict(zip(ins, agents, strict=True))
    poller = select.epoll()
    for descriptor in ins:
        poller.register(descriptor, select.EPOLLIN)
    until, turn = time.monotonic() + seconds, 0
    began = time.monotonic()
    while time.monotonic() < until:
        due = began + (turn + 1) / count  # spread over the second
        for descriptor, _ in poller.poll(max(0.0, due - time.monotonic())):
            data = os.read(descriptor, 1 << 20)
            if not data:
                return
            for line in data.splitlines():
                if line.startswith(b'{"op"'):
                    of[descriptor].obey(json.loads(line))
        while due <= time.monotonic():
            agent = agents[turn % count]
            if agent.runs:
                agent.beat(turn // count + 1)
            turn += 1
            due = began + (turn + 1) / count


def measure(nodes: int, seconds: float, settle_s: float, folder: Path) -> float:
    """Part of a core that the supervisor uses once steps come; prints it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    transport = Simulated(nodes, seconds + 120.0, "tests.bench.supervise", "play", "{begin}")
    plan = LaunchPlan(
        run_id=new_run_id(time.time(), "bench"),
        config="bench",
        run_dir=folder,
        workdir=folder,
        python=sys.executable,
        device="cpu",
        shares=assign_ranks(transport.nodes, {node.name: RANKS for node in transport.nodes}),
        address="10.0.0.1",
        address_fixed=True,
        ports=(29500,),
        environment=environment.build({}, run_dir=folder),
        program=("-m", "trainer.train"),
        starter=(sys.executable, "-m", "trainer.starter"),
        timing=Timing(grace_s=1.0, fail_grace_s=1.0),
    )
    began: list[tuple[float, float]] = []  # (monotonic, CPU) of the first step
    used: list[float] = []

    def see(state: RunState) -> None:
        if state.step is not None and not began:
            began.append((time.monotonic(), time.process_time()))

    def is_over() -> bool:
        if len(began) == 1 and time.monotonic() - began[0][0] >= settle_s:
            began.append((time.monotonic(), time.process_time()))
        if len(began) < 2 or time.monotonic() - began[1][0] < seconds:
            return False
        if not used:
            since_s, cpu_s = began[1]
            used.append((time.process_time() - cpu_s) / (time.monotonic() - since_s))
        return True

    try:
        supervise(plan, Cluster(plan.nodes, transport, width=64), on_update=see, stop=is_over)
    finally:
        transport.close()
    return used[0]


def main() -> int:
    if sys.argv[1:2] == ["play"]:
        begin, count, seconds, *descriptors = sys.argv[2:]
        play(int(begin), int(count), float(seconds), [int(word) for word in descriptors])
        return 0
    parser = argparse.ArgumentParser("python -m tests.bench.supervise", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=SETTLE_S)
    options = tiny.parse(parser, nodes=4, seconds=1.0, settle=0.2)
    with tempfile.TemporaryDirectory() as folder:
        share = measure(options.nodes, options.seconds, options.settle, Path(folder))
    verdict = "within" if share <= LIMIT else "ABOVE"
    print(f"supervision of {options.nodes} nodes x {RANKS} ranks: {share:.3f} core, {share / LIMIT:.2f} of the limit of {LIMIT} ({verdict})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
