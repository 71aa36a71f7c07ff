"""All-reduce over groups of nodes: runs the rounds of `search`, which find who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checks.facts import NOT_ASKED, BadLink, Collectives
from clusterctl.nodes import counted
from clusterctl.preflight.active.fault_isolation import Diagnosis, Group, Outcome, search
from clusterctl.preflight.active.plan import Plan
from clusterctl.preflight.active.ranks import start_ranks
from clusterctl.remote.session_pool import Answer, SessionPool

SLACK_S = 4.0  # a rank ends by itself when its group's time is up; then its process is killed
Say = Callable[[str], None]


def try_links(
    pool: SessionPool,
    plan: Plan,
    addresses: Mapping[str, str],
    unable: Mapping[str, str],
    share: float,
    say: Say,
) -> Collectives:
    """Collectives over the nodes whose ranks have started; `unable` says why the others have none.

    A group counts as bad when it fails, or when its bandwidth is under `share` of the middle of all
    pairs so far. `addresses` is where each node's store is reached by the others.
    """
    names = [name for name in plan.nodes if name not in unable and name not in pool.lost]
    rounds = Rounds(pool, plan, addresses, share)
    unknown = {
        name: pool.lost.get(name, unable.get(name, "")) for name in plan.nodes if name not in names
    }
    if len(names) < 2:
        return Collectives(tuple(plan.nodes), unknown=unknown)
    looker = search(names)
    outcome: Outcome | None = None
    while True:
        try:
            groups = next(looker) if outcome is None else looker.send(outcome)
        except StopIteration as end:
            return rounds.collect(end.value, unknown)
        many = (
            counted(len(groups), "pair")
            if len(groups[0]) == 2
            else f"{len(groups[0])} nodes together"
        )
        say(f"all-reduce: round {rounds.count + 1}, {many}")
        outcome = rounds.play(groups)


class Rounds:
    """Plays rounds and remembers how fast pairs were and why groups were bad."""

    def __init__(
        self, pool: SessionPool, plan: Plan, addresses: Mapping[str, str], share: float
    ) -> None:
        self._pool, self._plan, self._addresses, self._share = pool, plan, addresses, share
        self.count = 0
        self._pairs: dict[Group, float] = {}  # bandwidth of each pair when last tried, bytes/s
        self._why: dict[Group, str] = {}
        self._idle: set[str] = set()  # nodes whose ranks are known to be usable

    def play(self, groups: list[Group]) -> Outcome:
        """One round: all groups at once, each with a store on its first node."""
        self.count += 1
        members = [name for group in groups for name in group]
        broken = [name for name in members if name not in self._idle]
        failed = start_ranks(self._pool, self._plan, broken, self._addresses) if broken else {}
        self._idle.update(set(broken) - set(failed))
        lost = {name: why for name, why in {**self._pool.lost, **failed}.items() if name in members}
        named: dict[str, str] = {}
        whole = [group for group in groups if not set(group) & set(lost)]
        ports = self._open_stores(whole, named)
        orders = {}
        for group, port in ports.items():
            orders.update(self._orders(group, port))
        limit_s = max((self._limit_s(group) for group in groups), default=0.0)
        answers = self._pool.ask(orders, limit_s + SLACK_S) if orders else {}
        lost |= {name: self._pool.lost[name] for name in members if name in self._pool.lost}
        whys: dict[Group, str] = {}
        speeds: dict[Group, float] = {}
        for group in groups:
            if set(group) & set(lost):
                continue
            if group not in ports:
                whys[group] = "no store could be opened"
                continue
            self._judge(group, {name: answers[name] for name in group}, named, whys, speeds)
        self._pairs.update({group: speed for group, speed in speeds.items() if len(group) == 2})
        middle = self._middle()
        # Pairs of earlier rounds, too: what is slow shows only when others have been measured.
        # Larger groups are not: how much slower they may be depends on the switches between them.
        for group, speed in self._pairs.items():
            if middle is not None and speed < self._share * middle:
                whys[group] = f"{_rate(speed)}, the middle pair has {_rate(middle)}"
        self._why.update(whys)
        return Outcome(frozenset(whys), named, lost)

    def _middle(self) -> float | None:
        """The middle node's best pair: a bad node has many slow pairs, but is only one node."""
        best: dict[str, float] = {}
        for pair, speed in self._pairs.items():
            for name in pair:
                best[name] = max(speed, best.get(name, 0.0))
        return sorted(best.values())[len(best) // 2] if best else None

    def _limit_s(self, group: Group) -> float:
        return self._plan.group_limit_s(self._ranks(group))

    def _ranks(self, group: Group) -> int:
        return sum(self._plan.devices[name] for name in group)

    def _open_stores(self, groups: list[Group], named: dict[str, str]) -> dict[Group, int]:
        orders = {}
        for group in groups:
            host = {"do": "host", "timeout_s": self._limit_s(group)}
            orders[group[0]] = {"op": "work", "orders": [host]}
        answers = self._pool.ask(orders, 5.0) if orders else {}
        ports = {}
        for group in groups:
            first = (answers.get(group[0], {}).get("answers") or [{}])[0]
            if isinstance(first.get("port"), int):
                ports[group] = first["port"]
            else:
                self._idle.discard(group[0])
                if first.get("own"):
                    named[group[0]] = f"{first['error']}, while it was to open a store"
        return ports

    def _orders(self, group: Group, port: int) -> dict[str, dict[str, Any]]:
        world, rank, orders = self._ranks(group), 0, {}
        for name in group:
            mine = []
            for _ in range(self._plan.devices[name]):
                mine.append(
                    {
                        "do": "group",
                        "rank": rank,
                        "world": world,
                        "port": port,
                        "address": self._addresses[group[0]],
                        "bytes": self._plan.bytes,
                        "timeout_s": self._limit_s(group),
                    }
                )
                rank += 1
            orders[name] = {"op": "work", "orders": mine}
        return orders

    def _judge(
        self,
        group: Group,
        answers: Mapping[str, Answer],
        named: dict[str, str],
        whys: dict[Group, str],
        speeds: dict[Group, float],
    ) -> None:
        slowest_s, errors = 0.0, []
        for name, answer in answers.items():
            told = answer.get("answers") or [{"error": answer.get("error", "no answer")}]
            for one in told:
                if not one.get("error"):
                    slowest_s = max(slowest_s, one["reduce_s"])
                    continue
                errors.append(_words(name, one, self._limit_s(group)))
                if not one.get("seconds"):
                    self._idle.discard(
                        name
                    )  # its process was killed: a new one before the next round
                if one.get("own"):
                    named[name] = f"{one['error']}, while it was to {one.get('phase', 'begin')}"
        if errors:
            whys[group] = errors[0]
        elif slowest_s > 0:
            world = self._ranks(group)
            # Bus bandwidth: what each rank's link carries in a ring.
            speeds[group] = 2 * (world - 1) / world * self._plan.bytes / slowest_s

    def collect(self, found: Diagnosis, unknown: Mapping[str, str]) -> Collectives:
        """The diagnosis with the words of the tests behind it."""
        middle = self._middle()
        links = tuple(
            BadLink(first, second, f"{self._reason(first, second)}; {why}")
            for (first, second), why in found.bad_links.items()
        )
        bad_nodes = {
            name: why if "work with others" not in why else f"{why}: {self._reason(name)}"
            for name, why in found.bad_nodes.items()
        }
        lost = {name: f"lost in the all-reduce: {why}" for name, why in found.lost.items()}
        unclear = tuple((group, f"{why}: {self._reason(*group)}") for group, why in found.unclear)
        return Collectives(
            tuple(self._plan.nodes),
            bad_nodes,
            links,
            unclear,
            {**unknown, **lost},
            found.rounds,
            NOT_ASKED if middle is None else middle,
        )

    def _reason(self, *names: str) -> str:
        """Why a group with these nodes was bad, the smallest such group first."""
        fitting = [
            group for group in self._why if set(names) <= set(group) or set(group) <= set(names)
        ]
        return self._why[min(fitting, key=len)] if fitting else "no reason was given"


def _words(name: str, told: Mapping[str, Any], limit_s: float) -> str:
    """What a rank says; time-outs of torch name a key of its store, which tells nobody anything."""
    error = str(told["error"])
    if told.get("phase") and any(word in error.lower() for word in ("timeout", "timed out")):
        return f"{name} waited {limit_s:.0f} s in vain to {told['phase']}"
    return f"{name}: {error}"


def _rate(bytes_s: float) -> str:
    from checks.rules.active import rate

    return rate(bytes_s)
