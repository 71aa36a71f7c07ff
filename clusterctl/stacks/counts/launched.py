"""Which rank has launched how many collectives of which communicator: RAS answers of all nodes.

RAS answers for the whole job wherever it is asked, and counts what a process has launched, not what
its GPU has finished. All answers of both looks are taken together: a count that differs between
any two of them has moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from checks.facts import RasAnswer, RasComm, RasMissing, RasRank, Unknown
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import grouped
from clusterctl.stacks.model import JobSnapshot, Proc

Counts = Mapping[str, int]  # by operation


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a communicator; `rank` and `node` where its process is one of the job's."""

    number: int
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    host: str | None = None

    @property
    def label(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank}"
        where = f" (pid {self.pid} on {self.host})" if self.pid and self.host else ""
        return f"its rank {self.number}{where}"


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator of the job."""

    name: str
    size: int
    counts: Mapping[Member, Counts]  # of the last look
    moved: frozenset[Member] = frozenset()
    missing: tuple[tuple[Member, str], ...] = ()  # and why there are no counts of it
    ends: bool = False  # a rank has finalized or aborted it, or has not finished its init
    errors: tuple[tuple[Member, int], ...] = ()
    is_unclear: bool = False  # counts differ, and the text does not show whose

    @property
    def title(self) -> str:
        """`communicator 0x27a0… (32 ranks)`."""
        return f"communicator {self.name} ({self.size} ranks)"

    @property
    def is_equal(self) -> bool:
        values = list(self.counts.values())
        return all(one == values[0] for one in values)


@dataclass(frozen=True, slots=True)
class Launched:
    """What RAS knows of the job; `why_not` where that is nothing."""

    groups: tuple[Group, ...] = ()
    looks: int = 0  # at how many samples it answered
    answered: tuple[str, ...] = ()  # nodes
    silent: Mapping[str, str] = field(default_factory=dict)  # node: why it did not answer
    is_text: bool = False  # equal counts are not shown, so that it is unknown whether they move
    changed: bool = False  # of text: another communicator, or none, had different counts before
    why_not: str = ""

    @property
    def moved(self) -> frozenset[Member]:
        return frozenset(member for group in self.groups for member in group.moved)

    @property
    def has_moved(self) -> bool:
        return self.changed or bool(self.moved)


def read_launched(snapshot: JobSnapshot) -> Launched:
    answers: list[tuple[int, str, RasAnswer]] = []  # (look, node, answer)
    silent: dict[str, str] = {}
    for node in snapshot.nodes:
        for look, answer in enumerate(node.counters.ras):
            if isinstance(answer, Unknown):
                silent[node.name] = answer.reason
            else:
                answers.append((look, node.name, answer))
    names = tuple(dict.fromkeys(name for _, name, _ in answers))
    silent = {name: why for name, why in silent.items() if name not in names}
    if not answers:
        return Launched(silent=silent, why_not=_nobody(silent))
    people = _People(snapshot)
    looks = len({look for look, _, _ in answers})
    is_text = any(not answer.is_complete for _, _, answer in answers)
    seen: dict[str, list[tuple[int, RasComm]]] = defaultdict(list)
    for look, _, answer in answers:
        for comm in answer.comms:
            seen[comm.key].append((look, comm))
    groups = tuple(_group(comms, people, looks) for comms in seen.values())
    ours = tuple(group for group in groups if _is_ours(group))
    about = Launched(looks=looks, answered=names, silent=silent, is_text=is_text)
    if not ours and not _may_be_ours(snapshot, answers, groups):
        why = "NCCL RAS answers for processes that are not this job's"
        return replace(about, why_not=why)
    ours = ours or groups
    last = max(look for look, _, _ in answers)
    changed = is_text and looks > 1 and _problems(answers, 0) != _problems(answers, last)
    return replace(about, groups=ours, changed=changed)


def _nobody(silent: Mapping[str, str]) -> str:
    if not silent:
        return "NCCL RAS was not asked"
    reasons = grouped((why, name) for name, why in silent.items())
    why, names = max(reasons.items(), key=lambda item: len(item[1]))
    return f"NCCL RAS answers on no node ({why} on {len(names)} of {len(silent)})"


def _may_be_ours(
    snapshot: JobSnapshot, answers: Iterable[tuple[int, str, RasAnswer]], groups: Iterable[Group]
) -> bool:
    """Text often names no process: then only the number of processes can be compared."""
    if any(member.pid for group in groups for member in _members(group)):
        return False
    ranks = len(snapshot.alive)
    return all(not one.is_complete and one.processes == ranks for _, _, one in answers)


def _problems(answers: Iterable[tuple[int, str, RasAnswer]], look: int) -> set[str]:
    """Communicators whose ranks have launched different numbers, at this look."""
    shown = [comm for at, _, answer in answers if at == look for comm in answer.comms]
    return {comm.key for comm in shown if any(rank.counts for rank in comm.ranks)}


def _is_ours(group: Group) -> bool:
    return any(member.rank is not None for member in _members(group))


def _members(group: Group) -> list[Member]:
    return [*group.counts, *(member for member, _ in group.missing)]


class _People:
    """Finds the job's process behind what RAS calls a process."""

    def __init__(self, snapshot: JobSnapshot) -> None:
        addresses = grouped(
            (address, node.name) for node in snapshot.nodes for address in node.counters.addresses
        )
        # Every node has some addresses that others have, too, such as docker0's.
        self._node = {one: names[0] for one, names in addresses.items() if len(set(names)) == 1}
        inner = {node.name: node.counters.inner or {} for node in snapshot.nodes}
        trainers = [p for p in snapshot.alive if p.rank is not None]
        numbers = [(inner[p.node].get(p.pid, p.pid), p) for p in trainers]
        self._own = {(p.node, number): p for number, p in numbers}
        alike = grouped(numbers)
        self._only = {number: procs[0] for number, procs in alike.items() if len(procs) == 1}
        self.world = snapshot.world or 0
        self.by_rank = {p.rank: p for p in trainers}

    def find(self, host: str | None, pid: int | None) -> Proc | None:
        if pid is None:
            return None
        if host in self._node:
            return self._own.get((self._node[host], pid))
        return self._only.get(pid)

    def member(self, one: RasRank | RasMissing) -> Member:
        proc = self.find(one.host, one.pid)
        rank, node = (proc.rank, proc.node) if proc else (None, None)
        return Member(one.rank, rank, node, one.pid, one.host)


def _group(comms: list[tuple[int, RasComm]], people: _People, looks: int) -> Group:
    """One communicator as all answers show it."""
    key, size = comms[-1][1].name, max(comm.size for _, comm in comms)
    best: dict[int, Member] = {}
    for _, comm in comms:
        everybody: list[RasRank | RasMissing] = [*comm.ranks, *comm.missing]
        for one in everybody:
            member = people.member(one)
            if one.rank not in best or best[one.rank].rank is None:
                best[one.rank] = member
    best = dict(_filled(best, size, people))
    values: dict[int, list[tuple[int, Counts]]] = defaultdict(list)
    lost: dict[int, str] = {}
    ends, errors = False, {}
    for look, comm in comms:
        for rank in comm.ranks:
            values[rank.rank].append((look, rank.counts))
            ends = ends or rank.status != "RUNNING"
            if rank.error:
                errors[rank.rank] = rank.error
        for absent in comm.missing:
            lost[absent.rank] = _why_missing(absent)
    counts, moved = {}, set()
    for number, seen in values.items():
        counts[best[number]] = max(seen, key=lambda pair: pair[0])[1]
        if looks > 1 and any(one != seen[0][1] for _, one in seen):
            moved.add(best[number])
    missing = tuple((best[number], why) for number, why in lost.items() if number not in values)
    failed = tuple((best[number], code) for number, code in errors.items())
    is_unclear = any(comm.is_unclear for _, comm in comms)
    return Group(key, size, counts, frozenset(moved), missing, ends, failed, is_unclear)


def _why_missing(absent: RasMissing) -> str:
    if absent.is_dead:
        return "RAS has given it up as dead"
    return "does not answer RAS" if absent.is_unresponsive else "is no member, yet or any more"


def _filled(best: Mapping[int, Member], size: int, people: _People) -> Iterator[tuple[int, Member]]:
    """Ranks without a process number in a text: those of the world's communicator are the job's."""
    known = [member for member in best.values() if member.rank is not None]
    is_world = size == people.world and known and all(one.rank == one.number for one in known)
    for number, member in best.items():
        proc = people.by_rank.get(number) if is_world and member.rank is None else None
        yield number, Member(number, number, proc.node) if proc else member


def named_members(members: Iterable[Member]) -> str:
    """`ranks 3,5`; of members that are no process of the job their place in the communicator."""
    found = list(members)
    ranks = [member.rank for member in found if member.rank is not None]
    if len(ranks) == len(found):
        return f"rank{'s' * (len(ranks) > 1)} {fold_ranks(ranks)}"
    return found[0].label + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
