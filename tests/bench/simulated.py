"""Nodes that are not there behind pipes that are: what `tests/bench/top.py` watches.

`python -m tests.bench.simulated COUNT SECONDS FD…` writes for COUNT nodes into the given descriptors
(for each node one to write to and one to read from): marker, key frame, then a change a second in the
size and shape of a busy node of 8 GPUs with 9 links, and answers to questions about the time.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.transport.base import Limits, Progress
from tests.readable import on_readable

GPUS, PORTS = 8, 8
CHANGES = 64  # lines that each node says in turn
FAULT, LOST = "BENCH_FAULT_AT", 3  # from then on the first nodes have lost this GPU
JOULES = 10**9  # of each card's counter at first; it begins again after CHANGES lines
PROCESSES = 4  # that play the nodes


def key_frame(draw: random.Random) -> bytes:
    said: dict[str, Any] = {
        "cpus": 208, "up": 1e6, "driver": "565.57.01", "cpu": 0.2, "load1": 40.1, "net": 40_000.0,
        "mem": [612_000, 2_048_000], "links": PORTS + 1, "gpus": GPUS,
        "disks": [["/", 61_000, 440_000], ["/data", 5_000_000, 7_000_000]],
        "procs": [[88_120 + g, "trainer", "python3", g, 71_168, "run-1", g, 6000] for g in range(GPUS)],
    }  # fmt: skip
    for index in range(PORTS):
        said[f"L{index}"] = [f"mlx5_{index}/1", "ib", "Active", 400.0, 0]
        said[f"l{index}"] = [2400.0, 2410.0, 0]
    said[f"L{PORTS}"], said[f"l{PORTS}"] = ["eth0", "eth", "up", 25.0, 0], [2.1, 1.3, 0]
    for index in range(GPUS):
        said[f"h{index}"] = ["NVIDIA H100 80GB HBM3", 700.0, 81_559, f"00000000:{index:02X}:00.0", 0, 18, 18]  # fmt: skip
        said[f"g{index}"] = [draw.randint(640, 700), 99, 71_204, 62, 1980, 0, JOULES]
    return json.dumps({"n": 1, "key": said}, separators=(",", ":")).encode() + b"\n"


def change(draw: random.Random, number: int) -> bytes:
    """Power of all GPUs moves each second, the links' rates every other one."""
    said: dict[str, Any] = {"cpu": round(draw.uniform(0.18, 0.25), 3), "load1": round(draw.uniform(36, 45), 2)}  # fmt: skip
    for index in range(GPUS):
        said[f"g{index}"] = [draw.randint(640, 700), draw.randint(97, 100), 71_204, draw.randint(60, 66), 1980, 0, JOULES + 670 * number]  # fmt: skip
    if number % 2:
        for index in range(PORTS):
            said[f"l{index}"] = [draw.randint(2000, 2800), draw.randint(2000, 2800), 0]
        said["net"] = draw.randint(32_000, 44_000)
    return json.dumps({"n": number, "d": said}, separators=(",", ":")).encode() + b"\n"


def play(count: int, seconds: float, descriptors: Sequence[int]) -> None:
    """Say all lines until the readers are gone or the time is over."""
    draw = random.Random(count)
    outs, ins = descriptors[:count], descriptors[count:]
    lines = [change(draw, number) for number in range(2, CHANGES + 2)]
    for descriptor in outs:
        os.write(descriptor, ship.MARKER.encode() + b"\n" + key_frame(draw))
    poller = select.epoll()
    by_in = dict(zip(ins, outs, strict=True))
    for descriptor in ins:
        os.set_blocking(descriptor, False)
        poller.register(descriptor, select.EPOLLIN)
    begun = time.monotonic()
    fault_s = float(os.environ.get(FAULT, "inf"))  # unix time
    turn = 0
    while time.monotonic() - begun < seconds:
        due = begun + (turn + 1) / count  # spread over the second
        for descriptor, event in poller.poll(max(0.0, due - time.monotonic())):
            try:
                asked = os.read(descriptor, 4096)
            except BlockingIOError:
                continue
            if not asked or event & select.EPOLLHUP:
                return
            for line in asked.splitlines():
                if line.startswith(b'{"ping"'):
                    answer = {"pong": json.loads(line)["ping"], "t": time.time()}
                    os.write(by_in[descriptor], json.dumps(answer).encode() + b"\n")
        while due <= time.monotonic():
            line = lines[(turn // count + turn) % CHANGES]
            if time.time() >= fault_s and turn % count == 0:
                lost = {f"g{LOST}": "GPU is lost"}
                line = json.dumps({"n": turn + CHANGES, "d": lost}).encode() + b"\n"
            os.write(outs[turn % count], line)
            turn += 1
            due = begun + (turn + 1) / count


class SimulatedStream:
    """See `transport.base.Stream`."""

    def __init__(self, out: int, into: int) -> None:
        self._out, self._into = out, into
        self._buffer = b""

    def write(self, data: bytes) -> None:
        os.write(self._into, data)

    def read_line(self, timeout_s: float) -> bytes | None:
        while b"\n" not in self._buffer:
            poller = select.poll()
            poller.register(self._out, select.POLLIN)
            if not poller.poll(1000 * timeout_s):
                return None
            data = os.read(self._out, 65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def read_some(self, limit: int) -> bytes:
        data, self._buffer = self._buffer, b""
        try:
            more = os.read(self._out, limit - len(data))
        except BlockingIOError:
            return data
        if not data and not more:
            raise EOFError
        return data + more

    def on_readable(self, call: Callable[[], None]) -> None:
        on_readable(self._out, call)

    def kill(self) -> None: ...

    def stderr_tail(self) -> str:
        return ""

    def wait(self, timeout_s: float) -> int | None:
        return None

    def close_stdin(self) -> None: ...

    def close(self) -> None:
        for descriptor in (self._out, self._into):
            try:
                os.close(descriptor)
            except OSError:
                pass  # closed already


class SimulatedConnection:
    """See `transport.base.Connection`."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._stream = stream

    def stream(self, command: str, stdin: bytes) -> SimulatedStream:
        return self._stream  # the payload itself is not sent: nobody would run it

    def close(self) -> None: ...


class Simulated:
    """A transport of `count` nodes played by a few processes; close it at the end.

    `module` is run as this one is; each process gets the numbers of its nodes, from `begin` on.
    """

    def __init__(
        self, count: int, seconds: float, module: str = "tests.bench.simulated", *more: str
    ) -> None:
        self.nodes = [Node(f"ml-64-node-{index:04d}") for index in range(1, count + 1)]
        self._streams: dict[str, SimulatedStream] = {}
        self._processes = []
        share = -(-count // PROCESSES)
        for begin in range(0, count, share):
            part = self.nodes[begin : begin + share]
            theirs: list[int] = []
            questions: list[int] = []
            for node in part:
                out, theirs_out = os.pipe()
                theirs_in, into = os.pipe()
                theirs.append(theirs_out)
                questions.append(theirs_in)
                self._streams[node.name] = SimulatedStream(out, into)
            passed = [*theirs, *questions]
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *(word.format(begin=begin) for word in more), str(len(part)), str(seconds), *map(str, passed)],
                    pass_fds=passed,
                    cwd=Path(__file__).parents[2],
                )
            )  # fmt: skip
            for descriptor in passed:
                os.close(descriptor)

    def connect(self, node: Node, limits: Limits, progress: Progress) -> SimulatedConnection:
        return SimulatedConnection(self._streams[node.name])

    def freeze(self) -> list[str]:
        """Stop the process that plays the last nodes; returns their names."""
        self._processes[-1].send_signal(signal.SIGSTOP)
        share = -(-len(self.nodes) // PROCESSES)
        return [node.name for node in self.nodes[share * (len(self._processes) - 1) :]]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    play(int(sys.argv[1]), float(sys.argv[2]), [int(word) for word in sys.argv[3:]])
