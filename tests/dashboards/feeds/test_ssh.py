"""Streams over real ssh servers on loopback; broken nodes by connections that misbehave on purpose."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.hostfile import read_hostfile
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.base import Limits, Progress, Transport
from clusterctl.transport.loopback.nodes import LoopbackCluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from dashboards.feeds.run_dir import steady_clock
from dashboards.feeds.ssh import SshFeed
from dashboards.model.samples import NodeDown, NodeSample, Sample
from tests.dashboards.feeds.test_feeds import until
from tests.dashboards.pipes import FLOOD, ONE_LINE_FLOOD, Pipes

LIMITS = Limits(tcp_s=3.0, handshake_s=7.0)


@contextmanager
def watching(nodes: list[Node], transport: Transport) -> Iterator[tuple[SshFeed, Callable[[], dict[str, Sample]]]]:  # fmt: skip
    """A started feed, and a function that gives the newest sample of each node so far."""
    cluster = Cluster(nodes, transport, LIMITS, width=32)
    feed = SshFeed(cluster, clock=steady_clock(), interval_s=0.2)
    newest: dict[str, Sample] = {}

    def look() -> dict[str, Sample]:
        for sample in feed.drain():
            assert isinstance(sample, NodeSample | NodeDown)
            newest[sample.node] = sample
        return newest

    feed.start()
    try:
        yield feed, look
    finally:
        feed.close()


def children_of(token: str) -> list[int]:
    """Processes whose environment holds the mark of one loopback cluster."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if token.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            pass  # gone meanwhile, or another user's
    return found


@pytest.mark.long
def test_nodes_are_watched_and_closing_leaves_no_watcher(
    loopback: Callable[..., LoopbackCluster],
) -> None:
    cluster = loopback(2, env={"WATCHED": "by-test-ssh-feed"})
    nodes = [*read_hostfile(cluster.hostfile), Node("dead", host="127.0.0.1", port=1)]
    with watching(nodes, ParamikoTransport()) as (feed, look):
        until(feed.settled, 20)
        until(lambda: all(isinstance(look().get(f"node-{i}"), NodeSample) for i in (1, 2)), 20)
        first = look()["node-1"]
        assert isinstance(first, NodeSample)
        assert first.cpus == os.cpu_count()
        assert first.cpu is not None
        assert first.memory_total_bytes is not None
        assert isinstance(look()["dead"], NodeDown)
        assert look()["dead"].phase == "tcp"  # type: ignore[union-attr]
        until(lambda: look()["node-1"].at_s > first.at_s, 10)  # type: ignore[union-attr]
        assert children_of("by-test-ssh-feed")
    until(lambda: not children_of("by-test-ssh-feed"), 10)


@pytest.mark.long
def test_watcher_that_is_killed_is_started_again(loopback: Callable[..., LoopbackCluster]) -> None:
    cluster = loopback(1, env={"WATCHED": "by-test-restart"})
    with watching(read_hostfile(cluster.hostfile), ParamikoTransport()) as (_, look):
        until(lambda: isinstance(look().get("node-1"), NodeSample), 20)
        for pid in children_of("by-test-restart"):
            os.kill(pid, signal.SIGKILL)
        until(lambda: isinstance(look()["node-1"], NodeDown), 10)
        until(lambda: isinstance(look()["node-1"], NodeSample), 10)


class Script:
    """A connection whose stream says what it is told, without ssh."""

    def __init__(self, lines: Iterator[bytes | None]) -> None:
        self.lines = lines
        self.closed = threading.Event()

    def stream(self, command: str, stdin: bytes) -> Script:
        return self

    def write(self, data: bytes) -> None: ...

    def read_line(self, timeout_s: float) -> bytes | None:
        if self.closed.is_set():
            raise EOFError
        line = next(self.lines)
        if line is None:
            self.closed.wait(timeout_s)
        return line

    def read_some(self, limit: int) -> bytes:
        line = self.read_line(0.0)
        return b"" if line is None else line + b"\n"

    def on_readable(self, call: Callable[[], None]) -> None:
        def ring() -> None:
            while not self.closed.wait(0.02):
                call()

        threading.Thread(target=ring, daemon=True).start()

    def kill(self) -> None: ...

    def stderr_tail(self) -> str:
        return ""

    def wait(self, timeout_s: float) -> int | None:
        return 0

    def close(self) -> None:
        self.closed.set()


def marker_then(*lines: bytes | None) -> Iterator[bytes | None]:
    yield ship.MARKER.encode()
    yield from lines
    while True:
        yield None


def flood(line: bytes) -> Iterator[bytes | None]:
    yield ship.MARKER.encode()
    while True:
        yield line


class Scripts:
    """A transport of scripted nodes."""

    def __init__(self, **nodes: Callable[[], Iterator[bytes | None]]) -> None:
        self.nodes = nodes
        self.connects: list[str] = []

    def connect(self, node: Node, limits: Limits, progress: Progress) -> Script:
        self.connects.append(node.name)
        progress.enter("auth")
        if node.name not in self.nodes:
            raise TransportError("auth", "denied")
        return Script(self.nodes[node.name]())


GOOD = b'{"n": 1, "key": {"cpu": 0.5, "gpus": 0}}'


@pytest.mark.parametrize(
    ("broken", "phase"),
    [
        (lambda: flood(b"\xff garbage"), "parse"),
        (lambda: flood(b"[1, 2]"), "parse"),
        (lambda: flood(b'{"n": 2, "d": {}}'), "parse"),
        (lambda: iter([b"a greeting", None] * 1_000_000), "start"),
        (lambda: iter([b"a greeting" * 1000] * 1_000_000), "start"),
    ],
)
def test_broken_node_is_told_and_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[], Iterator[bytes | None]], phase: str
) -> None:
    def ticking() -> Iterator[bytes | None]:
        yield ship.MARKER.encode()
        while True:
            yield GOOD
            yield None

    soon = {**(ship.stream.__kwdefaults__ or {}), "start_timeout_s": 0.3}
    monkeypatch.setattr(ship.stream, "__kwdefaults__", soon)
    transport = Scripts(good=ticking, bad=broken)
    with watching([Node("bad"), Node("good")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: isinstance(look().get("bad"), NodeDown), 30)
        assert look()["bad"].phase == phase  # type: ignore[union-attr]
        until(lambda: "good" in look(), 30)
        before = look()["good"]
        until(lambda: look()["good"] is not before, 30)
        assert isinstance(look()["good"], NodeSample)


def test_many_good_lines_keep_the_newest_only() -> None:
    transport = Scripts(loud=lambda: flood(GOOD))
    with watching([Node("loud")], transport) as (feed, _):  # type: ignore[arg-type]
        until(feed.settled, 30)
        for _ in range(20):
            assert len(feed.drain()) <= 1


def test_node_that_refuses_is_tried_again_with_growing_pauses() -> None:
    transport = Scripts()
    begun = time.monotonic()
    with watching([Node("shut")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: len(transport.connects) >= 3, 30)
        assert time.monotonic() - begun > 0.5 * 0.8 + 1.0 * 0.8
        assert look()["shut"].phase == "auth"  # type: ignore[union-attr]


def test_thousand_streams_are_read_by_one_thread() -> None:
    names = [f"n{i}" for i in range(40)]
    transport = Scripts(**{name: lambda: marker_then(GOOD) for name in names})
    with watching([Node(name) for name in names], transport) as (feed, look):  # type: ignore[arg-type]
        until(lambda: len(look()) == 40 and all(isinstance(s, NodeSample) for s in look().values()), 30)  # fmt: skip
        assert feed.settled()
        assert sum(thread.name == "watch-read" for thread in threading.enumerate()) == 1


@pytest.mark.long
def test_flood_of_a_real_process_is_hung_up_and_the_others_stay_on_time() -> None:
    transport = Pipes(instead={"yes": FLOOD, "one-line": ONE_LINE_FLOOD})
    nodes = [Node("yes"), Node("one-line"), Node("good")]
    with watching(nodes, transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: all(isinstance(look().get(n), NodeDown) for n in ("yes", "one-line")), 30)
        until(lambda: isinstance(look().get("good"), NodeSample), 30)
        for name in ("yes", "one-line"):
            assert look()[name].phase in ("parse", "start")  # type: ignore[union-attr]
            flooding = transport.running[name].process
            until(lambda: flooding.poll() is not None, 30)  # noqa: B023
        seen = look()["good"].at_s
        until(lambda: look()["good"].at_s > seen, 30)


@pytest.mark.long
def test_node_that_freezes_is_an_alarm_and_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole machine: its ssh server does not answer either while it stands still."""
    monkeypatch.setattr("dashboards.feeds.ssh.SILENT_S", 1.0)
    transport = Pipes()
    with watching([Node("a"), Node("b")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: all(isinstance(look().get(n), NodeSample) for n in "ab"), 30)
        frozen = transport.running["a"].process
        transport.refused.add("a")
        os.killpg(frozen.pid, signal.SIGSTOP)
        until(lambda: isinstance(look()["a"], NodeDown), 30)
        seen = look()["b"].at_s
        until(lambda: look()["b"].at_s > seen, 30)
        os.killpg(frozen.pid, signal.SIGCONT)
        until(lambda: isinstance(look()["a"], NodeSample), 30)
        assert transport.running["a"].process is frozen  # the same stream goes on


@pytest.mark.long
def test_frozen_watcher_is_replaced_and_never_two_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.feeds.ssh.SILENT_S", 1.0)
    transport = Pipes()
    with watching([Node("a")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: isinstance(look().get("a"), NodeSample), 30)
        frozen = transport.running["a"].process
        os.kill(frozen.pid, signal.SIGSTOP)
        until(lambda: transport.running["a"].process is not frozen, 30)
        until(lambda: isinstance(look()["a"], NodeSample), 30)
        until(lambda: frozen.poll() is not None, 30)


@pytest.mark.long
def test_node_that_was_gone_is_asked_again_soon() -> None:
    transport = Pipes(refused={"a"})
    with watching([Node("a")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: isinstance(look().get("a"), NodeDown), 30)
        until(lambda: len(transport.dialled) >= 4, 30)  # the pauses do not grow
        transport.refused.clear()
        until(lambda: isinstance(look()["a"], NodeSample), 30)


@pytest.mark.long
def test_clock_of_a_node_is_known_to_half_of_the_round_trip() -> None:
    transport = Pipes()
    with watching([Node("a")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: getattr(look().get("a"), "clock_bound_s", None) is not None, 30)
        sample = look()["a"]
        assert isinstance(sample, NodeSample)
        assert sample.clock_offset_s is not None
        assert sample.clock_bound_s is not None
        assert abs(sample.clock_offset_s) <= sample.clock_bound_s + 0.001  # it is the same clock
