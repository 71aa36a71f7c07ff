"""What the live view costs: `python -m tests.bench.top [grid|parts|fleet|peer|node|replay|all]`.

grid    a tick of 24x8 GPUs with everything Textual does for it
parts   where the CPU of a second of 1,000 nodes goes
fleet   1,000 nodes x 8 at 1 Hz through real pipes: the head's CPU, and how long a key takes
peer    256 nodes x 8: the head's CPU, age of readings, seconds until a fault shows; all-smi's by its
        documents and source: no build of it was at hand
node    the watcher itself: CPU of a core and bytes on the wire at 1 Hz, 8 GPUs (NVML stand-in)
replay  24 h of 24x8 at top speed: memory at the second hour and at the end

Every line says the load average, for most of these figures grow with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from textual import events

from clusterctl.remote.cluster import Cluster
from dashboards.feeds.replay import Replay
from dashboards.feeds.run_dir import steady_clock
from dashboards.feeds.ssh import SshFeed
from dashboards.model import table
from dashboards.model.samples import NodeSample, Sample, Tick
from dashboards.model.state import State, initial_state
from dashboards.recording.file_format import Appender
from dashboards.recording.writer import Writer
from dashboards.reduce import fold
from dashboards.simulation.healthy import names
from dashboards.tui.app import TopApp
from dashboards.tui.widgets.gpu_grid import GpuGrid
from tests.bench import tiny, watcher
from tests.bench.simulated import FAULT, Simulated
from tests.dashboards.simulated_hour import BEGIN_S, TEN, hour

PARTS = ("grid", "parts", "fleet", "peer", "node", "replay")


# lablup/all-smi, commit 18fb595: README ("Agentless SSH mode"), src/common/config.rs
# (`adaptive_interval`), src/view/data_collection/ssh_strategy.rs (`collect_all`).
PEER = (
    "peer, all-smi --ssh-hostfile, not measured: it asks 101 and more nodes every 6 s, by one command "
    "on each, and shows a round when all have answered or failed; so a reading is up to 6 s old and "
    "the answer of the slowest node, and one that hangs delays all until its session is given up"
)


def say(text: str) -> None:
    print(f"{text}   [load {os.getloadavg()[0]:.1f}]", flush=True)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss_mb() -> float:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Hours:
    """A feed that says second after second when it is asked; invented before."""

    def __init__(self, seconds: int) -> None:
        self.nodes, self.source = names(), "bench"
        self._rounds = iter(list(hour((), seconds=seconds)))
        self._now_s = BEGIN_S

    def start(self) -> None: ...

    def drain(self) -> list[Sample]:
        samples = next(self._rounds)
        tick = samples[-1]
        assert isinstance(tick, Tick)
        self._now_s = tick.now_s
        self.said = time.process_time()
        return samples[:-1]

    def now(self) -> float:
        return self._now_s

    def settled(self) -> bool:
        return True

    def close(self) -> None: ...


def grid(ticks: int) -> None:
    """CPU of a tick, without inventing the readings."""
    for size in ((80, 24), (200, 50)):
        feed = Hours(ticks + 10)
        app = TopApp(feed, interval_s=3600.0)  # ticks come from here alone
        costs: list[float] = []

        async def run(app: TopApp = app, feed: Hours = feed, size: tuple[int, int] = size, costs: list[float] = costs) -> None:  # fmt: skip
            async with app.run_test(size=size) as pilot:
                await pilot.pause()
                for _ in range(ticks):
                    app.tick()
                    await asyncio.sleep(0.04)  # the compositor's turn
                    costs.append(time.process_time() - feed.said)

        asyncio.run(run())
        costs = sorted(costs[3:])
        say(f"grid {size[0]}x{size[1]}: {1000 * statistics.median(costs):.1f} ms CPU a tick median, {1000 * costs[0]:.1f} at best")  # fmt: skip


ANSWER_S = 30.0


async def answer_s(app: TopApp) -> float:
    """Seconds from a key to the picture that it changes: the metric of the cluster screen."""
    grid = app.screen.query_one(GpuGrid)
    before, painted = grid.metric, asyncio.Event()
    asked = time.monotonic()
    app.post_message(events.Key("p", "p"))
    while grid.metric is before:
        if time.monotonic() - asked > ANSWER_S:
            raise SystemExit(f"error: no answer to a key within {ANSWER_S:g} s")
        await asyncio.sleep(0.001)
    app.call_after_refresh(painted.set)
    await painted.wait()
    return time.monotonic() - asked


def fleet(count: int, seconds: int) -> None:
    """The head with its screen; simulated nodes are other processes."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    transport = Simulated(count, seconds + 60.0)
    cluster = Cluster(transport.nodes, transport, width=32)
    feed = SshFeed(cluster, clock=steady_clock(), source="bench")
    app = TopApp(feed)
    latencies: list[float] = []

    async def run() -> None:
        async with app.run_test(size=(120, 40)):
            deadline = time.monotonic() + 60
            while not feed.settled() and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
            await asyncio.sleep(3)
            begun, used = time.monotonic(), cpu_s()
            while time.monotonic() - begun < seconds:
                await asyncio.sleep(0.7)
                latencies.append(await answer_s(app))
            used = (cpu_s() - used) / (time.monotonic() - begun)
            fresh = sum(1 for node in app.state.nodes.values() if node.sample and app.state.now_s - node.sample.at_s < 3)  # fmt: skip
            offsets = sum(1 for node in app.state.nodes.values() if node.sample and node.sample.clock_offset_s is not None)  # fmt: skip
            ranked = sorted(latencies)
            if os.environ.get("SHOW"):
                print([round(1000 * took) for took in latencies])
            say(
                f"fleet of {count}: {used:.2f} core, {fresh} nodes fresh, {offsets} clocks known, "
                f"a key {1000 * statistics.median(ranked):.0f} ms median, {1000 * ranked[-1]:.0f} ms at worst of {len(ranked)}, {rss_mb():.0f} MB"
            )

    try:
        asyncio.run(run())
    finally:
        transport.close()


async def seconds_until(condition: Callable[[], bool], since_s: float, limit_s: float) -> str:
    """From a unix time on, as text."""
    while not condition():
        if time.time() - since_s > limit_s:
            return f"not within {limit_s:.0f} s"
        await asyncio.sleep(0.02)
    return f"{time.time() - since_s:.1f} s"


def peer(count: int, seconds: int) -> None:
    """256 nodes: what a reading is old, and how long two faults take until they show."""
    os.environ[FAULT] = str(time.time() + seconds + 5.0 + count / 25)
    fault_s = float(os.environ[FAULT])
    transport = Simulated(count, 2 * seconds + 180.0)
    del os.environ[FAULT]
    feed = SshFeed(
        Cluster(transport.nodes, transport, width=32), clock=steady_clock(), source="bench"
    )
    app = TopApp(feed)
    ages: list[float] = []

    def mark(name: str) -> str:
        return table.node_mark(app.state.nodes[name], app.state)[0]

    async def run() -> None:
        async with app.run_test(size=(120, 40)):
            while not feed.settled():
                await asyncio.sleep(0.1)
            await asyncio.sleep(3)
            begun, used = time.monotonic(), cpu_s()
            while time.monotonic() - begun < seconds:
                await asyncio.sleep(0.37)
                now_s = feed.now()
                ages.extend(
                    now_s - one.sample.at_s for one in app.state.nodes.values() if one.sample
                )
            core = (cpu_s() - used) / (time.monotonic() - begun)
            ages.sort()
            middle, late = ages[len(ages) // 2], ages[int(0.99 * len(ages))]
            say(f"peer, ours, {count} nodes x 8: {core:.2f} core, a reading is {middle:.1f} s old, 99 % under {late:.1f} s, {rss_mb():.0f} MB")  # fmt: skip
            await asyncio.sleep(max(0.0, fault_s - time.time()))
            first = transport.nodes[0].name
            took = await seconds_until(lambda: mark(first) == table.MISSING, fault_s, 30)
            frozen, begun_s = transport.freeze(), time.time()
            silent = await seconds_until(lambda: all(mark(name) == table.STALE for name in frozen), begun_s, 30)  # fmt: skip
            say(f"peer, ours: a lost GPU shows after {took}, {len(frozen)} nodes that freeze after {silent}")  # fmt: skip

    try:
        asyncio.run(run())
    finally:
        transport.close()
    print(PEER, flush=True)


def parts(count: int) -> None:
    """Where a second of the fleet goes: decoding, folding, the tick."""
    import random

    from dashboards.feeds.watch_decoder import Decoder
    from tests.bench.simulated import change, key_frame

    draw = random.Random(1)
    decoders = [Decoder(f"ml-64-node-{index:04d}") for index in range(1, count + 1)]
    for decoder in decoders:
        decoder.take(key_frame(draw), 0.0)
        decoder.sample(0.0)
    state = initial_state([f"ml-64-node-{i:04d}" for i in range(1, count + 1)], now_s=0.0)
    spent = {"decode": 0.0, "fold": 0.0, "tick": 0.0}
    rounds = 12
    size = 0
    for second in range(1, rounds + 1):
        lines = [change(draw, second) for _ in decoders]
        size += sum(map(len, lines))
        begun = time.process_time()
        samples: list[Sample] = []
        for decoder, line in zip(decoders, lines, strict=True):
            decoder.take(line, float(second))
            sample = decoder.sample(float(second))
            assert sample is not None
            samples.append(sample)
        decoded = time.process_time()
        state = fold(state, samples)
        folded = time.process_time()
        state = fold(state, [Tick(float(second))])
        ticked = time.process_time()
        for name, took in (("decode", decoded - begun), ("fold", folded - decoded), ("tick", ticked - folded)):  # fmt: skip
            spent[name] += took / rounds
    say(f"parts of {count} nodes a second: " + ", ".join(f"{name} {1000 * took:.0f} ms" for name, took in spent.items()) + f", {size / rounds / count:.0f} bytes a line")  # fmt: skip


def replay(hours: int, interval_s: int) -> None:
    """Hours of 24x8 at 1/interval Hz, every sample folded; then the same by jumps."""
    rounds = 3600 * hours // interval_s
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day"
        writer = Writer(Appender(path, 4 << 30), names(), "bench", float(interval_s))
        begun = time.process_time()
        for number, said in enumerate(hour(TEN, seconds=rounds)):
            at_s = BEGIN_S + number * interval_s
            writer.take(at_s, [_later(sample, at_s) for sample in said if not isinstance(sample, Tick)])  # fmt: skip
        writer.close()
        size = path.stat().st_size
        say(f"replay: {hours} h written, {size / 1e6:.0f} MB, {1000 * (time.process_time() - begun) / rounds:.1f} ms CPU a round")  # fmt: skip
        for how, at_once in (("every sample", 10**9), ("jumps", 0)):
            _play(path, how, at_once, hours, interval_s)


def _later(sample: Sample, at_s: float) -> Sample:
    return replace(sample, at_s=at_s) if isinstance(sample, NodeSample) else sample


def _play(path: Path, how: str, at_once: int, hours: int, interval_s: int) -> None:
    import dashboards.feeds.replay

    dashboards.feeds.replay.AT_ONCE = at_once
    now = [0.0]
    feed = Replay(path, clock=lambda: now[0], speed=1.0)
    feed.start()
    state: State = initial_state(feed.nodes, now_s=feed.now())
    rss: list[float] = []
    begun = time.process_time()
    step_s = interval_s if at_once else 120
    for _hour in range(hours + 1):
        for _ in range(0, 3600, step_s):
            state = fold(state, [*feed.drain(), Tick(feed.now())])
            now[0] += step_s
        rss.append(rss_mb())
    feed.close()
    growth = rss[-1] / rss[2] - 1
    say(
        f"replay, {how}: {time.process_time() - begun:.0f} s CPU, step {state.run.last.step if state.run and state.run.last else 0}, "
        f"RSS {rss[2]:.0f} MB after 2 h, {rss[-1]:.0f} MB after {hours} h ({100 * growth:+.1f} %)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.top", description=__doc__)
    parser.add_argument("what", choices=[*PARTS, "all"], nargs="?", default="all")
    parser.add_argument("--ticks", type=int, default=30, help="of the grid")
    parser.add_argument("--nodes", type=int, default=1000, help="of the fleet and its parts")
    parser.add_argument("--peers", type=int, default=256, help="nodes beside all-smi")
    parser.add_argument("--seconds", type=int, default=20, help="of the fleet and the node")
    parser.add_argument("--hours", type=int, default=24, help="replayed, at least 2")
    parser.add_argument("--interval", type=int, default=5, help="of the replayed hours, in seconds")
    options = tiny.parse(parser, ticks=4, nodes=8, peers=8, seconds=4, hours=2, interval=600)
    code = 0
    if options.what in ("grid", "all"):
        grid(options.ticks)
    if options.what in ("parts", "all"):
        parts(options.nodes)
    if options.what in ("fleet", "all"):
        fleet(options.nodes, options.seconds)
    if options.what in ("peer", "all"):
        peer(options.peers, options.seconds)
    if options.what in ("node", "all"):
        compiler = watcher.compiler()
        if compiler:
            say(watcher.node(options.seconds, compiler))
        else:
            print("not measured: node: no C compiler for a stand-in of libnvidia-ml")
            code = 3
    if options.what in ("replay", "all"):
        replay(options.hours, options.interval)
    return code


if __name__ == "__main__":
    sys.exit(main())
