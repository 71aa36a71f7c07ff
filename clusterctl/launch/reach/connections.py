"""Connections that are lost or silent while the ranks go on: made again, and said.

Silence is not death: a node that says nothing while steps go on is no failure, and when no node at
all can be heard it is this machine that is cut off. An agent keeps its ranks for the lease, and
gives a head that comes back what it has missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.launch.hang import SAVING, StepClock
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.reach.elsewhere import Elsewhere
from clusterctl.launch.state import SILENT_S, RunState
from clusterctl.remote.inbox import NodeMessage
from clusterctl.remote.session_pool import SessionPool

OVERDUE = 1.5  # times the longest recent step: so late is the next one


class Connections:
    """Of a run that has been started; before that, a lost connection ends the launch."""

    def __init__(
        self,
        plan: LaunchPlan,
        state: RunState,
        clock: StepClock,
        agents: SessionPool,
        tell: Callable[..., None],
        elsewhere: Elsewhere,
    ) -> None:
        self._timing, self._nodes = plan.timing, {node.name: node for node in plan.nodes}
        self._quiet_s = min(SILENT_S, self._timing.silent_s / 2)
        self._state, self._clock = state, clock
        self._agents, self._tell, self._elsewhere = agents, tell, elsewhere
        self.away: set[str] = set()  # nodes without a connection
        self.quiet: list[str] = []  # nodes without a word for SILENT_S: the run cannot be judged
        self._alone_s: float | None = None  # since when no node can be heard or reached
        self.stopping: dict[str, Any] | None = None  # the order, also for nodes that come back

    def stop(self, grace_s: float) -> None:
        """Order all ranks to end. Lost nodes too: they may only have been frozen."""
        self.stopping = {"op": "stop", "grace_s": grace_s}
        self._agents.send_all(self.stopping)

    def loses(self, message: NodeMessage) -> bool:
        """Whether this is the end of a connection that is now made again, also of one that has just
        been made."""
        name = message.node
        is_cut = message.data is None and not message.is_wrong and not message.is_given_up
        if not is_cut or self._state.nodes[name].is_over:
            return False
        self.lose(name, message.why)
        return True

    def finds(self, message: NodeMessage) -> None:
        """After a message was taken: a node is back, or its agent waits to be dismissed."""
        name, kind = message.node, (message.data or {}).get("type")
        if kind == "gone":
            self._agents.send(name, {"op": "bye"})
        elif kind == "resumed":
            self.away.discard(name)
            self._tell("reconnected", f"{name} is connected again", node=name)
            if self.stopping is not None:
                self._agents.send(name, self.stopping)

    def lost(self, now: float) -> tuple[str, str] | None:
        """A node that is lost, and why; what else is silent is connected again."""
        alive = [name for name, node in self._state.nodes.items() if not node.is_over]
        quiet_s = self._quiet_s
        self.quiet = [name for name in alive if now - self._state.nodes[name].heard_s > quiet_s]
        reasons = {name: self._why_lost(name, now) for name in self.quiet}
        found = next(((name, why) for name, why in reasons.items() if why), None)
        if self._alone_s is None and found is None:
            return None
        if not self._is_alone(alive, now):
            was_alone, self._alone_s = self._alone_s is not None, None
            return None if was_alone else found
        return found if found and self._is_over(found[0], now) else None

    def _why_lost(self, name: str, now: float) -> str | None:
        """Of a node that is quiet; None while it may be there, or steps go on without its word."""
        timing, clock, heard_s = self._timing, self._clock, self._state.nodes[name].heard_s
        silent_s = now - heard_s
        due_s = max(self._quiet_s, OVERDUE * max(clock.lengths, default=0.0))
        late_s = due_s * (SAVING if clock.is_saving else 1.0)
        goes_on = clock.step is not None and now - clock.since_s < late_s
        why = f"it has sent nothing for {units.duration(silent_s)}"
        if self._is_over(name, now) or (not goes_on and silent_s > timing.silent_s):
            return why
        if goes_on and silent_s <= timing.silent_s:
            return None
        if name not in self.away:
            self.lose(name, why)
        elif not goes_on and (silence := self._agents.silence.get(name)):
            return f"{why}, and it cannot be reached: {silence}"
        return None

    def _is_over(self, name: str, now: float) -> bool:
        return now - self._state.nodes[name].heard_s > self._timing.lease_s

    def _is_alone(self, alive: Sequence[str], now: float) -> bool:
        """Whether this machine is the one that is cut off: it hears and reaches no node at all."""
        met = self._agents.silence
        is_heard = len(self.quiet) < len(alive) or None in [met.get(one, "") for one in self.quiet]
        if not is_heard and not self._elsewhere.answers(now):
            if self._alone_s is None and met.keys() >= set(self.quiet):
                self._alone_s = now
                count = counted(len(alive), "node")
                text = f"none of the {count} that run can be reached from here; their ranks go on"
                self._tell("cut-off", f"{text}, connecting again")
            return True
        if self._alone_s is not None:
            self._tell(
                "cut-off", f"a node answers again, after {units.duration(now - self._alone_s)}"
            )
            met.clear()
            for name in self.quiet:  # what they have said meanwhile is on its way
                self._state.nodes[name].heard_s = now
            self._clock.since_s = now
        return False

    def slept(self, seconds: float) -> None:
        """The head itself was stopped: what nodes said in that time is still on the way."""
        for node in self._state.nodes.values():
            node.heard_s += seconds
        self._clock.slept(seconds)

    def lose(self, name: str, why: str) -> None:
        """Its connection is made again in the background, while the lease lasts."""
        node = self._state.nodes[name]
        node.text = "no connection"
        if name not in self.away:
            text = f"{name}: {why}; its ranks go on, connecting again"
            self._tell("disconnected", text, node=name)
        self.away.add(name)
        self._agents.reconnect(self._nodes[name], node.heard_s + self._timing.lease_s)
