"""Ranks that launch collectives, with a fault: what RAS would count of them. No NCCL, no GPU.

A rank launches its operations in order, at most `ahead` beyond its first one that has not
finished. An operation of a communicator finishes when all its ranks have launched their nth one
and these are of one kind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.clusterctl.stacks.ras_answers import OPERATIONS, Comm

Call = tuple[int, str]  # communicator, operation


@dataclass
class Job:
    """`groups` are communicators as lists of ranks; `programs` are what each rank calls."""

    ranks: int
    groups: list[list[int]]
    programs: list[list[Call]]
    ahead: int = 1
    stopped: dict[int, int] = field(default_factory=dict)  # rank: calls that it makes at most
    broken: tuple[int, int] | None = None  # a communicator and its operation that never finishes
    launched: list[int] = field(default_factory=list)  # calls of each rank so far

    def run(self, calls: int | None = None) -> None:
        """Until nothing moves, or until every rank has made so many calls at most."""
        self.launched = self.launched or [0] * self.ranks
        while sum(self._step(rank, calls) for rank in range(self.ranks)):
            pass

    def _step(self, rank: int, calls: int | None) -> bool:
        at, program = self.launched[rank], self.programs[rank]
        most = min(len(program), self.stopped.get(rank, len(program)))
        if calls is not None:
            most = min(most, calls)
        if at >= most or at - self._finished(rank) >= self.ahead:
            return False
        self.launched[rank] += 1
        return True

    def _finished(self, rank: int) -> int:
        """How many of a rank's calls have finished, in order."""
        for number, (group, _) in enumerate(self.programs[rank][: self.launched[rank]]):
            nth = sum(one == group for one, _ in self.programs[rank][:number])
            if not self._is_done(group, nth):
                return number
        return self.launched[rank]

    def _is_done(self, group: int, nth: int) -> bool:
        if self.broken == (group, nth):
            return False
        kinds = set()
        for rank in self.groups[group]:
            done = [
                kind for one, kind in self.programs[rank][: self.launched[rank]] if one == group
            ]
            if len(done) <= nth:
                return False
            kinds.add(done[nth])
        return len(kinds) == 1

    def comms(self, places: list[tuple[str, int]]) -> list[Comm]:
        found = []
        for number, group in enumerate(self.groups):
            counts = []
            for rank in group:
                made = self.programs[rank][: self.launched[rank]]
                counts.append({name: made.count((number, name)) for name in OPERATIONS})
            found.append(Comm(0x1000 + number, counts, [places[rank] for rank in group]))
        return found


def made_job(dice: random.Random, ranks: int) -> Job:
    """A job with the world's communicator, rows and columns, that repeats some random calls."""
    width = dice.choice([n for n in (1, 2, 4) if ranks % n == 0])
    groups = [list(range(ranks))]
    if width > 1:
        groups += [list(range(start, start + width)) for start in range(0, ranks, width)]
        groups += [list(range(offset, ranks, width)) for offset in range(width)]
    groups = [group for group in groups if len(group) > 1]
    step: list[Call] = [(0, dice.choice(OPERATIONS))]
    for _ in range(dice.randint(1, 5)):
        kind = dice.choice(OPERATIONS)
        part = dice.choice(["world", "rows", "columns"]) if width > 1 else "world"
        rows = ranks // width
        chosen = {"world": [0], "rows": range(1, 1 + rows), "columns": range(1 + rows, len(groups))}
        step += [(group, kind) for group in chosen[part]]
    steps = step * dice.randint(3, 6)
    programs = [[call for call in steps if rank in groups[call[0]]] for rank in range(ranks)]
    return Job(ranks, groups, programs, ahead=dice.choice([1, 1, 2, 4]))
