"""Carry out a launch plan: every node at hand before any starts, watched, stopped together, proved gone."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from clusterctl.errors import TransportError
from clusterctl.fanout import WIDTH, Fanout, in_order
from clusterctl.launch import journal
from clusterctl.launch.plan import LaunchPlan, Rendezvous, Share
from clusterctl.launch.run_dir import furnish
from clusterctl.launch.state import Death, NodeState, RunResult, RunState, cause
from clusterctl.nodes import Node, fold
from clusterctl.payload import ship
from clusterctl.payload.ask import ask
from clusterctl.transport.base import Connection, Limits, Progress, Transport
from trainer import telemetry

TICK_S = 0.2
PING_S = 5.0
REAP_S = 15.0  # for the proof: TERM, KILL and a look on each node


@dataclass(slots=True)
class _Wire:
    """One node's open channel."""

    share: Share
    connection: Connection
    stream: ship.PayloadStream


class _Failed(Exception):
    def __init__(self, code: int, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.code, self.facts = code, facts


def supervise(
    plan: LaunchPlan,
    transport: Transport,
    *,
    on_update: Callable[[RunState], None],
    stop: threading.Event,
    limits: Limits,
    kill: threading.Event | None = None,
) -> RunResult:
    """Run the plan to its end. Set `stop` for an orderly stop, `kill` to cut its grace short.

    Never raises for what happens on nodes; whatever happens, it ends with a look at every node.
    """
    return _Supervisor(plan, transport, on_update, stop, kill or threading.Event(), limits).run()


class _Supervisor:
    def __init__(
        self,
        plan: LaunchPlan,
        transport: Transport,
        on_update: Callable[[RunState], None],
        stop: threading.Event,
        kill: threading.Event,
        limits: Limits,
    ) -> None:
        self.plan, self.transport, self.limits = plan, transport, limits
        self.on_update, self.stop, self.kill = on_update, stop, kill
        self.state = RunState({node.name: NodeState() for node in plan.nodes})
        self.wires: dict[str, _Wire] = {}
        self.inbox: queue.SimpleQueue[tuple[str, dict[str, Any] | None, str]] = queue.SimpleQueue()
        self.hellos: dict[str, dict[str, Any]] = {}
        self.deaths: list[Death] = []
        self.started = False

    def run(self) -> RunResult:
        furnish(self.plan.run_dir, self.plan.run_id, self.plan.to_json())
        self.journal = journal.Journal(self.plan.run_dir)
        self.journal.write("plan", f"{self.plan.world_size} ranks on {len(self.plan.shares)} nodes")
        facts: dict[str, Any] = {}
        try:
            self._connect()
            meet = self._agree()
            self._start(meet)
            self._watch()
            code, reason = 0, "all ranks have ended well"
        except _Failed as failed:
            code, reason, facts = failed.code, str(failed), failed.facts
        except BaseException as error:
            self.journal.write("error", f"{type(error).__name__}: {error}")
            self._end_all(self.plan.timing.fail_grace_s)
            self._prove()
            raise
        self.state.failure = None if code == 0 else reason
        if code:
            self.journal.write("failure", reason)
            self.on_update(self.state)
        self._end_all(self.plan.timing.grace_s if code == 130 else self.plan.timing.fail_grace_s)
        leftovers, unconfirmed = self._prove()
        if code == 0 and (leftovers or unconfirmed):
            code, reason = 1 if leftovers else 3, "the run ended, but not everything is proved gone"
        self.journal.write(
            "end", reason, exit_code=code, leftovers=leftovers, unconfirmed=unconfirmed
        )
        self.journal.close()
        return RunResult(
            code, reason, leftovers=tuple(leftovers), unconfirmed=tuple(unconfirmed), **facts
        )

    # --- before the start ---

    def _connect(self) -> None:
        """Open an agent on every node; when one is out of reach nothing starts anywhere."""
        shares = {share.node: share for share in self.plan.shares}

        def work(node: Node, progress: Progress) -> _Wire:
            connection = self.transport.connect(node, self.limits, progress)
            try:
                args = self.plan.agent_args(shares[node])
                stream = ship.stream(
                    connection, "agent", args, start_timeout_s=self.plan.timing.hello_s
                )
            except BaseException:
                connection.close()
                raise
            return _Wire(shares[node], connection, stream)

        deadline_s = self.limits.tcp_s + self.limits.handshake_s + self.plan.timing.hello_s
        lost = []
        for result in Fanout(self.plan.nodes, work, deadline_s=deadline_s, width=WIDTH):
            if result.value is not None:
                self.wires[result.node.name] = result.value
            else:
                lost.append(result)
        if lost:
            first = in_order(self.plan.nodes, lost)[0]
            assert first.unreachable is not None
            names = fold([result.node.name for result in lost])
            raise _Failed(
                3,
                f"{names} cannot be reached, so nothing was started anywhere: "
                f"{first.unreachable.sentence()}",
                hint=first.unreachable.hint or f"leave it out: --exclude {names}",
            )
        for name, wire in self.wires.items():
            threading.Thread(target=self._listen, args=(name, wire), daemon=True).start()

    def _listen(self, name: str, wire: _Wire) -> None:
        """Pass one node's messages on; the last one is None with the reason."""
        while True:
            try:
                message = wire.stream.receive(1.0)
            except EOFError:
                self.inbox.put((name, None, wire.stream.stderr_tail() or "its agent has ended"))
                return
            except TransportError as error:
                self.inbox.put((name, None, f"{error.phase}: {error}"))
                return
            if message is not None:
                self.inbox.put((name, message, ""))

    def _agree(self) -> Rendezvous:
        """Wait for every agent's report, then choose address and port that work for all."""
        deadline = time.monotonic() + self.plan.timing.hello_s
        while len(self.hellos) < len(self.wires):
            self._turn()
            if time.monotonic() > deadline:
                late = fold([name for name in self.wires if name not in self.hellos])
                raise _Failed(3, f"{late} did not report within {self.plan.timing.hello_s:g} s")
            self._refuse_stop()
        for share in self.plan.shares:
            self._refuse_unfit(share.node.name, self.hellos[share.node.name])
        master = self.hellos[self.plan.master.node.name]
        if not master["free_ports"]:
            ports = ", ".join(map(str, self.plan.ports[:5]))
            raise _Failed(
                1, f"{self.plan.master.node.name}: no free master port ({ports} are taken)",
                hint="--master_port PORT names another one",
            )  # fmt: skip
        address = self.plan.address
        deaf = [name for name, hello in self.hellos.items() if not hello["resolves"]]
        if deaf and not self.plan.address_fixed and master["own_address"]:
            address, deaf = master["own_address"], []
        if deaf:
            raise _Failed(
                1, f"{fold(deaf)} cannot resolve the master address {address}",
                hint="--master_addr ADDRESS names one that every node can reach",
            )  # fmt: skip
        return Rendezvous(address, master["free_ports"][0])

    def _refuse_unfit(self, name: str, hello: dict[str, Any]) -> None:
        if not hello["python_found"]:
            raise _Failed(
                1, f"{name}: there is no {self.plan.python}",
                hint="the environment must stand at the same path on every node; --python names it",
            )  # fmt: skip
        if not hello["workdir_found"]:
            raise _Failed(1, f"{name}: there is no folder {self.plan.workdir}", hint="--workdir")
        if hello["same_job"]:
            found = hello["same_job"][0]
            raise _Failed(
                1, f"{name}: the same job runs already (run {found['run']}, pid {found['pid']})",
                hint="stop it first, or give this one other --outputs",
            )  # fmt: skip

    def _start(self, meet: Rendezvous) -> None:
        self.journal.write("start", f"ranks meet at {meet.address}:{meet.port}")
        self.started = True
        for node in self.state.nodes.values():
            # Agents beat from now on; the first may have said hello long before the last.
            node.text, node.heard_s = "starting", time.monotonic()
        env = self.plan.environment.values()
        for wire in self.wires.values():
            argv = self.plan.argv(wire.share, meet)
            self._send(wire, {"op": "start", "argv": argv, "env": env, "address": meet.address})

    # --- while it runs ---

    def _watch(self) -> None:
        timing = self.plan.timing
        began = pinged = time.monotonic()
        while not all(node.is_over for node in self.state.nodes.values()):
            self._turn()
            self._refuse_stop()
            now = time.monotonic()
            if now - pinged > min(PING_S, timing.lease_s / 4):
                pinged = now
                for wire in self.wires.values():
                    self._send(wire, {"op": "ping"})
            for name, node in self.state.nodes.items():
                if not node.is_over and now - node.heard_s > timing.silent_s:
                    why = f"{name} has said nothing for {timing.silent_s:g} s"
                    self._lose(name, why)
                    raise _Failed(3, why)
            death = cause(self.deaths, now)
            if death is not None:
                self._fail_of(death)
            if timing.start_s and self.state.step is None and now - began > timing.start_s:
                raise _Failed(
                    1, f"no step within {timing.start_s:g} s of the start", hint="--start-timeout"
                )

    def _refuse_stop(self) -> None:
        if self.stop.is_set():
            raise _Failed(130, "stopped by the user")

    def _turn(self) -> None:
        """Take in what has arrived; returns after one tick at the latest. Raises on a failure."""
        try:
            name, message, why = self.inbox.get(timeout=TICK_S)
        except queue.Empty:
            return
        while True:
            self._take(name, message, why)
            try:
                name, message, why = self.inbox.get_nowait()
            except queue.Empty:
                break
        self.on_update(self.state)

    def _take(self, name: str, message: dict[str, Any] | None, why: str) -> None:
        node = self.state.nodes[name]
        node.heard_s = time.monotonic()
        if message is None:
            if not node.is_over:
                self._lose(name, why)
                raise _Failed(3, f"{name} was lost: {why}")
            return
        kind = message.get("type")
        if kind == "hello":
            self.hellos[name] = message
            node.shared, node.text = message["shared"], "ready"
            if not node.shared:
                self.journal.write("unshared", "its logs come over the wire", node=name)
        elif kind == "rank":
            self.journal.write("rank", f"rank {message['rank']} is pid {message['pid']}", node=name)
            node.text = "running"
        elif kind == "beat":
            node.ranks = {int(rank): beat for rank, beat in message["ranks"].items()}
        elif kind == "telemetry":
            self._take_telemetry(node, message["text"])
        elif kind == "log":
            with (self.plan.run_dir / "ranks" / f"{int(message['rank'])}.log").open("a") as file:
                file.write(message["text"])
        elif kind == "rank_ended":
            self._rank_ended(name, message)
        elif kind == "failed":
            raise _Failed(1, f"{name}: {message['text']}")
        elif kind == "ended":
            node.code = message["code"]
            if node.code != 0:
                self._starter_ended(name, message)
        elif kind == "gone":
            node.is_over, node.text = True, "done" if node.code == 0 else "stopped"

    def _take_telemetry(self, node: NodeState, text: str) -> None:
        if not node.shared:
            with (self.plan.run_dir / telemetry.FILE).open("a") as file:
                file.write(text)
        for line in text.splitlines():
            record = telemetry.decode(line)
            if isinstance(record, telemetry.StepRecord):
                self.state.step = record
            elif record is not None:
                self.state.events.append(record)

    def _rank_ended(self, name: str, message: dict[str, Any]) -> None:
        rank, code = message["rank"], message["code"]
        self.journal.write("rank-ended", f"rank {rank}: {message['how']}", node=name, code=code)
        if code != 0:
            now = time.monotonic()
            self.deaths.append(Death(name, rank, code, message["how"], message["tail"], now))

    def _starter_ended(self, name: str, message: dict[str, Any]) -> None:
        """torchrun has ended badly; of a rank, if one is known, else of itself."""
        death = cause(self.deaths, math.inf)
        if death is not None:
            self._fail_of(death)
        what = f"what starts its ranks ended with code {message['code']}"
        raise _Failed(1, f"{name}: {what}", last_lines=self._shown(message["tail"]))

    def _fail_of(self, death: Death) -> NoReturn:
        raise _Failed(
            1, f"rank {death.rank} on {death.node}: {death.how}",
            failed_rank=death.rank, last_lines=self._shown(death.tail),
        )  # fmt: skip

    def _shown(self, lines: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.plan.environment.redact(line) for line in lines)

    def _lose(self, name: str, why: str) -> None:
        node = self.state.nodes[name]
        node.lost, node.is_over, node.text = why, True, "lost"
        self.journal.write("lost", why, node=name)

    # --- the end ---

    def _end_all(self, grace_s: float) -> None:
        """Stop what runs and wait for every agent's word, but not for ever."""
        hurried = False
        for name, wire in self.wires.items():
            if not self.state.nodes[name].is_over:
                self._send(wire, {"op": "stop", "grace_s": grace_s})
        deadline = time.monotonic() + grace_s + 10.0
        while time.monotonic() < deadline and self.started:
            if all(node.is_over for node in self.state.nodes.values()):
                break
            try:
                self._turn()
            except _Failed:
                continue  # the first failure is the one that counts
            if self.kill.is_set() and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + 10.0)
                for wire in self.wires.values():
                    self._send(wire, {"op": "stop", "grace_s": 0})
        for wire in self.wires.values():
            wire.stream.close()
            wire.connection.close()

    def _prove(self) -> tuple[list[str], list[str]]:
        """Look at every node anew, end what is left, and say what could not be ended or seen."""
        if not self.started:
            return [], []
        args = {"run": self.plan.run_id, "kill": True, "grace_s": self.plan.timing.fail_grace_s}
        leftovers, unconfirmed = [], []
        nodes = self.plan.nodes
        sweep = list(
            ask(
                nodes,
                self.transport,
                "reap",
                args,
                limits=self.limits,
                width=WIDTH,
                timeout_s=REAP_S,
            )
        )
        for result in in_order(nodes, sweep):
            if result.value is None:
                assert result.unreachable is not None
                unconfirmed.append(f"{result.node.name}: {result.unreachable.sentence()}")
                continue
            leftovers += [
                f"{result.node.name}: pid {left['pid']} ({left['command']}, state {left['state']})"
                for left in result.value["left"]
            ]
        return leftovers, unconfirmed

    def _send(self, wire: _Wire, message: dict[str, Any]) -> None:
        try:
            wire.stream.send(message)
        except TransportError:
            pass  # its listener reports the loss
