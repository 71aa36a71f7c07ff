"""Processes in the same place as one line: equivalence classes over ranks, roles and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.verdict import Verdict
from clusterctl.stacks.wait_sites import Kind, is_hidden


@dataclass(frozen=True, slots=True)
class Class:
    """Processes of one role with the same kind, functions and progress."""

    procs: tuple[Proc, ...]
    suspect: bool

    @property
    def first(self) -> Proc:
        return self.procs[0]

    @property
    def nodes(self) -> str:
        return fold(list(dict.fromkeys(p.node for p in self.procs)))

    def who(self) -> str:
        """`ranks 0-63,65-191`, `rank 64 loader 7 pid 5862 (node-008)`."""
        if len(self.procs) == 1:
            return f"{self.first.label} pid {self.first.pid} ({self.first.node})"
        ranks = fold_ranks(p.rank for p in self.procs if p.rank is not None)
        where = f"rank{'s' * (',' in ranks or '-' in ranks)} {ranks}" if ranks else self.nodes
        return where if self.first.role == "trainer" else f"{where} {self.first.role}"


def classes(snapshot: JobSnapshot, verdict: Verdict) -> list[Class]:
    """Suspects first, then trainers, then the others; smaller classes before larger ones."""
    blamed = {id(s.proc) for s in verdict.suspects if s.proc}
    groups: dict[tuple[object, ...], list[Proc]] = {}
    for proc in snapshot.procs:
        key = (
            proc.role,
            proc.kind,
            proc.stack.coarse,
            proc.progress,
            proc.state in ("T", "D", "Z", None) and proc.state,
            id(proc) in blamed,
        )
        groups.setdefault(key, []).append(proc)
    found = [
        Class(tuple(sorted(procs, key=_order)), id(procs[0]) in blamed) for procs in groups.values()
    ]
    order = {"trainer": 0, "loader": 1}
    return sorted(
        found,
        key=lambda c: (not c.suspect, order.get(c.first.role, 2), len(c.procs), _order(c.first)),
    )


def _order(proc: Proc) -> tuple[int, int, str, int]:
    return (proc.rank if proc.rank is not None else 1 << 30, proc.index or 0, proc.node, proc.pid)


def is_dull(one: Class) -> bool:
    """Classes of every healthy job: idle loaders, launchers, trackers."""
    if one.suspect or one.first.state in ("T", "D"):
        return False
    if one.first.role == "trainer":
        return False
    return one.first.kind in (Kind.IDLE, Kind.PUT, Kind.HELPER) or one.first.role != "loader"


def hidden_line(dull: Sequence[Class], snapshot: JobSnapshot) -> str:
    """`3,071 loaders idle, 24 launchers, 6,500 helper threads hidden (--all)`."""
    counts: Counter[str] = Counter()
    for one in dull:
        word = f"{one.first.role}s idle" if one.first.role == "loader" else f"{one.first.role}s"
        counts[word] += len(one.procs)
    threads = sum(hidden_threads(p) for p in snapshot.procs)
    parts = [f"{count:,} {word}" for word, count in counts.most_common()]
    if threads:
        parts.append(f"{threads:,} helper threads")
    return f"{', '.join(parts)} hidden (--all)" if parts else ""


def hidden_threads(proc: Proc) -> int:
    return max(0, len(proc.threads) - 1)


def shown_threads(proc: Proc) -> Iterable[tuple[str, str]]:
    """(name, stack) of the threads worth a line: not those that wait in every process."""
    for thread in proc.threads:
        if not is_hidden(thread.name):
            yield thread.name, thread.stack.text(limit=6)
