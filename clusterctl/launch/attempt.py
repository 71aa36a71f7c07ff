"""One attempt of a run: connect to all nodes, start, watch, stop everywhere, verify."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from checks import units
from clusterctl.launch import journal
from clusterctl.launch.causes.hangs import of_verdict
from clusterctl.launch.causes.kinds import LOST
from clusterctl.launch.end_cause import NODE_LOST, judge_end
from clusterctl.launch.hang import Inspection, why_hung
from clusterctl.launch.leftovers import prove_gone, prove_others_gone, this_head
from clusterctl.launch.node_reports import Lines, Reports, check_fitness, choose_address
from clusterctl.launch.plan import LaunchPlan, Rendezvous
from clusterctl.launch.reach.connections import Connections
from clusterctl.launch.reach.elsewhere import Elsewhere
from clusterctl.launch.root_cause import Judgement
from clusterctl.launch.state import Ended, Left, NodeState, RunFailed, RunState
from clusterctl.nodes import Node, fold
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import in_order
from clusterctl.remote.inbox import NodeMessage
from clusterctl.remote.session_pool import SessionPool

TICK_S, PACE_S = 0.2, 0.05
PING_S = 5.0
SLEPT_S = 3.0  # between two turns: longer only when the head itself did not run
Asked = Callable[[], bool]


@dataclass
class Attempt:
    """`stop()` ends it in order, `kill()` cuts the grace short. `positions` are those of each
    node's files, of a run that another head has started: this one takes it over."""

    plan: LaunchPlan
    cluster: Cluster
    state: RunState
    journal: journal.Journal
    on_update: Callable[[RunState], None]
    stop: Asked
    kill: Asked
    others: Sequence[Node] = ()  # nodes without a part in it
    may_follow: bool = False  # an attempt after this one
    positions: Mapping[str, dict[str, int]] | None = None
    on_start: Callable[[], None] = lambda: None
    on_steps: Callable[[], None] = lambda: None  # called again and again while steps are taken
    on_failure: Callable[[Collection[str]], object] = lambda lost: None  # before the stop

    def __post_init__(self) -> None:
        plan = self.plan
        self.state.nodes = {node.name: NodeState() for node in plan.nodes}
        self.reports = Reports(plan, self.state, self.journal, self.positions)
        self.clock, self.shares = self.reports.clock, self.reports.shares
        self.agents = SessionPool(
            self.cluster,
            verb="agent",
            args=lambda node: {
                **plan.agent_args(self.shares[node.name]),
                "resume": self.reports.resume(node.name),
                "head": this_head(),
            },
            start_timeout_s=plan.timing.hello_s,
        )
        self.started = False
        self.pinged_s = time.monotonic()
        self.inspection: Inspection | None = None  # of ranks that take no step
        self.arrived: deque[NodeMessage] = deque()  # taken from the inbox, not processed yet
        known = (plan, self.state, self.clock, self.agents)
        self.connections = Connections(*known, self._tell, Elsewhere(self.cluster, self.others))

    def run(self) -> Ended:
        """Raises only what no run expects; then everything has been stopped, too."""
        plan, facts = self.plan, dict[str, Any]()
        try:
            self._connect()
            if self.positions is None:
                self._start(self._agree())
            else:
                self._take_over()
            self._watch()
            code, reason = 0, "all ranks have ended well"
        except RunFailed as failed:
            code, reason, facts = failed.exit_code, str(failed), dict(failed.facts)
        except Left:
            self.agents.close()  # they keep the ranks for a supervisor that comes
            raise
        except BaseException as error:
            self.journal.write("error", f"{type(error).__name__}: {error}")
            self._end_all(plan.timing.fail_grace_s)
            raise
        finally:
            if self.inspection is not None:
                self.inspection.close()
        in_order = facts.pop("in_order", False)
        if code:
            self.state.failure = reason
            self.journal.write("failure", reason, exit_code=code)
            self.on_update(self.state)
        stood_still = code == 3 or self.inspection is not None
        grace_s = plan.timing.end_grace_s(code == 130 or in_order, stood_still)
        at_s, follows = time.monotonic(), self.may_follow and code in (1, 3)
        if follows and self.started:
            self.on_failure(self.reports.lost)
        left, unconfirmed = self._end_all(grace_s, follows, is_asked=code == 130)
        ended = Ended(code, reason, at_s, facts, None, {}, left, unconfirmed, self.reports.lost)
        ended = replace(ended, stopped=self.reports.stopped)
        return self._judged(ended) if code and self.started else ended

    def _judged(self, ended: Ended) -> Ended:
        """With the cause and, of a death, its rank and last lines: every rank has told its end."""
        code, facts, reason = ended.exit_code, dict(ended.facts), ended.reason
        found, more = facts.pop("judgement", None), facts.pop("more", {})
        if found is None:
            end = self.reports.end(code, reason, ended.at_s, ended.unconfirmed)
            found = judge_end(replace(end, starter_lines=facts.get("last_lines", ())))
            if code == 1 and found.death is not None:
                failed = self.reports.failure(found.death)
                reason, facts = str(failed), dict(failed.facts)
                facts.pop("in_order", None)
            elif code == 1 and found.root.kind in LOST and found.root.evidence is not None:
                # A rank has seen the end of its peer before the head missed the node.
                code, facts = NODE_LOST, {}
                reason = f"{found.root.node} was lost: {found.root.evidence.line}"
        if code == 130:
            reason += self.reports.where()
        ended = replace(ended, exit_code=code, reason=reason, facts=facts)
        return replace(ended, judgement=found, more=more)

    def _connect(self) -> None:
        """Open an agent on every node; when one is out of reach nothing starts anywhere."""

        def meanwhile() -> None:  # a node that does not answer must not delay a Ctrl-C
            self._check_stop()
            self._ping()

        opened = in_order(self.plan.nodes, list(self.agents.open(meanwhile)))
        lost = [(one.node.name, one.unreachable) for one in opened if one.unreachable]
        self.reports.lost = {name: why.sentence() for name, why in lost}
        if lost and self.positions is None:
            names, why = fold(name for name, _ in lost), lost[0][1]
            reason = f"{names} cannot be reached, so nothing was started anywhere"
            hint = why.hint or f"leave it out: -x {names}"
            raise RunFailed(3, f"{reason}: {why.sentence()}", hint=hint)

    def _agree(self) -> Rendezvous:
        """Wait for every agent's report, then find an address and port that all nodes reach."""
        plan, first, reports = self.plan, self.plan.master.name, self.reports
        self._wait_for(reports.hellos, "did not report")
        for node in plan.nodes:
            check_fitness(plan, node.name, reports.hellos[node.name])
        port = reports.hellos[first]["port"]
        # The hostfile's name may be an alias that only the head's ssh_config knows.
        own = [] if plan.address_fixed else reports.hellos[first]["addresses"]
        reports.addresses = list(dict.fromkeys([plan.address, *own]))
        self.agents.send_all({"op": "probe", "addresses": reports.addresses, "port": port})
        self._wait_for(reports.address_errors, "did not report whether they reach the first node")
        return Rendezvous(choose_address(plan, reports.addresses, reports.address_errors), port)

    def _wait_for(self, answers: Mapping[str, Any], what: str) -> None:
        """Until all nodes have answered."""
        timeout_s, first = self.plan.timing.hello_s, self.plan.master.name
        deadline = time.monotonic() + timeout_s
        while len(answers) < len(self.plan.shares):
            self._turn()
            self._check_stop()
            if first in self.reports.hellos:  # so that the later of two launches frees the nodes
                check_fitness(self.plan, first, self.reports.hellos[first])
            if time.monotonic() > deadline:
                late = [node.name for node in self.plan.nodes if node.name not in answers]
                self.reports.lost |= dict.fromkeys(late, what)
                raise RunFailed(3, f"{fold(late)} {what} within {units.duration(timeout_s)}")

    def _start(self, meet: Rendezvous) -> None:
        self.journal.write("start", f"ranks meet at {meet.address}:{meet.port}")
        self.started = True
        for node in self.state.nodes.values():  # some have reported long before the last
            node.text, node.heard_s = "starting ranks", time.monotonic()
        env = self.plan.environment.values()
        order: dict[str, Any] = {"op": "start", "env": env, "address": meet.address}
        launched_s = time.time() - (time.monotonic() - self.state.started_s)
        order["launched_s"] = round(launched_s, 3)  # of the run's first attempt
        for name, share in self.shares.items():
            self.agents.send(name, {**order, "argv": self.plan.argv(share, meet)})
        self.on_start()  # an agent without this order ends with its head

    def _take_over(self) -> None:
        """Go on with ranks that another head has started; nodes out of reach are tried again."""
        self.started, lost, now = True, self.reports.lost, time.monotonic()
        self.reports.lost = {}
        for name, node in self.state.nodes.items():
            node.text, node.heard_s = "connecting", now
            if name in lost:
                self.connections.lose(name, lost[name])

    def _watch(self) -> None:
        last_s = self.clock.since_s = time.monotonic()
        while not self.state.is_over:
            self._turn()
            self._check_stop()
            now = time.monotonic()
            slept_s, last_s = now - last_s, now
            if slept_s > SLEPT_S:
                self.connections.slept(slept_s)  # Ctrl-Z, a closed laptop
            self.clock.is_saving = self.state.is_saving
            if self.clock.step is not None:
                self.on_steps()
            lost = self.connections.lost(now)
            if lost is not None:
                self.reports.fail_lost(*lost)
            self.reports.check_heads(now)
            self.reports.check_deaths(now)
            if not self.connections.quiet:
                self._check_steps(now)
        if self.reports.starter_ended_s < math.inf:
            self.reports.check_deaths(math.inf)

    def _check_steps(self, now: float) -> None:
        """Collect the stacks of a run that takes no step, then stop it; all else goes on."""
        found, is_late = self.inspection, self.clock.is_late(now)
        if found is None and is_late:
            why, limit_s = self._why_hung(), self.plan.timing.look_s
            if not limit_s:
                unseen = Judgement(of_verdict(None, why, len(self.shares)))
                raise RunFailed(1, why, hint=self.clock.hint, judgement=unseen)
            self._tell(
                "hang",
                f"{why}: collecting the stacks of all ranks, {units.duration(limit_s)} at most",
            )
            self.inspection = Inspection(self.plan, self.cluster)
        elif found is not None and not is_late:
            found.close()
            self.inspection = None
            self._tell("goes-on", "a step came: the run is not stopped")
        elif found is not None and found.is_over(now):
            found.close()
            self._fail_hung(found)

    def _fail_hung(self, found: Inspection) -> NoReturn:
        """Raise with what was found; the stop follows, whatever that was."""
        why, headline = self._why_hung(), self.plan.environment.redact(found.headline)
        data = found.to_json(self.plan.run_dir)
        verdict = found.diagnosis.verdict if found.diagnosis else None
        root = of_verdict(verdict, headline, len(self.shares))
        self._tell("verdict", headline, stacks=data["stacks"], error=found.error)
        hint = None if found.is_sure else self.clock.hint
        folder = str(found.folder) if found.folder else None
        facts = {"hint": hint, "verdict": headline, "stacks": folder, "more": data}
        judgement = Judgement(root)
        raise RunFailed(1, why, failed_rank=found.culprit, judgement=judgement, **facts)

    def _why_hung(self) -> str:
        return why_hung(self.clock, self.state.beats, self.plan.world_size)

    def _tell(self, name: str, text: str, **data: Any) -> None:
        journal.tell(self.journal, self.state, name, text, **data)
        self.on_update(self.state)

    def _check_stop(self) -> None:
        if self.stop():
            raise RunFailed(130, "stopped by the user")

    def _turn(self) -> None:
        """Process what has arrived; returns after one tick at the latest. Raises on a failure."""
        self._ping()
        started = time.monotonic()
        arrived, is_full = self.agents.inbox.take(0.0 if self.arrived else TICK_S)
        self.arrived.extend(arrived)
        while self.arrived:  # one that raises leaves the others for the next turn
            self._take(self.arrived.popleft())
        if arrived:
            self.on_update(self.state)
        # A node that floods gets no more of this program than that; of many that beat in turn, the
        # messages of a moment are processed together.
        pace_s = TICK_S if is_full else min(PACE_S, TICK_S)
        time.sleep(max(0.0, pace_s - (time.monotonic() - started)))

    def _take(self, message: NodeMessage) -> None:
        connections, data = self.connections, message.data
        if self.started and connections.loses(message):
            return
        if data is not None and data["type"] == "failed" and message.node in connections.away:
            self.reports.fail_lost(message.node, data["text"])
        self.reports.take(message)
        connections.finds(message)

    def _ping(self) -> None:
        """Renew the agents' lease, also while a slow node still connects."""
        now = time.monotonic()
        if now - self.pinged_s > min(PING_S, self.plan.timing.lease_s / 4):
            self.pinged_s = now
            self.agents.send_all({"op": "ping"})

    def _end_all(
        self, grace_s: float, may_follow: bool = False, is_asked: bool = False
    ) -> tuple[Lines, Lines]:
        """Stop what runs, wait for every agent up to a deadline; what `prove_gone` returns.

        Where an attempt may follow, nodes without an answer or with leftovers are asked by it."""
        hurried = False
        self.connections.stop(grace_s)
        deadline = time.monotonic() + grace_s + 10.0
        while self.started and time.monotonic() < deadline and self.state.is_awaited:
            try:
                self._turn()
            except (RunFailed, Left):
                continue  # the first failure is the one that counts
            if self.kill() and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + 10.0)
                self.agents.send_all({"op": "stop", "grace_s": 0})
        self.agents.close()
        if not self.started:  # an agent without its start order ends with its head
            begun = [node for node in self.plan.nodes if node.name in self.agents.begun]
            return prove_gone(self.plan, replace(self.cluster, nodes=begun), is_asked=is_asked)
        if may_follow:
            reports = self.reports
            return prove_others_gone(self.plan, self.cluster, reports.lost, reports.left)
        return prove_gone(self.plan, self.cluster, is_over=True, is_asked=is_asked)
