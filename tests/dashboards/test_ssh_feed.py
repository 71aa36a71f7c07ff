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
from clusterctl.nodes import Node, read_hostfile
from clusterctl.payload import ship
from clusterctl.transport.base import Limits, Progress, Transport
from clusterctl.transport.loopback import LoopbackCluster
from clusterctl.transport.paramiko import ParamikoTransport
from dashboards.feeds import steady_clock
from dashboards.samples import NodeDown, NodeSample, Sample
from dashboards.ssh_feed import SshFeed
from tests.dashboards.test_feeds import until

LIMITS = Limits(tcp_s=3.0, handshake_s=7.0)


@contextmanager
def watching(nodes: list[Node], transport: Transport) -> Iterator[tuple[SshFeed, Callable[[], dict[str, Sample]]]]:  # fmt: skip
    """A started feed, and a function that gives the newest sample of each node so far."""
    feed = SshFeed(nodes, transport, limits=LIMITS, clock=steady_clock(), interval_s=0.2)
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

    def read_line(self, timeout_s: float) -> bytes | None:
        if self.closed.is_set():
            raise EOFError
        line = next(self.lines)
        if line is None:
            self.closed.wait(timeout_s)
        return line

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


GOOD = b'{"cpu": 0.5, "gpus": []}'


@pytest.mark.parametrize(
    ("broken", "phase"),
    [
        (lambda: flood(b"\xff garbage"), "parse"),
        (lambda: flood(b"[1, 2]"), "parse"),
        (lambda: iter([b"a greeting", None] * 1_000_000), "start"),
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
        until(lambda: isinstance(look().get("bad"), NodeDown), 5)
        assert look()["bad"].phase == phase  # type: ignore[union-attr]
        before = look()["good"]
        until(lambda: look()["good"] is not before, 3)
        assert isinstance(look()["good"], NodeSample)


def test_flood_of_good_lines_keeps_the_newest_only() -> None:
    transport = Scripts(loud=lambda: flood(GOOD))
    with watching([Node("loud")], transport) as (feed, _):  # type: ignore[arg-type]
        until(feed.settled, 5)
        for _ in range(20):
            assert len(feed.drain()) <= 1


def test_silent_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.ssh_feed.SILENT_S", 0.5)
    transport = Scripts(mute=lambda: marker_then(GOOD))
    with watching([Node("mute")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: isinstance(look().get("mute"), NodeDown), 5)
        assert "no reading for" in look()["mute"].message  # type: ignore[union-attr]


def test_node_that_refuses_is_tried_again_with_growing_pauses() -> None:
    transport = Scripts()
    begun = time.monotonic()
    with watching([Node("shut")], transport) as (_, look):  # type: ignore[arg-type]
        until(lambda: len(transport.connects) >= 2, 5)
        assert time.monotonic() - begun > 0.7
        assert look()["shut"].phase == "auth"  # type: ignore[union-attr]


def test_more_nodes_than_readers_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.ssh_feed.READERS", 3)
    names = [f"n{i}" for i in range(40)]
    transport = Scripts(**{name: lambda: marker_then(GOOD) for name in names})
    with watching([Node(name) for name in names], transport) as (feed, look):  # type: ignore[arg-type]
        until(lambda: len(look()) == 40 and all(isinstance(s, NodeSample) for s in look().values()), 10)  # fmt: skip
        assert feed.settled()
        assert sum(thread.name.startswith("watch-read") for thread in threading.enumerate()) <= 3
