"""One rule for connecting again, and streams that end, with the reason."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import pytest

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.inbox import NodeMessage
from clusterctl.remote.node_threads import Followers, Pauses
from clusterctl.remote.session_pool import SessionPool
from clusterctl.transport.base import Connection
from tests.clusterctl.payload.local import LocalConnection, LocalTransport

NODE = Node("n1")


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [(Pauses(), [1.0, 2.0, 4.0, 8.0, 8.0]), (Pauses(0.5, 30.0, 30.0), [0.5, 1.0, 2.0, 4.0, 8.0])],
)
def test_pauses_double_up_to_the_longest(pauses: Pauses, expected: list[float]) -> None:
    assert [pauses.after(0.1) for _ in expected] == expected


class _Stop:
    """An event that records its waits, and is set after so many."""

    def __init__(self, most: int) -> None:
        self.waits: list[float] = []
        self._most = most

    def is_set(self) -> bool:
        return len(self.waits) >= self._most

    def set(self) -> None:
        self._most = 0

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.is_set()


def test_a_connection_that_lasted_is_tried_again_after_the_first_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the index into the pauses was -1 then: 8 s, also for the very first connection."""
    now_s = [1000.0]
    lasts_s = iter([3600.0, 0.1, 0.1, 0.1, 0.1, 3600.0, 0.1])
    lost: list[NodeResult[Any]] = []

    class Unlucky(Followers):
        def talk(self, node: Node, connection: Connection) -> None:
            now_s[0] += next(lasts_s)
            raise TransportError("command", "gone")

        def report(self, result: NodeResult[Any]) -> None:
            lost.append(result)

    followers = Unlucky(Cluster([NODE], LocalTransport({"n1": LocalConnection()})))
    stop = _Stop(7)
    followers.stop = stop  # type: ignore[assignment]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    followers._follow(NODE)
    assert stop.waits == [1.0, 2.0, 4.0, 8.0, 8.0, 1.0, 2.0]
    assert {
        (one.unreachable.phase, one.unreachable.message) for one in lost if one.unreachable
    } == {("command", "gone")}


def test_leaving_ends_an_exchange_that_is_under_way() -> None:
    started, closed = threading.Event(), threading.Event()

    class Waiting(LocalConnection):
        def close(self) -> None:
            closed.set()

    class Patient(Followers):
        def talk(self, node: Node, connection: Connection) -> None:
            started.set()
            assert closed.wait(30.0)

    begin_s = time.monotonic()
    with Patient(Cluster([NODE], LocalTransport({"n1": Waiting()}))):
        assert started.wait(30.0)
    assert time.monotonic() - begin_s < 20.0


def test_a_new_stream_that_says_nothing_is_a_try_that_has_failed() -> None:
    stop = _Stop(6)
    with closing(SessionPool(Cluster([NODE], LocalTransport({"n1": LocalConnection()})))) as pool:
        pool._closed = stop  # type: ignore[assignment]
        pool._start = lambda node, progress: pool._again.discard(node.name)  # type: ignore[method-assign]
        while not stop.is_set():
            before = len(stop.waits)
            pool.reconnect(NODE, time.monotonic() + 600)
            deadline = time.monotonic() + 30.0
            while len(stop.waits) == before:
                assert time.monotonic() < deadline
    assert stop.waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]


def test_a_stream_that_ends_is_reported_with_the_last_line_of_its_stderr() -> None:
    cluster = Cluster([NODE], LocalTransport({"n1": LocalConnection()}))
    with closing(SessionPool(cluster, verb="examine", args=lambda node: {})) as pool:
        pool.gather()
        assert pool.lost == {}
        messages: list[NodeMessage] = []
        deadline = time.monotonic() + 30.0
        while not messages or messages[-1].data is not None:
            assert time.monotonic() < deadline
            messages += pool.inbox.take(1.0)[0]
    assert messages[-1].node == "n1"
    assert messages[-1].why.startswith("its payload ended: ")
