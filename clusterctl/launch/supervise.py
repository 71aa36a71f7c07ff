"""Carry out a launch plan: connect to all nodes, start, watch, stop everywhere, verify."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from clusterctl.launch import error_line, incidents, journal
from clusterctl.launch.agent_connections import AgentConnections, AgentMessage
from clusterctl.launch.hang import Look, StepClock
from clusterctl.launch.log_copies import Copies
from clusterctl.launch.plan import LaunchPlan, Rendezvous
from clusterctl.launch.rendezvous import candidates, choose_address
from clusterctl.launch.run_dir import furnish
from clusterctl.launch.state import (
    SETTLE_S,
    Death,
    NodeState,
    RunFailed,
    RunResult,
    RunState,
    cause,
)
from clusterctl.launch.termination import prove_gone
from clusterctl.nodes import fold
from clusterctl.remote.fanout import in_order
from clusterctl.transport.base import Limits, Transport
from trainer.runlog import telemetry

TICK_S = 0.2
PING_S = 5.0
SLEPT_S = 3.0  # between two looks: longer only when the head itself did not run
ASKED_TO_STOP = 130  # a rank's exit code after SIGTERM and a checkpoint (trainer.train)


class Flag(Protocol):
    """What a signal's handler raises."""

    def is_set(self) -> bool: ...


def supervise(
    plan: LaunchPlan,
    transport: Transport,
    *,
    on_update: Callable[[RunState], None],
    stop: Flag,
    limits: Limits,
    kill: Flag | None = None,
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
        stop: Flag,
        kill: Flag,
        limits: Limits,
    ) -> None:
        self.plan, self.transport, self.limits = plan, transport, limits
        self.on_update, self.stop, self.kill = on_update, stop, kill
        self.state = RunState({node.name: NodeState() for node in plan.nodes})
        self.agents = AgentConnections(plan, transport, limits)
        self.shares = {share.node.name: share for share in plan.shares}
        self.hellos: dict[str, dict[str, Any]] = {}
        self.addresses: list[str] = []  # of the first node, to be knocked at
        self.knocks: dict[str, dict[str, str | None]] = {}
        self.deaths: list[Death] = []
        self.starter_ended_s = math.inf  # when a torchrun ended because of one of these
        self.started = False
        self.pinged_s = time.monotonic()
        self.clock = StepClock(plan.timing, time.monotonic())
        self.look: Look | None = None  # at ranks that take no step, before they are stopped
        self.arrived: deque[AgentMessage] = deque()  # taken from the inbox, not looked at yet

    def run(self) -> RunResult:
        furnish(self.plan.run_dir, self.plan.run_id, self.plan.to_json())
        self.journal = journal.Journal(self.plan.run_dir)
        self.copies = Copies(self.plan.run_dir, self.journal)
        self.journal.write("plan", f"{self.plan.world_size} ranks on {len(self.plan.shares)} nodes")
        facts: dict[str, Any] = {}
        try:
            self._connect()
            meet = self._agree()
            self._start(meet)
            self._watch()
            code, reason = 0, "all ranks have ended well"
        except RunFailed as failed:
            code, reason, facts = failed.exit_code, str(failed), failed.facts
        except BaseException as error:
            self.journal.write("error", f"{type(error).__name__}: {error}")
            self._end_all(self.plan.timing.fail_grace_s)
            self._prove()
            raise
        if self.look is not None:
            self.look.close()
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

        def meanwhile() -> None:
            self._refuse_stop()
            self._ping()

        lost = in_order(self.plan.nodes, self.agents.start(meanwhile))
        if lost:
            assert lost[0].unreachable is not None
            names = fold([result.node.name for result in lost])
            raise RunFailed(
                3,
                f"{names} cannot be reached, so nothing was started anywhere: "
                f"{lost[0].unreachable.sentence()}",
                hint=lost[0].unreachable.hint or f"leave it out: --exclude {names}",
            )

    def _agree(self) -> Rendezvous:
        """Wait for every agent's report, then find an address and port that all nodes reach."""
        first = self.plan.master.node.name

        def judge_first() -> None:
            # At once: of two concurrent launches one loses here, and must not keep the other's
            # nodes.
            if first in self.hellos:
                self._refuse_unfit(first, self.hellos[first])

        self._wait_for(self.hellos, "did not report", judge_first)
        for node in self.plan.nodes:
            self._refuse_unfit(node.name, self.hellos[node.name])
        port = self.hellos[first]["port"]
        self.addresses = addresses = candidates(self.plan, self.hellos[first])
        self.agents.send_all({"op": "knock", "addresses": addresses, "port": port})
        self._wait_for(self.knocks, "did not say whether they reach the first node")
        return Rendezvous(choose_address(self.plan, addresses, self.knocks), port)

    def _wait_for(
        self, answers: Mapping[str, Any], what: str, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Until all nodes have answered. `meanwhile` may raise to give up."""
        patience_s = self.plan.timing.hello_s
        deadline = time.monotonic() + patience_s
        while len(answers) < len(self.plan.shares):
            self._turn()
            self._refuse_stop()
            meanwhile()
            if time.monotonic() > deadline:
                late = [node.name for node in self.plan.nodes if node.name not in answers]
                raise RunFailed(3, f"{fold(late)} {what} within {patience_s:g} s")

    def _refuse_unfit(self, name: str, hello: dict[str, Any]) -> None:
        if not hello["python_found"]:
            raise RunFailed(
                1,
                f"{name}: there is no {self.plan.python}",
                hint="the environment must stand at the same path on every node; --python names it",
            )
        if not hello["workdir_found"]:
            raise RunFailed(1, f"{name}: there is no folder {self.plan.workdir}", hint="--workdir")
        if hello["same_job"]:
            found = hello["same_job"][0]
            raise RunFailed(
                1,
                f"{name}: the same job runs already (run {found['run']}, pid {found['pid']})",
                hint="stop it first, or give this one other --outputs",
            )
        if name == self.plan.master.node.name and hello["port"] is None:
            ports = ", ".join(map(str, self.plan.ports[:5]))
            raise RunFailed(
                1,
                f"{name}: no free master port ({ports} are taken)",
                hint="--master_port PORT names another one",
            )

    def _start(self, meet: Rendezvous) -> None:
        self.journal.write("start", f"ranks meet at {meet.address}:{meet.port}")
        self.started = True
        for node in self.state.nodes.values():
            # Agents beat from now on; the first may have said hello long before the last.
            node.text, node.heard_s = "starting", time.monotonic()
        env = self.plan.environment.values()
        for share in self.plan.shares:
            order = {"op": "start", "argv": self.plan.argv(share, meet), "env": env}
            self.agents.send(share.node.name, {**order, "address": meet.address})

    # --- while it runs ---

    def _watch(self) -> None:
        timing = self.plan.timing
        looked = self.clock.since_s = time.monotonic()
        while not all(node.is_over for node in self.state.nodes.values()):
            self._turn()
            self._refuse_stop()
            now = time.monotonic()
            if now - looked > SLEPT_S:
                # This program was stopped (Ctrl-Z, a laptop's lid), not the nodes: what they said
                # meanwhile is still on its way to the inbox.
                for node in self.state.nodes.values():
                    node.heard_s += now - looked
                self.clock.slept(now - looked)
            looked = now
            for name, node in self.state.nodes.items():
                if not node.is_over and now - node.heard_s > timing.silent_s:
                    why = f"{name} has said nothing for {timing.silent_s:g} s"
                    self._lose(name, why)
                    raise RunFailed(3, why)
            self._fail_of_a_death(now)
            self._mind_the_steps(now)
        if self.starter_ended_s < math.inf:
            self._fail_of_a_death(math.inf)

    def _mind_the_steps(self, now: float) -> None:
        """A run that takes no step is looked at and then stopped; while it is, all else goes on."""
        self.clock.is_saving = self.state.is_saving
        look, is_late = self.look, self.clock.is_late(now)
        if look is None and is_late:
            why, limit_s = self.clock.sentence() + self._laggards(), self.plan.timing.look_s
            if not limit_s:
                raise RunFailed(1, why, hint=self.clock.hint)
            self._tell("hang", f"{why}: looking at all ranks, {limit_s:g} s at most")
            self.look = Look(self.plan, self.transport, self.limits)
        elif look is not None and not is_late:
            look.close()
            self.look = None
            self._tell("goes-on", "a step came, the run is not stopped")
        elif look is not None and look.is_over(now):
            look.close()
            self._hung(look)

    def _hung(self, look: Look) -> NoReturn:
        """Say and record what was found; the stop follows, whatever that was."""
        why, run_dir = self.clock.sentence() + self._laggards(), self.plan.run_dir
        headline = self.plan.environment.redact(look.headline)
        step = self.clock.step.step if self.clock.step else None
        found = look.to_json(run_dir)
        incident = {"incident": "hang", "text": why, "time_s": time.time(), "step": step, **found}
        self._tell("verdict", headline, stacks=found["stacks"], error=look.error)
        try:
            incidents.record(run_dir, incident)
        except OSError as error:
            self.journal.write("error", f"{incidents.FILE}: {error}")
        raise RunFailed(
            1,
            why,
            hint=None if look.is_sure else self.clock.hint,
            failed_rank=look.culprit,
            verdict=headline,
            stacks=str(look.folder) if look.folder else None,
        )

    def _tell(self, name: str, text: str, **data: Any) -> None:
        """To the journal, and to whoever watches now."""
        self.journal.write(name, text, **data)
        self.state.add(telemetry.Event(name, text, data, time_s=time.time()))
        self.on_update(self.state)

    def _laggards(self) -> str:
        """Which ranks have not shown a heartbeat, as the end of a sentence."""
        beating = self.state.beats
        silent = [str(rank) for rank in range(self.plan.world_size) if rank not in beating]
        if not silent or not beating:
            return ""
        return f"; rank {', '.join(silent[:8])}{' …' * (len(silent) > 8)} never showed a heartbeat"

    def _refuse_stop(self) -> None:
        if self.stop.is_set():
            raise RunFailed(130, "stopped by the user")

    def _turn(self) -> None:
        """Take in what has arrived; returns after one tick at the latest. Raises on a failure."""
        self._ping()
        started = time.monotonic()
        arrived, is_full = self.agents.inbox.take(0.0 if self.arrived else TICK_S)
        self.arrived.extend(arrived)
        while self.arrived:  # one that raises leaves the others for the next turn
            message = self.arrived.popleft()
            self._take(message.node, message.data, message.why)
        if arrived:
            self.on_update(self.state)
        if is_full:  # a node that says more than it should gets no more of this program than that
            time.sleep(max(0.0, TICK_S - (time.monotonic() - started)))

    def _ping(self) -> None:
        """Renew the agents' lease, also while a slow node still connects."""
        now = time.monotonic()
        if now - self.pinged_s > min(PING_S, self.plan.timing.lease_s / 4):
            self.pinged_s = now
            self.agents.send_all({"op": "ping"})

    def _take(self, name: str, message: dict[str, Any] | None, why: str) -> None:
        node = self.state.nodes[name]
        node.heard_s = time.monotonic()
        if message is None:
            if not node.is_over:
                self._lose(name, why)
                raise RunFailed(3, f"{name} was lost: {why}")
            return
        kind, share = message["type"], self.shares[name]
        if "rank" in message and message["rank"] not in share.ranks:
            self._disbelieve(name, f"it speaks of rank {message['rank']}, which is not its own")
        if kind == "hello":
            self.hellos[name] = message
            node.shared, node.text = message["shared"], "ready"
            if not node.shared:
                self.journal.write("unshared", "its logs come over the wire", node=name)
        elif kind == "knocked":
            if message["errors"].keys() != set(self.addresses):
                self._disbelieve(name, "it knocked at addresses that it was not asked to")
            self.knocks[name] = message["errors"]
        elif kind == "rank":
            if message["rank"] in node.pids:
                self._disbelieve(name, f"rank {message['rank']} began twice")
            node.pids[message["rank"]] = message["pid"]
            self.journal.write("rank", f"rank {message['rank']} is pid {message['pid']}", node=name)
            node.text = "running"
        elif kind == "beat":
            node.ranks = {int(rank): beat for rank, beat in message["ranks"].items()}
            if not node.ranks.keys() <= set(share.ranks):
                self._disbelieve(name, "it sends heartbeats of ranks that are not its own")
        elif kind == "telemetry":
            if share.first_rank != 0:
                self._disbelieve(name, "it sends the telemetry of a rank 0 that is not its own")
            self._take_telemetry(name, node, message["text"])
        elif kind == "log":
            self.copies.append(f"ranks/{message['rank']}.log", message["text"], name)
        elif kind == "rank_ended":
            if message["rank"] in node.ended:
                self._disbelieve(name, f"rank {message['rank']} ended twice")
            node.ended.add(message["rank"])
            self._rank_ended(name, message)
        elif kind == "failed":
            raise RunFailed(1, f"{name}: {message['text']}")
        elif kind == "ended":
            node.code = message["code"]
            if node.code != 0:
                self._starter_ended(name, message)
        elif kind == "gone":
            node.is_over, node.text = True, "done" if node.code == 0 else "stopped"

    def _disbelieve(self, name: str, why: str) -> NoReturn:
        """A node whose agent says what no agent says is none that a run can count on."""
        if not self.state.nodes[name].is_over:
            self._lose(name, why)
        raise RunFailed(3, f"{name} was lost: {why}")

    def _take_telemetry(self, name: str, node: NodeState, text: str) -> None:
        if not node.shared:
            self.copies.append(telemetry.FILE, text, name)
        for line in text.splitlines():
            record = telemetry.decode(line)
            if record is not None:
                self.clock.heard(record, time.monotonic())
            if isinstance(record, telemetry.StepRecord):
                self.state.step = record
            elif record is not None:
                self.state.add(record)

    def _rank_ended(self, name: str, message: dict[str, Any]) -> None:
        rank, code, how = message["rank"], message["code"], message["how"]
        tail = message.get("tail", ())
        error = error_line.sentence(tail)
        why = f": {self.plan.environment.redact(error)}" if error else ""
        self.journal.write("rank-ended", f"rank {rank}: {how}{why}", node=name, code=code)
        if code != 0:
            self.deaths.append(Death(name, rank, code, how + why, tail, time.monotonic(), error))

    def _starter_ended(self, name: str, message: dict[str, Any]) -> None:
        """torchrun has ended badly; of a rank, if one is known, else of itself."""
        if self.deaths:
            self.starter_ended_s = min(self.starter_ended_s, time.monotonic())
            return
        what = f"what starts its ranks ended with code {message['code']}"
        raise RunFailed(1, f"{name}: {what}", last_lines=self._shown(message["tail"]))

    def _fail_of_a_death(self, now: float) -> None:
        """Raise once the cause is known. After torchrun has failed, an unseen end counts too."""
        if now - self.starter_ended_s > SETTLE_S:
            now = math.inf
        death = cause(self.deaths, now)
        if death is None:
            return
        if death.code == ASKED_TO_STOP:
            raise RunFailed(130, "its ranks were asked to stop (clusterctl stop)")
        raise RunFailed(
            1,
            f"rank {death.rank} on {death.node}: {death.how}",
            failed_rank=death.rank,
            last_lines=self._shown(death.tail),
        )

    def _shown(self, lines: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.plan.environment.redact(line) for line in error_line.shown(lines))

    def _lose(self, name: str, why: str) -> None:
        node = self.state.nodes[name]
        node.lost, node.is_over, node.text = why, True, "lost"
        self.journal.write("lost", why, node=name)

    # --- the end ---

    def _end_all(self, grace_s: float) -> None:
        """Stop what runs and wait for every agent's word, but not for ever."""
        hurried = False
        for name, node in self.state.nodes.items():
            if not node.is_over:
                self.agents.send(name, {"op": "stop", "grace_s": grace_s})
        deadline = time.monotonic() + grace_s + 10.0
        while time.monotonic() < deadline and self.started:
            if all(node.is_over for node in self.state.nodes.values()):
                break
            try:
                self._turn()
            except RunFailed:
                continue  # the first failure is the one that counts
            if self.kill.is_set() and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + 10.0)
                self.agents.send_all({"op": "stop", "grace_s": 0})
        self.agents.close()

    def _prove(self) -> tuple[list[str], list[str]]:
        if not self.started:
            return [], []
        return prove_gone(self.plan, self.transport, self.limits)
