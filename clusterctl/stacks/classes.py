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
    for p in snapshot.procs:
        state = p.state in ("T", "D", "Z", None) and p.state
        key = (id(p) in blamed, state, p.role, p.kind, p.progress, p.stack.coarse)
        groups.setdefault(key, []).append(p)
    found = [Class(tuple(sorted(procs, key=_order)), bool(key[0])) for key, procs in groups.items()]
    order = {"trainer": 0, "loader": 1}

    def rank(c: Class) -> tuple[object, ...]:
        return not c.suspect, order.get(c.first.role, 2), len(c.procs), _order(c.first)

    return sorted(found, key=rank)


def _order(proc: Proc) -> tuple[int, int, str, int]:
    return (proc.rank if proc.rank is not None else 1 << 30, proc.index or 0, proc.node, proc.pid)


def is_dull(one: Class) -> bool:
    """Classes of every healthy job: idle loaders, launchers, trackers."""
    first = one.first
    if one.suspect or first.state in ("T", "D") or first.role == "trainer":
        return False
    return first.role != "loader" or first.kind in (Kind.IDLE, Kind.PUT, Kind.HELPER)


def hidden_line(dull: Sequence[Class], snapshot: JobSnapshot) -> str:
    """`3,071 loaders idle, 24 launchers, 6,500 helper threads hidden (--all)`."""
    counts: Counter[str] = Counter()
    for one in dull:
        counts[f"{one.first.role}s{' idle' * (one.first.role == 'loader')}"] += len(one.procs)
    threads = sum(max(0, len(p.threads) - 1) for p in snapshot.procs)
    parts = [f"{count:,} {word}" for word, count in counts.most_common()]
    if threads:
        parts.append(f"{threads:,} helper threads")
    return f"{', '.join(parts)} hidden (--all)" if parts else ""


def shown_threads(proc: Proc) -> Iterable[tuple[str, str]]:
    """(name, stack) of the threads worth a line: not those that wait in every process."""
    shown = (thread for thread in proc.threads if not is_hidden(thread.name))
    return ((thread.name, thread.stack.text(limit=6)) for thread in shown)
