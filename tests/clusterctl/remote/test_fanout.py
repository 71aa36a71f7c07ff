"""The fan-out: results as they arrive, one deadline for all, a dead node costs the others nothing."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote.fanout import TICK_S, Fanout, NodeResult, in_order
from clusterctl.transport.base import Limits, Progress, Unreachable

NODES = [Node(f"n{index}") for index in range(6)]
RELEASE_S = 20.0


@pytest.fixture
def gate():
    """An event that hung work waits for; set at the end so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


def hang_on(gate: threading.Event, *names: str, phase: str = "kex"):
    def work(node: Node, progress: Progress) -> str:
        progress.enter(phase if node.name in names else "command")
        if node.name in names:
            gate.wait(RELEASE_S)
        return node.name.upper()

    return work


def test_every_node_gives_exactly_one_result() -> None:
    found = list(Fanout(NODES, lambda node, _: node.name, deadline_s=5))
    assert sorted(result.value for result in found) == [node.name for node in NODES]
    assert all(result.unreachable is None for result in found)


def test_a_signal_handler_that_ends_after_a_tick_stops_nothing(gate: threading.Event) -> None:
    """SimpleQueue.get, before Python 3.13, then waits forever."""
    handled = []

    def late(*_: object) -> None:
        time.sleep(2 * TICK_S)
        handled.append(True)

    before = signal.signal(signal.SIGUSR1, late)
    main, asked = threading.get_ident(), list[threading.Timer]()

    def meanwhile() -> None:
        if not asked:
            asked.append(threading.Timer(TICK_S / 2, signal.pthread_kill, (main, signal.SIGUSR1)))
            asked[0].start()

    try:
        fanout = Fanout(NODES, hang_on(gate, "n1"), deadline_s=1.0, meanwhile=meanwhile)
        assert len(list(fanout)) == len(NODES)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled


def test_results_come_as_they_arrive_not_in_order() -> None:
    first_may_end = threading.Event()

    def work(node: Node, _: Progress) -> str:
        if node == NODES[0]:
            first_may_end.wait(5)
        return node.name

    order = []
    for result in Fanout(NODES, work, deadline_s=10):
        order.append(result.value)
        if len(order) == len(NODES) - 1:
            first_may_end.set()
    assert order[-1] == "n0"
    assert [r.value for r in in_order(NODES, [NodeResult(NODES[2], "b", None, 0), NodeResult(NODES[1], "a", None, 0)])] == ["a", "b"]  # fmt: skip


def test_hung_node_is_reported_at_the_deadline_with_its_phase(gate: threading.Event) -> None:
    started = time.monotonic()
    arrived: dict[str, float] = {}
    found = {}
    for result in Fanout(NODES, hang_on(gate, "n2"), deadline_s=0.5):
        arrived[result.node.name] = time.monotonic() - started
        found[result.node.name] = result
    late = found.pop("n2").unreachable
    assert late is not None
    assert late.phase == "kex"
    assert "before the deadline of 0.5 s" in late.message
    assert 0.4 < arrived.pop("n2") < 1.0
    assert max(arrived.values()) < 0.4
    assert all(result.value for result in found.values())


def test_several_hung_nodes_come_in_hostfile_order(gate: threading.Event) -> None:
    found = list(Fanout(NODES, hang_on(gate, "n4", "n1", "n3"), deadline_s=0.3))
    assert [result.node.name for result in found[-3:]] == ["n1", "n3", "n4"]


def test_nodes_that_never_began_say_so(gate: threading.Event) -> None:
    found = list(Fanout(NODES, hang_on(gate, "n0", "n1"), deadline_s=0.3, width=2))
    queued = [r for r in found if r.unreachable and r.unreachable.phase == "queued"]
    assert [r.node.name for r in queued] == ["n2", "n3", "n4", "n5"]
    assert queued[0].unreachable is not None
    assert "not started" in queued[0].unreachable.message


def test_transport_error_becomes_the_result_with_phase_and_hint() -> None:
    def work(node: Node, progress: Progress) -> str:
        progress.enter("auth")
        progress.notes.append("tried twice")
        raise TransportError("auth", "refused", hint="ssh-copy-id")

    (result,) = Fanout(NODES[:1], work, deadline_s=5)
    assert isinstance(result.unreachable, Unreachable)
    assert (result.unreachable.phase, result.unreachable.message, result.unreachable.hint) == (
        "auth", "refused", "ssh-copy-id",
    )  # fmt: skip
    assert result.notes == ("tried twice",)
    assert [phase for phase, _ in result.phases][-2:] == ["resolve", "auth"]


def test_a_fault_in_the_work_is_that_node_s_result_only() -> None:
    def work(node: Node, progress: Progress) -> str:
        if node == NODES[3]:
            raise KeyError("oops")
        return "fine"

    found = {result.node: result for result in Fanout(NODES, work, deadline_s=5)}
    broken = found.pop(NODES[3]).unreachable
    assert broken is not None
    assert "KeyError: 'oops'" in broken.message
    assert "report it" in (broken.hint or "")
    assert {result.value for result in found.values()} == {"fine"}


def test_width_bounds_what_runs_at_once() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def work(node: Node, _: Progress) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)  # work, not synchronisation
        with lock:
            now -= 1

    many = [Node(f"m{index}") for index in range(40)]
    assert len(list(Fanout(many, work, deadline_s=10, width=4))) == 40
    assert most == 4


def test_caller_that_stops_early_starts_no_more_nodes(gate: threading.Event) -> None:
    begun: list[str] = []

    def work(node: Node, _: Progress) -> str:
        begun.append(node.name)
        if node != NODES[0]:
            gate.wait(RELEASE_S)
        return node.name

    sweep = iter(Fanout(NODES, work, deadline_s=10, width=2))
    assert next(sweep).value == "n0"
    sweep.close()  # type: ignore[attr-defined]
    gate.set()
    deadline = time.monotonic() + 5
    while any(t.name.startswith("fanout-") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert len(begun) <= 3


def test_waiting_names_the_phase_of_those_under_way(gate: threading.Event) -> None:
    sweep = Fanout(NODES, hang_on(gate, "n1", "n5", phase="banner"), deadline_s=10)
    results = iter(sweep)
    for _ in range(4):
        next(results)
    assert [(node.name, phase) for node, phase, _ in sweep.waiting()] == [
        ("n1", "banner"), ("n5", "banner"),
    ]  # fmt: skip
    gate.set()
    assert len(list(results)) == 2
    assert sweep.waiting() == []


def test_deadline_of_all_is_the_sum_of_the_limits_unless_given() -> None:
    assert Limits(1, 2, 3, 4).total_s == 10
    assert Limits(1, 2, 3, 4, run_s=5).total_s == 5
