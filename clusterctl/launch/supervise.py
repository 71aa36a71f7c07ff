"""A run from its first attempt to its end: what failed is recorded, and started again."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.errors import ClusterctlError
from clusterctl.exclude import change
from clusterctl.exclude.entries import Exclusion
from clusterctl.launch import positions
from clusterctl.launch.attempt import Attempt
from clusterctl.launch.causes.kinds import LOST, Cause, Evidence, Kind, Source
from clusterctl.launch.incidents import Incident, record
from clusterctl.launch.journal import Journal, tell
from clusterctl.launch.leftovers import prove_gone
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.restart import between
from clusterctl.launch.restart.budget import Decision, Failure, decide
from clusterctl.launch.restart.cleaner import Cleaner
from clusterctl.launch.restart.excluded import excluded, unread
from clusterctl.launch.restart.next_attempt import Arrangement, NoNext, Recheck
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.launch.restart.warm import WarmSpares
from clusterctl.launch.root_cause import Judgement
from clusterctl.launch.run_dir import write_layout
from clusterctl.launch.state import Ended, Left, RunResult, RunState
from clusterctl.ledger import write as ledger
from clusterctl.ledger.entries import Entry, path_beside
from clusterctl.ledger.write import enter
from clusterctl.nodes import Node, fold
from clusterctl.remote.cluster import Cluster
from trainer.runlog import telemetry

EXCLUDED_S = 24 * 3600.0  # a node with a fault of its own; somebody looks at it until then
NOT_FOUND, STOPPED = 3, 130  # exit codes: a node out of reach, the user's stop
ROOM_S = 10.0  # at the end, for a disk of the head that is full
STOPPED_BY_USER = "stopped by the user"


def supervise(
    plan: LaunchPlan,
    cluster: Cluster,
    *,
    on_update: Callable[[RunState], None],
    stop: Callable[[], bool] = lambda: False,
    kill: Callable[[], bool] = lambda: False,
    leave: Callable[[], bool] = lambda: False,
    rules: Rules | None = None,
    past: Past | None = None,
    on_change: Callable[[LaunchPlan, str, Past], None] = lambda plan, phase, past: None,
    recheck: Recheck = lambda plan, nodes: {},
) -> RunResult:
    """Run the plan to its end, or to an orderly stop after `stop()`; `kill()` cuts its grace short.
    After `leave()` raises `Left`: the ranks go on for a supervisor that takes the run over.

    A failure on nodes is in the result; every node is checked for leftovers at the end. Without
    `rules` nothing is started twice. `on_change(plan, phase, past)` is called where somebody else
    would need to know it to go on in this place: "starting", "running", "between" attempts.
    """
    given = rules or Rules(nodes=tuple(plan.nodes))
    asked = (stop, kill, leave)
    return _Run(plan, cluster, given, on_update, *asked, past or Past(), on_change, recheck).run()


@dataclass
class _Run:
    plan: LaunchPlan  # of the attempt that runs or was the last
    cluster: Cluster
    rules: Rules
    on_update: Callable[[RunState], None]
    stop: Callable[[], bool]
    kill: Callable[[], bool]
    leave: Callable[[], bool]
    past: Past
    on_change: Callable[[LaunchPlan, str, Past], None]
    recheck: Recheck

    def __post_init__(self) -> None:
        self.state = RunState(step=self.past.step, checkpoint=self.past.checkpoint)
        self.journal = Journal(self.plan.run_dir, self.past.known)
        self.cause: dict[str, Any] | None = None
        self.warm: list[WarmSpares] = []  # of each attempt
        self.phase = self.past.phase  # as it was saved last

    def _asked(self) -> bool:
        """Whether the user stops the run: then no supervisor starts it again. Raises `Left`."""
        if not self.past.stopped and self.stop():
            self.past = replace(self.past, stopped=STOPPED_BY_USER)
            self._save(self.phase)
            self.state.enter("stopping", STOPPED_BY_USER)
            self.on_update(self.state)
        if not self.past.stopped and self.leave():
            raise Left
        return bool(self.past.stopped)

    def run(self) -> RunResult:
        try:
            return self._run()
        except Left:
            self._settle()
            raise

    def _settle(self) -> None:
        """What comes last is written, or the user hears that it is in no file."""
        if why := self.journal.settle(ROOM_S):
            text = f"files of {self.plan.run_dir} lack what came last ({why})"
            self.state.add(telemetry.Event("lost", text, {}, time_s=time.time()))
            self.on_update(self.state)

    def _run(self) -> RunResult:
        past, taken = self.past, None
        self.on_update(self.state)  # views have something to show while a login is slow
        if past.phase != "new":
            host, pid = socket.gethostname(), os.getpid()
            self.journal.write("supervisor", f"process {pid} on {host} continues with the run")
        if past.began_s is not None:
            self.state.started_s = time.monotonic() - (time.time() - past.began_s)
        if past.phase == "running":
            taken = past.positions
        elif past.phase != "new":
            result = self._resume()
            if result is not None:
                return result
        while True:
            ended = self._attempt(taken)
            taken = None
            if ended.exit_code == 0:
                return self._finish(ended)
            decision = self._judge(ended)
            if not decision.is_restart:
                return self._finish(ended, decision)
            why_not = self._prepare(decision)
            if why_not is not None:
                return self._finish(self._without_next(ended, why_not))

    def _resume(self) -> RunResult | None:
        """Go on where a supervisor has ended between two attempts; the result where that ends."""
        ended = Ended(1, "the supervisor had ended", time.monotonic())
        last = decide(self.past.failures, self.rules.max_restarts) if self.past.failures else None
        if self.past.over(self.rules.max_restarts):
            return self._end_of_another(last)
        if self.past.phase == "starting":
            everywhere = replace(self.cluster, nodes=self.rules.every_node)
            unclean = between.not_clean(self.plan, everywhere)
            self.past = replace(self.past, unproved={**self.past.unproved, **unclean})
            if not unclean.keys() & {node.name for node in self.plan.nodes}:
                return None
        why_not = self._prepare(last or Decision(True, ""))
        return None if why_not is None else self._finish(self._without_next(ended, why_not))

    def _end_of_another(self, last: Decision | None) -> RunResult:
        """The end of a run that was stopped or given up, of which its supervisor did not live to
        prove that nothing is left."""
        root = self.past.failures[-1].root if self.past.failures else None
        is_lost = root is not None and root.kind in LOST
        code, reason = NOT_FOUND if is_lost else 1, root.sentence if root else ""
        if self.past.stopped or (root is not None and root.kind == Kind.USER_STOP):
            code, reason, last = STOPPED, self.past.stopped or STOPPED_BY_USER, None
        self.cause = root.to_json() if root is not None else None
        return self._finish(Ended(code, reason, time.monotonic()), last)

    def _without_next(self, ended: Ended, why: NoNext) -> Ended:
        code = STOPPED if why.is_stop else NOT_FOUND
        return replace(ended, exit_code=code, reason=f"{ended.reason}; {why}")

    def _attempt(self, taken: Mapping[str, dict[str, int]] | None) -> Ended:
        plan, state = self.plan, self.state
        state.attempt, state.failure = plan.attempt, None
        state.enter("starting")
        if taken is None:
            try:
                positions.remove(plan.run_dir)  # those of the attempt before
                write_layout(plan.run_dir, plan.run_id, plan.to_json(), plan.environment.hidden())
            except OSError as error:
                if plan.attempt == 1:
                    raise
                self.journal.write("error", f"plan.json is that of an earlier attempt: {error}")
            self._save("starting")
            self._tell_attempt()
        used = {node.name for node in plan.nodes}
        others = [one for one in self.rules.every_node if one.name not in used]
        warm = WarmSpares(plan, self.cluster, self.rules, self.past)
        attempt = Attempt(
            plan,
            replace(self.cluster, nodes=plan.nodes),
            state,
            self.journal,
            self.on_update,
            self._asked,
            self.kill,
            others=others,
            may_follow=self.rules.max_restarts != 0,
            positions=taken,
            on_start=self._started,
            on_steps=warm.begin,
            on_failure=warm.need,
        )
        unproved = self.past.unproved
        cleaner = Cleaner(plan, self.cluster, [one for one in others if one.name in unproved])
        try:
            return attempt.run()
        finally:
            cleaner.close()
            warm.close()
            self.warm.append(warm)
            left = {name: why for name, why in unproved.items() if name not in cleaner.clean}
            self.past = replace(self.past, unproved=left)

    def _started(self) -> None:
        self.state.enter("running")
        self._save("running")

    def _tell_attempt(self) -> None:
        plan = self.plan
        unfit = {**self.past.unproved, **excluded(self.rules, self.past)}
        names = [node.name for node in plan.nodes]
        where = plan.checkpoint and f", from {plan.checkpoint}"
        ranks = counted(plan.world_size, "rank")
        spares = [node.name for node in self.rules.spares if node.name not in (*names, *unfit)]
        text = f"attempt {plan.attempt} on {fold(names)}, {ranks}{where or ''}"
        data: dict[str, Any] = {
            "attempt": plan.attempt,
            "nodes": names,
            "spares": spares,
            "excluded": [{"node": name, "why": why} for name, why in unfit.items()],
            "world_size": plan.world_size,
            "from": plan.checkpoint,
        }
        if plan.attempt == 1:  # the plan has just been shown
            self.journal.write("attempt", text, **data)
            return
        self._tell("attempt", text, **data)
        if why := unread(self.rules):
            self._tell("exclude-file", why)

    def _judge(self, ended: Ended) -> Decision:
        """Record the incident, with what follows from it."""
        plan, judgement = self.plan, ended.judgement
        fenced = between.by_node(ended.leftovers, "there is still")
        fenced |= between.by_node(ended.unconfirmed, "it is not proved clean:")
        self.past = replace(self.past, unproved={**self.past.unproved, **ended.lost, **fenced})
        if judgement is None:
            if plan.attempt == 1:  # nothing was started: preflight's word, not a fault of the run
                return Decision(False, "")
            judgement = Judgement(_not_started(ended))
        root = judgement.root
        if ended.stopped:
            self.past = replace(self.past, stopped=ended.stopped)
        before = any(one.has_trained for one in self.past.failures) or plan.checkpoint is not None
        failure = Failure(root, self._newest_here(), before or self.state.step is not None)
        self.past = replace(self.past, failures=(*self.past.failures, failure))
        if root.kind == Kind.CHECKPOINT_INVALID and plan.checkpoint:
            self.past = replace(self.past, damaged=self.past.damaged | {plan.checkpoint})
        decision = decide(self.past.failures, self.rules.max_restarts)
        if self.past.stopped:
            decision = Decision(False, self.past.stopped)
        again = f"starts it again as attempt {plan.attempt + 1}"
        step = self.state.step.step if self.state.step else None
        incident = Incident(
            ended.reason,
            judgement,
            again if decision.is_restart else "stopped the run",
            step,
            attempt=plan.attempt,
            time_s=time.time() - (time.monotonic() - ended.at_s),
            more=ended.more,
        )
        self.cause = record(self.journal, incident, plan.environment.redact)
        where = plan.run_dir.name, plan.run_id, plan.attempt
        entry = ledger.of_incident(self.cause, where, incident.time_s)
        self._enter([entry] if entry else [])
        if root.is_of_node and root.kind not in LOST and root.node:
            self._exclude(root)
        self._save("between")
        if decision.is_restart:
            self.state.failure = ended.reason
            self.state.enter("restarting", ended.reason)
            when = f"in {units.duration(decision.pause_s)}" if decision.pause_s else "now"
            text = f"{ended.reason}; restarting {when} ({decision.text})"
            data = {"wait_s": decision.pause_s, "cause": root.name, "node": root.node}
            self._tell("restart", text, attempt=plan.attempt + 1, restarts=plan.attempt, **data)
        return decision

    def _newest_here(self) -> str | None:
        """The run's last checkpoint as far as its events say: enough to see that it gets on."""
        saved = self.state.checkpoint
        return Path(saved).name if saved else self.plan.checkpoint

    def _exclude(self, root: Cause) -> None:
        """Enter a node with a fault of its own in exclude.toml, for this run and all others."""
        assert root.node is not None
        self.past = replace(self.past, barred={**self.past.barred, root.node: root.sentence})
        if self.rules.exclude_file is None:
            return
        now_s = time.time()
        reason = self.plan.environment.redact(root.sentence)[:400]
        entry = Exclusion(root.node, reason, now_s, now_s + EXCLUDED_S, change.author())
        try:
            change.add(self.rules.exclude_file, [entry])
            self.past = replace(self.past, entered=self.past.entered | {root.node})
            self._tell("excluded", f"{entry.sentence}", node=root.node)
            out = [(entry.node, entry.reason, entry.until_s)]
            self._enter(ledger.of_exclusions(out, now_s, "launch", self.plan.run_dir.name))
        except (ClusterctlError, OSError) as error:
            self.journal.write("error", f"{root.node} is not entered in exclude.toml: {error}")

    def _enter(self, entries: Sequence[Entry]) -> None:
        """In the ledger; one that cannot be written ends nothing."""
        file = self.rules.exclude_file
        if file is not None and (why := enter(path_beside(file), entries)):
            self.journal.write("error", why)

    def _prepare(self, decision: Decision) -> NoNext | None:
        """Plan the next attempt; why there is none."""
        if self.state.phase != "restarting":
            self.state.enter("restarting", decision.text)
            self.on_update(self.state)
        again = Arrangement(self.plan, self.cluster, self.rules, self.past, self.recheck)
        try:
            self.plan, unfit = again.next(decision.pause_s, self._asked, self._tell_next)
        except NoNext as error:
            return error
        self.past = replace(self.past, unproved=unfit)
        return None

    def _tell_next(self, name: str, text: str) -> None:
        if name == "waiting":
            self.state.enter("waiting", text)
        self._tell(name, text)

    def _finish(self, ended: Ended, decision: Decision | None = None) -> RunResult:
        code, reason = ended.exit_code, ended.reason
        left, unconfirmed = ended.leftovers, ended.unconfirmed
        if decision is not None and decision.exit_code is not None:
            code, reason = decision.exit_code, f"{reason}; given up: {decision.text}"
        used = {node.name for node in self.plan.nodes}
        # An attempt that was stopped has asked its nodes itself; between two, nobody has.
        is_between = self.phase == "between" or self.past.phase != "new"
        # The one word for which a run is ended that another head may have taken meanwhile.
        is_asked = bool(self.past.stopped) or code == STOPPED
        has_failed = self.rules.max_restarts != 0 and self.past.failures
        if has_failed or (self.past.stopped and is_between):
            everywhere = replace(self.cluster, nodes=self.rules.every_node)
            left, unconfirmed = prove_gone(self.plan, everywhere, is_over=True, is_asked=is_asked)
        elif standing := self._standing():
            spares = replace(self.cluster, nodes=standing)
            found = prove_gone(self.plan, spares, is_over=True, is_asked=is_asked)
            left, unconfirmed = (*left, *found[0]), (*unconfirmed, *found[1])
        # A run that has trained to its end without a node that was lost is good; that node is told.
        not_proved = [line for line in (*left, *unconfirmed) if line.partition(": ")[0] in used]
        if code == 0 and not_proved:
            code, reason = 1 if left else 3, "the run ended, but not everything is proved gone"
        self.journal.write("end", reason, exit_code=code, leftovers=left, unconfirmed=unconfirmed)
        self._settle()
        facts = {**ended.facts, "cause": self.cause if code else None}
        attempts = self.plan.attempt
        return RunResult(
            code, reason, leftovers=left, unconfirmed=unconfirmed, attempts=attempts, **facts
        )

    def _standing(self) -> list[Node]:
        """The spares on which a starter may stand by."""
        for warm in self.warm:
            warm.wait()
        asked = set[str]().union(*(warm.asked for warm in self.warm))
        return [node for node in self.rules.spares if node.name in asked]

    def _save(self, phase: str) -> None:
        self.phase = phase
        try:
            self.on_change(self.plan, phase, self.past)
        except OSError as error:  # the head's disk is no reason to end a run
            self.journal.write("error", f"another supervisor would not know of this: {error}")

    def _tell(self, name: str, text: str, **data: Any) -> None:
        tell(self.journal, self.state, name, text, **data)
        self.on_update(self.state)


def _not_started(ended: Ended) -> Cause:
    """The root of an attempt whose ranks were not started."""
    if not ended.lost:
        return Cause(Kind.UNKNOWN, evidence=Evidence(Source.CONNECTION, ended.reason))
    node, why = next(iter(ended.lost.items()))
    evidence = Evidence(Source.CONNECTION, why)
    return Cause(Kind.NODE_UNREACHABLE, "", node, None, evidence, is_of_node=True)
