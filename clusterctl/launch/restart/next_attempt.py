"""The next attempt of a run: a pause, nodes that are clean and fit, the newest whole checkpoint."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from checks import units
from clusterctl.launch.plan import PORT_CHOICES, PORT_RANGE, LaunchPlan, assign_ranks
from clusterctl.launch.restart import between
from clusterctl.launch.restart.choose import Choice, choose
from clusterctl.launch.restart.excluded import excluded
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.nodes import Node
from clusterctl.payload.launch.stopped import found as mark_of
from clusterctl.payload.launch.stopped import sentence
from clusterctl.remote.cluster import Cluster

ASK_AGAIN_S = 10.0  # nodes that are awaited
# A server needs five to ten minutes to restart. What takes longer takes hours.
LONG_S, ASK_SELDOM_S = 900.0, 60.0
LISTEN_S = 0.2  # to the user, in a pause
BEFORE = "before the next attempt"
Recheck = Callable[[LaunchPlan, Sequence[Node]], Mapping[str, str]]


class NoNext(Exception):
    """Why there is no next attempt; `is_stop` where the owner of the run has ended it."""

    def __init__(self, text: str, is_stop: bool = False) -> None:
        super().__init__(text)
        self.is_stop = is_stop


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`plan` is that of the last attempt; `recheck` names nodes that fail a short preflight."""

    plan: LaunchPlan
    cluster: Cluster
    rules: Rules
    past: Past
    recheck: Recheck

    def next(
        self, pause_s: float, stop: Callable[[], bool], tell: Callable[..., None]
    ) -> tuple[LaunchPlan, Mapping[str, str]]:
        """The plan, and the nodes that it could not use. Raises `NoNext` after a stop, or when
        there are too few nodes for too long."""
        _pause(pause_s, stop)
        begun_s, since_s, shown = time.monotonic(), time.time(), ""
        failed = self.past.failures[-1].root.sentence if self.past.failures else ""
        while True:
            found, choice = self._look(since_s, shown or failed)
            if by := found.stopped or self._stopped_here():
                raise NoNext(f"{by} {BEFORE}", is_stop=True)
            if choice.nodes:
                break
            waited_s = time.monotonic() - begun_s
            if waited_s > self.rules.patience_s:
                raise NoNext(choice.text)
            if choice.text != shown:
                shown = choice.text
                tell(
                    "waiting",
                    f"{shown}; waiting for them, {units.duration(self.rules.patience_s)} at most",
                )
            _pause(ASK_AGAIN_S if waited_s < LONG_S else ASK_SELDOM_S, stop)
        if choice.text:
            tell("nodes", choice.text)
        nodes = {node.name: node for node in self.rules.every_node}
        chosen = [nodes[name] for name in choice.nodes]
        return next_plan(self.plan, chosen, self.rules.slots, found.checkpoint), found.unfit

    def _stopped_here(self) -> str:
        """Who has ended the run, as its directory says here: nodes may not share it."""
        mark = mark_of(self.plan.run_id, str(self.plan.run_dir))
        return sentence(mark) if mark is not None else ""

    def _look(self, since_s: float, why: str) -> tuple[between.Found, Choice]:
        """Nodes that are not proved clean cost seconds: they are asked where others are too few."""
        every, unproved = self.rules.every_node, self.past.unproved
        proved = [node for node in every if node.name not in unproved]
        if len(proved) < len(every) and len(proved) >= len(self.rules.nodes):
            found, choice = self._ask(proved, dict(unproved), since_s, why)
            if found.stopped or len(choice.nodes) == len(self.rules.nodes):
                return found, choice
        return self._ask(every, {}, since_s, why)

    def _ask(
        self, nodes: Sequence[Node], left_out: Mapping[str, str], since_s: float, why: str
    ) -> tuple[between.Found, Choice]:
        made = self.past.failures[-1].checkpoint if self.past.failures else None
        plan = replace(self.plan, checkpoint=self.plan.checkpoint or made)
        found = between.look(
            self.plan,
            self.cluster,
            nodes,
            unproved=self.past.unproved,
            recheck=partial(self.recheck, plan),
            damaged=self.past.damaged,
            since_s=since_s,
            why=why,
        )
        found = replace(found, unfit={**left_out, **found.unfit})
        unfit = {**found.unfit, **excluded(self.rules, self.past)}
        choice = choose(self.rules.pool, [node.name for node in self.plan.nodes], unfit)
        if choice.nodes and found.unseen and found.checkpoint is None:
            choice = Choice((), f"checkpoints cannot be listed ({found.unseen})")
        return found, choice


def next_plan(
    plan: LaunchPlan, nodes: Sequence[Node], slots: Mapping[str, int], checkpoint: str | None
) -> LaunchPlan:
    """Ports that the last attempt tried are left out: what is left of its connections must not
    reach the new ranks. A port or an address that the user has given is kept, the address only
    while the first node is the same.
    """
    is_same_first = nodes[0].name == plan.master.name
    address = plan.address if plan.address_fixed and is_same_first else nodes[0].address
    ports = plan.ports
    if len(ports) > 1:
        free = [port for port in PORT_RANGE if port not in ports]
        ports = tuple(random.sample(free, PORT_CHOICES))
    return replace(
        plan,
        attempt=plan.attempt + 1,
        checkpoint=checkpoint,
        shares=assign_ranks(nodes, slots),
        address=address,
        address_fixed=plan.address_fixed and is_same_first,
        ports=ports,
    )


def _pause(seconds: float, stop: Callable[[], bool]) -> None:
    """Raises `NoNext` where the user stops the run meanwhile."""
    until = time.monotonic() + seconds
    while not stop():
        left_s = until - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(LISTEN_S, left_s))
    raise NoNext(f"stopped by the user {BEFORE}", is_stop=True)
