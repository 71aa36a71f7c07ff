"""All-reduce inside nodes and over groups of them, in rounds, which name bad nodes and links.

First the GPUs of each node sum with each other, which tests NVLink alone; then `search` says which
nodes sum together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from checks import units
from checks.facts import NOT_ASKED, BadLink, Collectives
from checks.units import counted
from clusterctl.nodes import grouped
from clusterctl.preflight.active.fault_isolation import Diagnosis, Group, Outcome, search
from clusterctl.preflight.active.plan import MOST_INSIDE, Plan
from clusterctl.preflight.active.ranks import start_ranks
from clusterctl.remote.session_pool import Answer, SessionPool

SLACK_S = 4.0  # a rank ends by itself when its group's time is up; then its process is killed


def try_links(
    pool: SessionPool,
    plan: Plan,
    addresses: Mapping[str, str],
    unable: Mapping[str, str],
    share: float,
    say: Callable[[str], None],
) -> Collectives:
    """Collectives over the nodes whose ranks have started; `unable` says why the others have none.

    A group counts as bad when it fails, or when its bandwidth is under `share` of the middle of all
    pairs so far. `addresses` is where each node's store is reached by the others.
    """
    without = {**unable, **pool.lost}
    unknown = {name: without[name] for name in plan.nodes if name in without}
    names = [name for name in plan.nodes if name not in without]
    rounds = Rounds(pool, plan, addresses, share)
    inside = [name for name in plan.shared_nodes if name in names]
    found = rounds.try_inside(inside, say) if inside else Diagnosis()
    names = [name for name in names if name not in {*found.bad_nodes, *found.lost}]
    if len(names) < 2:
        if len(plan.nodes) > 1:
            unknown |= dict.fromkeys(names, "no other node is left to sum with")
        return rounds.collect(found, unknown)
    tests = search(names)
    outcome: Outcome | None = None
    while True:
        try:
            groups = next(tests) if outcome is None else tests.send(outcome)
        except StopIteration as end:
            end.value.bad_nodes |= found.bad_nodes
            end.value.lost |= found.lost
            end.value.rounds += found.rounds
            return rounds.collect(end.value, unknown)
        size = len(groups[0])
        what = counted(len(groups), "pair") if size == 2 else f"{size} nodes together"
        say(f"all-reduce: round {rounds.count + 1}, {what}")
        outcome = rounds.run_round(groups)


class Rounds:
    """Runs rounds; keeps the bandwidth of pairs and the reasons of bad groups."""

    def __init__(
        self, pool: SessionPool, plan: Plan, addresses: Mapping[str, str], share: float
    ) -> None:
        self._pool, self._plan, self._addresses, self._share = pool, plan, addresses, share
        self.count = 0
        self._inside: dict[str, float] = {}  # the same of each node's own devices, the best try's
        self._pairs: dict[Group, float] = {}  # bandwidth of each pair when last tried, bytes/s
        self._why: dict[Group, str] = {}
        self._usable: set[str] = set()  # nodes whose ranks are known to be usable
        self._named: dict[str, str] = {}  # nodes that this round proves bad, and why

    def try_inside(self, names: list[str], say: Callable[[str], None]) -> Diagnosis:
        """The devices of each node with each other, all nodes at once; what is bad again is bad.

        A node is bad when that fails, or is under the share of the middle node.
        """
        found, again = Diagnosis(), list(names)
        while again and found.rounds < MOST_INSIDE:
            say(f"all-reduce: inside {counted(len(again), 'node')}")
            outcome = self.run_round([(name,) for name in again])
            found.rounds += 1
            found.lost |= outcome.lost
            failed = {name: self._why[(name,)] for (name,) in outcome.bad}
            why = {**self._slow_inside(), **outcome.named, **failed}
            again = [name for name in names if name in why and name not in found.lost]
            found.bad_nodes = {name: f"inside the node, alone: {why[name]}" for name in again}
        self._why.clear()  # what went well in the end is no reason of a later failure
        return found

    def _slow_inside(self) -> dict[str, str]:
        speeds = sorted(self._inside.values())
        middle = speeds[len(speeds) // 2] if speeds else 0.0
        return {
            name: f"{units.rate(speed)}, the middle node has {units.rate(middle)}"
            for name, speed in self._inside.items()
            if speed < self._share * middle
        }

    def run_round(self, groups: list[Group]) -> Outcome:
        """One round: all groups at once, each with a store on its first node."""
        self.count += 1
        self._named = {}
        members = [name for group in groups for name in group]
        unusable = [name for name in members if name not in self._usable]
        failed = start_ranks(self._pool, self._plan, unusable, self._addresses)
        self._usable.update(set(unusable) - set(failed))
        lost = {**failed, **self._lost(members)}
        ports = self._open_stores([group for group in groups if not lost.keys() & set(group)])
        limit_s = max(map(self._limit_s, groups), default=0.0)
        answers = self._pool.ask(self._orders(ports), limit_s + SLACK_S)
        lost.update(self._lost(members))
        whys: dict[Group, str] = {}
        for group in groups:
            if lost.keys() & set(group):
                continue
            if group not in ports:
                whys[group] = "no store could be opened"
            elif why := self._judge(group, {name: answers[name] for name in group}):
                whys[group] = why
        middle = self._middle()
        # Pairs of earlier rounds, too: what is slow shows only when others have been measured.
        # Larger groups are not: how much slower they may be depends on the switches between them.
        for group, speed in self._pairs.items():
            if middle is not None and speed < self._share * middle:
                whys[group] = f"{units.rate(speed)}, the middle pair has {units.rate(middle)}"
        self._why.update(whys)
        return Outcome(frozenset(whys), self._named, lost)

    def _lost(self, names: list[str]) -> dict[str, str]:
        return {name: why for name, why in self._pool.lost.items() if name in names}

    def _middle(self) -> float | None:
        """The middle node's best pair: a bad node has many slow pairs, but is only one node."""
        speeds = grouped((name, speed) for pair, speed in self._pairs.items() for name in pair)
        best = sorted(map(max, speeds.values()))
        return best[len(best) // 2] if best else None

    def _limit_s(self, group: Group) -> float:
        return self._plan.group_limit_s(self._ranks(group))

    def _ranks(self, group: Group) -> int:
        return sum(self._plan.devices[name] for name in group)

    def _open_stores(self, groups: list[Group]) -> dict[Group, int]:
        orders = {
            group[0]: {"op": "work", "orders": [{"do": "host", "timeout_s": self._limit_s(group)}]}
            for group in groups
        }
        answers = self._pool.ask(orders, 5.0)
        ports = {}
        for group in groups:
            first = (answers.get(group[0], {}).get("answers") or [{}])[0]
            if "port" in first:
                ports[group] = first["port"]
            else:
                self._usable.discard(group[0])
                if first.get("own"):
                    self._named[group[0]] = f"{first['error']}, while it was to open a store"
        return ports

    def _orders(self, ports: Mapping[Group, int]) -> dict[str, dict[str, Any]]:
        orders = {}
        for group, port in ports.items():
            ranks = itertools.count()
            common = {
                "do": "group",
                "world": self._ranks(group),
                "port": port,
                "address": self._addresses[group[0]],
                "bytes": self._plan.bytes,
                "timeout_s": self._limit_s(group),
            }
            for name in group:
                mine = [{**common, "rank": next(ranks)} for _ in range(self._plan.devices[name])]
                orders[name] = {"op": "work", "orders": mine}
        return orders

    def _judge(self, group: Group, answers: Mapping[str, Answer]) -> str:
        """Why the group is bad; "" for a good one, whose speed is kept if it is a pair."""
        slowest_s, errors = 0.0, []
        for name, answer in answers.items():
            for one in answer.get("answers") or [{"error": answer.get("error", "no answer")}]:
                if not one.get("error"):
                    slowest_s = max(slowest_s, one["reduce_s"])
                    continue
                errors.append(_words(name, one, self._limit_s(group)))
                if not one.get("seconds"):
                    # Its process was killed: a new one before the next round.
                    self._usable.discard(name)
                if one.get("own"):
                    doing = one.get("phase", "begin")
                    self._named[name] = f"{one['error']}, while it was to {doing}"
        if errors:
            return errors[0]
        if slowest_s > 0 and len(group) <= 2:
            world = self._ranks(group)
            # Bus bandwidth: what each rank's link carries in a ring.
            speed = 2 * (world - 1) / world * self._plan.bytes / slowest_s
            if len(group) == 2:
                self._pairs[group] = speed
            else:
                self._inside[group[0]] = max(speed, self._inside.get(group[0], 0.0))
        return ""

    def collect(self, found: Diagnosis, unknown: Mapping[str, str]) -> Collectives:
        """The diagnosis with the words of the tests behind it."""
        middle = self._middle()
        links = tuple(
            BadLink(*ends, f"{self._reason(*ends)}; {why}") for ends, why in found.bad_links.items()
        )
        bad_nodes = {
            name: why if "work with others" not in why else f"{why}: {self._reason(name)}"
            for name, why in found.bad_nodes.items()
        }
        lost = {name: f"lost in the all-reduce: {why}" for name, why in found.lost.items()}
        unclear = tuple((group, f"{why}: {self._reason(*group)}") for group, why in found.unclear)
        middle_speed = NOT_ASKED if middle is None else middle
        unknown = {**unknown, **lost}
        ends = (unknown, found.rounds, middle_speed, self._inside)
        return Collectives(self._plan.nodes, bad_nodes, links, unclear, *ends)

    def _reason(self, *names: str) -> str:
        """Why a group with these nodes was bad, the smallest such group first."""
        wanted = set(names)
        fitting = [group for group in self._why if wanted <= set(group) or set(group) <= wanted]
        return self._why[min(fitting, key=len)] if fitting else "no reason was given"


def _words(name: str, answer: Mapping[str, Any], limit_s: float) -> str:
    """A rank's error; of torch's time-outs, which name only a key of its store, the phase."""
    error = str(answer["error"])
    if answer.get("phase") and any(word in error.lower() for word in ("timeout", "timed out")):
        return f"{name}: {answer['phase']} timed out after {units.duration(limit_s)}"
    return f"{name}: {error}"
