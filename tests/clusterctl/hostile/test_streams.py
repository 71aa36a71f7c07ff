"""The verbs behind longer conversations beside a hostile node: launch, active tests, push, data, watch."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.profile import Profile
from clusterctl.errors import TransportError
from clusterctl.launch import attempt
from clusterctl.launch import supervise as supervising
from clusterctl.launch.leftovers import prove_gone
from clusterctl.launch.plan import LaunchPlan, Timing
from clusterctl.launch.state import Left
from clusterctl.manifests import verbs as data
from clusterctl.nodes import Node
from clusterctl.output import Output
from clusterctl.preflight.active import run as active_run
from clusterctl.preflight.active.plan import Plan
from clusterctl.preflight.active.run import run_active
from clusterctl.remote import session_pool
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.inbox import NodeMessage
from clusterctl.remote.messages.verbs import read_line
from clusterctl.remote.session_pool import SessionPool
from clusterctl.runs import owner
from clusterctl.transfer import push
from clusterctl.transport import channels, fabric_library
from clusterctl.transport.base import Limits
from dashboards import once
from dashboards.feeds.watch_decoder import Decoder
from dashboards.model.samples import NodeDown, Tick
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from tests.clusterctl.hostile.campaign import TIMES, repeat
from tests.clusterctl.hostile.mangle import mangle
from tests.clusterctl.hostile.node import (
    MARK,
    HostileConnection,
    HostileTransport,
    Orders,
    Says,
    next_order,
)
from tests.clusterctl.launch.harness import Bench
from tests.dashboards.feeds.test_watch_decoder import KEY

NODES = [Node("good"), Node("evil")]
LIMITS = Limits(tcp_s=1.0, handshake_s=1.0, channel_s=1.0, command_s=2.0)
FACTS = {"hostname": "n", "boot_id": "b", "python": "3.11.7", "time_s": 1e9, "boottime_s": 5.0, "user": "u"}  # fmt: skip


class Nobody:
    """There is no other transport: all nodes are made here."""

    def connect(self, *_: Any) -> Any:
        raise AssertionError


def both(
    answer: Callable[[str, dict[str, Any], Orders], Iterator[dict[str, Any]]],
    rng: random.Random,
    evils: Sequence[str] = ("evil",),
) -> HostileTransport:
    """`good` gives its answers as they are, of each of `evils` half of the lines are mangled."""

    def good(verb: str, args: dict[str, Any], orders: Orders) -> Iterator[bytes]:
        yield MARK
        for message in answer(verb, args, orders):
            yield json.dumps(message).encode() + b"\n"

    def evil(rng: random.Random) -> Says:
        def says(verb: str, args: dict[str, Any], orders: Orders) -> Iterator[bytes]:
            yield MARK
            for message in answer(verb, args, orders):
                line = json.dumps(message).encode() + b"\n"
                yield mangle(rng, line) if rng.random() < 0.5 else line

        return says

    # Of several each has numbers of its own: they speak in threads.
    own = [rng] if len(evils) == 1 else [random.Random(rng.random()) for _ in evils]
    bad = {name: evil(one) for name, one in zip(evils, own, strict=True)}
    return HostileTransport({"good": good, **bad}, Nobody())


def envelope(verb: str, **more: Any) -> dict[str, Any]:
    return {"schema": 1, "verb": verb, "node": FACTS, "sections": {}, **more}


LEFT = {"pid": 7, "ppid": 1, "state": "D", "command": "python3", "waits_in": None, "rank": 1, "age_s": 3.0}  # fmt: skip


@pytest.mark.parametrize("times", TIMES)
def test_look_for_what_is_left_of_a_run(times: int, tmp_path: Path) -> None:
    plan = Bench(_Cluster(NODES, tmp_path), tmp_path).plan("pass", nodes=NODES)

    def reap(*_: Any) -> Iterator[dict[str, Any]]:
        yield envelope("reap", found=[LEFT], left=[LEFT], supervised=None)

    def work(rng: random.Random) -> None:
        leftovers, unconfirmed = prove_gone(plan, Cluster(plan.nodes, both(reap, rng), LIMITS))
        assert "good: pid 7 (python3, state D)" in leftovers
        assert all(words.isprintable() for words in [*leftovers, *unconfirmed])
        assert all(words.startswith("evil: ") for words in unconfirmed)

    repeat(times, "reap", work, 5.0)


@pytest.mark.parametrize("names", ["nobody", "another"])
def test_node_that_alone_says_that_it_has_another_head_is_not_proved_clean(
    names: str, tmp_path: Path
) -> None:
    """The run's file, which a head writes before it speaks to any node, tells of a real one."""
    plan = Bench(_Cluster(NODES, tmp_path), tmp_path).plan("pass", nodes=NODES)
    owned = {"host": "two", "pid": 7, "since_s": 1e9}
    if names == "another":
        (plan.run_dir / owner.FILE).write_text(json.dumps(owned))

    def good(*_: Any) -> Iterator[bytes]:
        yield MARK + json.dumps(envelope("reap", found=[], left=[], supervised=None)).encode()

    def evil(*_: Any) -> Iterator[bytes]:
        yield MARK + json.dumps(envelope("reap", found=[], left=[], supervised="ann@two")).encode()

    transport = HostileTransport({"good": good, "evil": evil}, Nobody())
    cluster = Cluster(plan.nodes, transport, LIMITS)
    if names == "another":
        with pytest.raises(Left, match="evil is supervised by ann@two"):
            prove_gone(plan, cluster)
        return
    leftovers, unconfirmed = prove_gone(plan, cluster)
    assert leftovers == ()
    doubt = (
        "it says that ann@two supervises the run, which neither the run's file nor all nodes say"
    )
    assert unconfirmed == (f"evil: {doubt}; nothing was ended there",)
    alone = Cluster([NODES[1]], transport, LIMITS)  # nobody else is asked
    assert prove_gone(plan, alone)[1] == unconfirmed


@pytest.mark.parametrize("times", TIMES)
def test_push(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed = SimpleNamespace(put=lambda file, remote: None)  # test_sftp.py has servers that lie
    monkeypatch.setattr(fabric_library, "over", lambda *_: handed)
    monkeypatch.setattr(channels, "ParamikoConnection", HostileConnection)
    source = tmp_path / "data"
    source.write_bytes(b"x" * 1000)
    plan = push.make_plan(source, "/elsewhere/data")

    def place(_: str, args: dict[str, Any], __: Orders) -> Iterator[dict[str, Any]]:
        if args["step"] == "prepare":
            yield envelope("push", part="/elsewhere/.part", dest="/elsewhere/data", there=False, same=True)  # fmt: skip

    def work(rng: random.Random) -> None:
        transport = both(place, rng)
        with push.packed(plan) as parcel:
            sweep = Fanout(NODES, lambda node, progress: push.deliver(parcel, Cluster(NODES, transport, LIMITS), node, progress), deadline_s=5.0)  # fmt: skip
            for result in sweep:
                assert result.node.name == "evil" or (result.value and result.value.state == "same")
                assert result.unreachable is None or "fault of" not in str(result.unreachable.hint), result  # fmt: skip

    repeat(times, "push", work, 5.0)


class Asking:
    """Stands for the process that reads the table: asks, and takes what answers come."""

    out = ""

    def __init__(self, job: data.Job, ahead: int, events: Any) -> None:
        self._events, self._open = events, set(range(12))
        for number in range(12):
            events.put(NodeMessage("", {"id": number, "what": "probe", "path": f"{number}.mp4"}))  # fmt: skip

    def answer(self, answers: Any) -> None:
        for answer in answers:
            assert set(answer) <= {"id", "error", "num_frames", "height", "width", "fps", "bytes", "cpu_s"}  # fmt: skip
            self._open.discard(answer["id"])
            if not self._open:
                self._open.add(-1)
                threading.Thread(target=self._events.put, args=(NodeMessage("", None),)).start()

    def no_more(self) -> None: ...

    def wait(self) -> int:
        return 0

    def close(self) -> None: ...


@pytest.mark.parametrize("times", TIMES)
def test_data(times: int, monkeypatch) -> None:
    monkeypatch.setattr(data, "Table", Asking)
    monkeypatch.setattr(data, "SILENT_S", 1.0)
    job = data.Job("probe", (), "/usr/bin/python3", 1, 0.1)

    def examine(_: str, __: dict[str, Any], orders: Orders) -> Iterator[dict[str, Any]]:
        yield {"ready": True, "workers": 1}
        while (order := next_order(orders, 0.3)) is not None:
            yield {"alive": True}
            for question in order.get("questions", ()):
                facts = {"num_frames": 9, "height": 64, "width": 64, "fps": 8.0, "bytes": 1}
                yield {"answers": [{"id": question["id"], **facts}]}

    def spread(transport: HostileTransport) -> tuple[data.Outcome, list[str]]:
        notes: list[str] = []
        return data.Spread(job, Cluster(NODES, transport, LIMITS)).run(notes.append), notes

    begun = threading.Event()

    def later(*given: Any) -> Iterator[bytes]:
        yield MARK
        begun.wait(4.0)
        yield from (json.dumps(one).encode() + b"\n" for one in examine(*given))

    def twice(verb: str, args: dict[str, Any], orders: Orders) -> Iterator[bytes]:
        """Is ready once more when it has been asked: that would be forgotten."""
        ready = json.dumps({"ready": True, "workers": 1}).encode() + b"\n"
        yield from (MARK, ready)
        while (order := next_order(orders)) is not None and "questions" not in order:
            pass
        begun.set()
        yield ready

    outcome, notes = spread(HostileTransport({"good": later, "evil": twice}, Nobody()))
    assert outcome.lost == {"evil": "it reported twice that it is ready"}
    assert (outcome.answered["good"], len(notes)) == (12, 1)

    def work(rng: random.Random) -> None:
        outcome, notes = spread(both(examine, rng))
        assert "good" not in outcome.lost
        assert outcome.answered["good"] > 0
        assert all(note.isprintable() for note in notes), notes

    repeat(times, "examine", work, 8.0)


@pytest.mark.parametrize("times", TIMES)
def test_active(times: int, monkeypatch) -> None:
    plan = Plan(nodes=("good", "evil"), device="cpu", devices={"good": 1, "evil": 1}, python="/usr/bin/python3", port=29517, shared=Path("/shared"), start_s=1.0, matmul_s=0.1, group_s=0.5, token_s=0.5)  # fmt: skip
    monkeypatch.setattr(session_pool, "ROUND_TRIP_S", 0.2)
    monkeypatch.setattr(active_run, "EXIT_S", 1.2)
    ask = SessionPool.ask
    monkeypatch.setattr(SessionPool, "ask", lambda self, orders, _: ask(self, orders, 0.1))

    def active(_: str, __: dict[str, Any], orders: Orders) -> Iterator[dict[str, Any]]:
        while (order := next_order(orders)) is not None and order["op"] != "none":
            one: dict[str, Any] = {"id": order["id"], "seconds": 0.1, "model": "cpu", "tflops": 0.1, "finite": True, "port": 40000, "latency_s": 0.001, "reduce_s": 0.01, "exchange_s": 0.02}  # fmt: skip
            told: dict[str, Any] = {
                "start": lambda o: {"ranks": [{"torch": "2.6", "model": "cpu", "device": "cpu"}] * len(o["devices"])},
                "work": lambda o, one=one: {"answers": [one] * len(o["orders"])},
                "listen": lambda o: {"port": o["ports"][0], "holder": "", "addresses": ["10.0.0.1"]},
                "probe": lambda o: {"why": [None] * len(o["where"])},
                "close_ports": lambda o: {},
                "files": lambda o: {"seconds": 0.1, "seen_s": 0.1, "bytes": 1 << 20},
            }[order["op"]](order)  # fmt: skip
            yield {"id": order["id"], **told}

    def work(rng: random.Random) -> None:
        said: list[str] = []
        run_active(plan, Cluster(NODES, both(active, rng), LIMITS, 2), profile=Profile(), machines={}, say=said.append)  # fmt: skip
        assert all(line.isprintable() for line in said)

    repeat(times, "active", work, 30.0)


@pytest.mark.parametrize("times", TIMES)
def test_watch(times: int) -> None:
    second = {"n": 2, "d": {"cpu": 0.5, "g0": [1, 2, 3, 4, 5, 6, 7], "procs": KEY["procs"]}, "step": 0.1, "x": [[1.0, "0000:0f:00", 79, "lost"]]}  # fmt: skip

    def work(rng: random.Random) -> None:
        decoder, state = Decoder("evil"), initial_state(["evil"], now_s=0.0, interval_s=1.0)
        for number in range(20):
            line = json.dumps(second if number else {"n": 1, "key": KEY}).encode()
            said = mangle(rng, line) if number and rng.random() < 0.5 else line
            try:
                decoder.take(said, float(number))
                sample: Any = decoder.sample(float(number))
            except TransportError as error:
                sample = NodeDown("evil", float(number), error.phase, str(error))
                decoder = Decoder("evil")
                decoder.take(json.dumps({"n": 1, "key": KEY}).encode(), float(number))
            state = fold(state, [sample, Tick(float(number))])
        once.write(state, Output())
        json.loads(json.dumps(once.as_json(state)))

    repeat(times, "watch", work, 5.0)


class _Cluster:
    """What `Bench` needs of one."""

    def __init__(self, nodes: list[Node], directory: Path) -> None:
        self.hostfile = directory / "nodes.txt"
        self.hostfile.write_text("".join(f"{node.name}\n" for node in nodes))


@pytest.mark.long
@pytest.mark.parametrize("times", TIMES)
def test_launch(times: int, tmp_path: Path, monkeypatch) -> None:
    """Whatever the second node says, the run ends, with a code of the table and a printable reason."""
    monkeypatch.setattr(attempt, "TICK_S", 0.02)
    bench = Bench(_Cluster(NODES, tmp_path), tmp_path)
    timing = Timing(grace_s=0.2, fail_grace_s=0.1, hello_s=1.0, silent_s=1.0, look_s=0.0)

    def agent(verb: str, args: dict[str, Any], orders: Orders) -> Iterator[dict[str, Any]]:
        if verb == "reap":
            yield envelope("reap", found=[], left=[], supervised=None)
            return
        if verb == "launch.warm":
            yield envelope(verb, error=None)
            return
        if verb == "launch.checkpoints":
            yield envelope(verb, complete=["epoch0-global_step5"], need=9, room=9 << 30, error=None)
            return
        first = args["first_rank"]
        yield {"type": "hello", "shared": False, "cores": 2, "python_found": True, "workdir_found": True, "ends_at_logout": None, "same_job": [], "port": 29500, "addresses": ["10.0.0.1"]}  # fmt: skip
        while (order := next_order(orders, 1.0)) is not None and order["op"] != "none":
            if order["op"] == "probe":
                yield {"type": "probed", "errors": dict.fromkeys(order["addresses"])}
            if order["op"] == "start":
                break
        yield {"type": "started", "pid": 5}
        yield {"type": "rank", "rank": first, "pid": 6}
        yield {"type": "beat", "ranks": {str(first): {"step": 1, "phase": "data", "age_s": 0.1}}}
        yield {"type": "log", "rank": first, "text": "hello\n", "at": 0, "end": 6}
        yield {"type": "rank_ended", "rank": first, "code": 0, "how": "exit code 0"}
        yield {"type": "ended", "code": 0, "tail": []}
        yield {"type": "gone", "left": []}

    plan: LaunchPlan | None = None

    def work(rng: random.Random) -> None:
        nonlocal plan
        plan = bench.plan("pass", nodes=NODES, timing=timing)
        rules = replace(bench.rules(plan, max_restarts=rng.choice([0, 1])), patience_s=0.0)
        cluster = Cluster(NODES, both(agent, rng), LIMITS)
        result = supervising.supervise(plan, cluster, on_update=lambda _: None, rules=rules)
        assert result.exit_code in (0, 1, 3, 93, 130)
        words = [result.reason, *result.last_lines, *result.leftovers, *result.unconfirmed]
        assert all(line.isprintable() for line in words), words
        assert (plan.run_dir / "events.jsonl").exists()
        assert result.exit_code or (plan.run_dir / "ranks/0.log").read_text() == "hello\n"

    repeat(times, "agent", work, 15.0)


def test_every_verb_has_a_campaign() -> None:
    from clusterctl.remote.messages.verbs import VERBS

    here = {"reap", "push", "examine", "active", "watch", "agent"}
    commands = {"shell", "census", "clock", "stacks", "stop", "kill"}
    here |= {"launch.checkpoints", "launch.warm", "sample"}
    commands |= {"launch.agents"}
    assert {name.split()[0] for name in VERBS} == here | commands
    assert callable(read_line)
