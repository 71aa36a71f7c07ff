"""A node whose agent floods or lies while a launch runs: the head stays able to stop, and says who it was."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launch.reach import another_head
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.supervise import supervise
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.hostile.node import MARK, HostileTransport, Orders
from tests.clusterctl.launch.conftest import bench, shared_cluster  # noqa: F401
from tests.clusterctl.launch.harness import LIMITS, QUICK, WAIT, Launch, tagged, wait_until

HELLO = {
    "type": "hello", "shared": False, "cores": 2, "python_found": True, "workdir_found": True, "ends_at_logout": None,
    "same_job": [], "port": None, "addresses": [],
}  # fmt: skip
BEGUN = [{"type": "started", "pid": 7}, {"type": "rank", "rank": 1, "pid": 8}]
BEAT = {"type": "beat", "ranks": {"1": {"step": 1, "phase": "data", "age_s": 0.1}}}


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


class HostileLaunch(Launch):
    """The launch of a plan whose second node says `flood` for ever once it has begun."""

    def __init__(self, plan, flood: Iterator[bytes], rules: Rules | None = None) -> None:
        def says(verb: str, args: dict[str, Any], orders: Orders) -> Iterator[bytes]:
            yield MARK
            if verb != "agent":  # the look at the end
                yield b"{}\n"
                return
            yield line(HELLO)
            probe = wait_for(orders, "probe")
            yield line({"type": "probed", "errors": dict.fromkeys(probe["addresses"])})
            wait_for(orders, "start")
            yield from map(line, BEGUN)
            yield from flood

        self.transport = HostileTransport({"node-2": says}, ParamikoTransport())
        super().__init__(plan, rules)

    def _work(self) -> None:
        try:
            self._result = supervise(
                self.plan, Cluster(self.plan.nodes, self.transport, LIMITS), on_update=self._see,
                stop=self.stop.is_set, kill=self.kill.is_set, rules=self.rules,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._result = error


def wait_for(orders: Orders, op: str) -> dict[str, Any]:
    while True:
        order = json.loads(orders.get(timeout=20))
        if order["op"] == op:
            return order


def forever(message: dict[str, Any]) -> Iterator[bytes]:
    data = line(message)
    while True:
        yield data


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


SLOW = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ({"type": "log", "rank": 1, "text": "x" * 200_000 + "\n", "at": 0, "end": 200_001}, 1.0),
        pytest.param(
            {"type": "log", "rank": 1, "text": "x" * 200_000 + "\n", "at": 0, "end": 200_001},
            30.0,
            marks=SLOW,
        ),
        pytest.param(BEAT, 30.0, marks=SLOW),
        pytest.param({"type": "started", "pid": 9}, 30.0, marks=SLOW),
        pytest.param(
            {"type": "fact", "kind": "xid", "text": "x" * 900, "age_s": 0, "detail": "79"},
            1.0,
            marks=SLOW,
        ),
    ],
)
def test_flood_holds_up_no_stop_and_fills_neither_memory_nor_disk(bench, message, seconds) -> None:  # noqa: F811
    plan = bench.plan(WAIT, timing=replace(QUICK, grace_s=1.0))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    launch = HostileLaunch(plan, forever(message))
    wait_until(lambda: launch.log(0), 15)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, seconds + 5)
    begun = time.monotonic()
    launch.stop.set()
    result = launch.result(60)
    assert (result.exit_code, result.reason) == (130, "stopped by the user")
    # grace, and what a node that never says `gone` is waited for
    assert time.monotonic() - begun < plan.timing.grace_s + 10 + 12
    assert tagged(plan.run_id) == []
    assert any("node-2" in words for words in result.unconfirmed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 << 10
    assert size_of(plan.run_dir) < (10 + 2 * (seconds + 30)) * (1 << 20)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"type": "probed", "errors": {"elsewhere": None}}, "it tried addresses that were not requested"),
        ({"type": "rank", "rank": 0, "pid": 9}, "it sends data of rank 0, which is not its own"),
        ({"type": "rank", "rank": 1, "pid": 9}, "rank 1 started twice"),
        (HELLO, "it reported twice that it is ready"),
        ({**HELLO, "addresses": ["$(touch x)"]}, "addresses[0] should be an address"),
        ({**HELLO, "addresses": ["-oProxyCommand=x"]}, "addresses[0] should be an address"),
        ({"type": "telemetry", "text": "{}\n", "at": 0, "end": 3}, "telemetry of a rank 0 that is not its own"),
        ({"type": "beat", "ranks": {"0": {"step": 1, "phase": "x", "age_s": 1}}}, "not its own"),
        ({"type": "log", "rank": "../../x", "text": "", "at": 0, "end": 0}, "rank should be a whole number"),
        ({"type": "rank_ended", "rank": 1, "code": 1, "how": "x" * 9999}, "how should be a text"),
        ({"type": "gone"}, "left should be there"),
        ({"type": "\u001b]0;x\u0007"}, "type should be one of"),
        ([], "type should be one of"),
    ],
)  # fmt: skip
def test_what_no_agent_says_loses_the_node_and_ends_the_run(bench, message, words) -> None:  # noqa: F811
    plan = bench.plan(WAIT)
    result = HostileLaunch(plan, iter([line(message)])).result(60)
    assert result.exit_code == 3
    assert result.reason.startswith("node-2 was lost: ")
    assert words in result.reason
    assert result.reason.isprintable()
    assert tagged(plan.run_id) == []


def test_node_that_alone_names_another_head_hides_no_rank(bench, monkeypatch) -> None:  # noqa: F811
    """It is waited for that the run's file or the other nodes say so, too."""
    monkeypatch.setattr(another_head, "BELIEVED_S", 1.0)
    plan = bench.plan(WAIT)
    pause = threading.Event()

    def claims() -> Iterator[bytes]:
        while not pause.wait(0.1):
            yield line({"type": "supervised", "head": "ann@two, process 2"})

    launch = HostileLaunch(plan, claims())
    wait_until(lambda: tagged(plan.run_id), 15)
    result = launch.result(60)
    assert (result.exit_code, tagged(plan.run_id)) == (3, [])
    assert result.reason.startswith("node-2 was lost: it says that ann@two, process 2 supervises")
    assert [one["text"] for one in launch.events() if one["event"] == "supervised"] == [
        result.reason.removeprefix("node-2 was lost: ")
    ]
    pause.set()


@pytest.mark.long
def test_agents_are_kept_while_a_slow_node_is_waited_for(bench) -> None:  # noqa: F811
    """Nobody leaves for silence of the head: it asks after the first nodes while the last one dawdles."""
    plan = bench.plan("print('ran')", timing=replace(QUICK, lease_s=1.5, hello_s=10.0))

    def says(verb: str, args: dict[str, Any], orders: Orders) -> Iterator[bytes]:
        yield MARK
        if verb == "reap":
            facts = {"hostname": "n", "boot_id": "b", "python": "3", "time_s": 1.0, "boottime_s": 1.0, "user": "u"}  # fmt: skip
            yield line({"schema": 1, "verb": "reap", "node": facts, "sections": {}, "found": [], "left": [], "supervised": None})  # fmt: skip
            return
        begun = time.monotonic()
        while time.monotonic() - begun < 4.0:  # longer than two leases
            wait_for(orders, "ping")
        yield line(HELLO)
        probe = wait_for(orders, "probe")
        yield line({"type": "probed", "errors": dict.fromkeys(probe["addresses"])})
        wait_for(orders, "start")
        yield from map(line, BEGUN)
        yield line({"type": "rank_ended", "rank": 1, "code": 0, "how": "exit code 0"})
        yield line({"type": "ended", "code": 0, "tail": []})
        yield line({"type": "gone", "left": []})

    transport = HostileTransport({"node-2": says}, ParamikoTransport())
    result = supervise(plan, Cluster(plan.nodes, transport, LIMITS), on_update=lambda _: None)
    assert (result.exit_code, result.reason) == (0, "all ranks have ended well")
    assert (plan.run_dir / "ranks/0.log").read_text() == "ran\n"
