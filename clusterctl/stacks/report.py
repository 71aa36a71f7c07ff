"""The text report: header, verdict, a line for each class of processes, next steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold, grouped
from clusterctl.report_lines import Line, cut, wrapped
from clusterctl.stacks.clues import Clue
from clusterctl.stacks.counts.gpu_use import read_use
from clusterctl.stacks.counts.launched import Group, Member, read_launched
from clusterctl.stacks.model import JobSnapshot, Proc, Progress
from clusterctl.stacks.verdict import Verdict
from clusterctl.stacks.wait_sites import HIDDEN_THREADS, Kind

MAX_CLASSES = 8


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
    blamed = {s.proc for s in verdict.suspects}

    def key(p: Proc) -> tuple[object, ...]:
        state = p.state in ("T", "D", "Z", None) and p.state
        return p in blamed, state, p.role, p.kind, p.progress, p.stack.coarse

    def rank(c: Class) -> tuple[object, ...]:
        order = {"trainer": 0, "loader": 1}
        return not c.suspect, order.get(c.first.role, 2), len(c.procs), _order(c.first)

    groups = grouped((key(p), p) for p in snapshot.procs)
    found = [
        Class(tuple(sorted(procs, key=_order)), procs[0] in blamed) for procs in groups.values()
    ]
    return sorted(found, key=rank)


def _order(proc: Proc) -> tuple[int, int, str, int]:
    return (proc.rank if proc.rank is not None else 1 << 30, proc.index or 0, proc.node, proc.pid)


def is_quiet(one: Class) -> bool:
    """Classes of every healthy job: idle loaders, launchers, trackers."""
    first = one.first
    if one.suspect or first.state in ("T", "D") or first.role == "trainer":
        return False
    return first.role != "loader" or first.kind in (Kind.IDLE, Kind.PUT, Kind.HELPER)


def hidden_line(quiet: Sequence[Class], snapshot: JobSnapshot) -> str:
    """`3,071 loaders idle, 24 launchers, 6,500 helper threads hidden (--all)`."""
    counts = Counter(one.first.role for one in quiet for _ in one.procs)
    threads = sum(max(0, len(p.threads) - 1) for p in snapshot.procs)
    named = counts.most_common()
    parts = [counted(count, role) + " idle" * (role == "loader") for role, count in named]
    parts += [counted(threads, "helper thread")] if threads else []
    return f"{', '.join(parts)} hidden (--all)" if parts else ""


def header(snapshot: JobSnapshot) -> str:
    """`192 ranks on 24 nodes, 3264 processes, 2 samples 2.0 s apart, 4.1 s; 0 nodes silent`."""
    ranks = {p.rank for p in snapshot.trainers if p.progress != Progress.GONE} - {None}
    apart = f" {units.duration(snapshot.interval_s)} apart" if snapshot.samples > 1 else ""
    return (
        f"{counted(len(ranks) or len(snapshot.trainers), 'rank')} on "
        f"{counted(len(snapshot.nodes), 'node')}, {counted(len(snapshot.procs), 'process')}, "
        f"{counted(snapshot.samples, 'sample')}{apart}, "
        f"{units.duration(snapshot.seconds)}; {counted(len(snapshot.silent), 'node')} silent"
    )


def lines(
    snapshot: JobSnapshot,
    verdict: Verdict,
    clues: Sequence[Clue],
    *,
    everything: bool = False,
    width: int = 0,
    verbose: bool = False,
) -> Iterator[Line]:
    """The report. `width` 0 does not cut lines (a pipe)."""
    found = classes(snapshot, verdict)
    quiet = [one for one in found if not everything and is_quiet(one)]
    shown = [one for one in found if one not in quiet]
    more = [] if everything else shown[MAX_CLASSES:]
    shown = shown[: len(shown) - len(more)]

    yield from _wrap(header(snapshot), None, width)
    style: str | None = "good" if verdict.kind == "moving" else "bad"
    yield from _wrap(f"{verdict.headline} ({verdict.confidence} confidence)", style, width)
    rows = [_row(one) for one in shown]
    is_wide = not width or width >= 120
    who_width = max((len(who) for who, _ in rows), default=0) if is_wide else 0
    for one, (who, what) in zip(shown, rows, strict=True):
        style = "bold" if one.suspect else None
        text = f" {'>' if one.suspect else ' '} {who:{who_width}}  {what}"
        if one.suspect and width and len(text) > width:
            # What a suspect does is the point of the report: it is not cut off.
            yield cut(f" > {who}", width), style
            text = f"     {what}"
        yield cut(text, width), style
        if everything:
            for thread in one.first.threads:
                if not HIDDEN_THREADS.search(thread.name):
                    yield f"       {thread.name or 'thread'}: {thread.stack.text(limit=6)}", "dim"
    if more:
        count = counted(sum(len(one.procs) for one in more), "process")
        yield f"   and {counted(len(more), 'more class')} of {count} (--all)", "dim"
    if hidden := hidden_line(quiet, snapshot):
        yield f"   {hidden}", "dim"
    limit = None if everything else 3
    for text in verdict.evidence[: None if verbose else limit]:
        yield cut(f"because {text}", width), None
    for clue in clues[:limit]:
        yield cut(f"{clue.source}: {clue.text}", width), "warn"
    for text in verdict.next_steps[:limit]:
        yield cut(f"next: {text}", width), None
    for text in permission_lines(snapshot):
        yield from _wrap(text, "warn", width)


def _row(one: Class) -> tuple[str, str]:
    """(who and how many, what they do)."""
    proc = one.first
    state = f" (state {proc.state})" if proc.state in ("T", "t", "D", "Z") else ""
    kind = f"{proc.kind}{state} {proc.progress}"
    if proc.progress != Progress.MOVING and proc.age_s >= 1:
        kind += f" {units.duration(proc.age_s)}"
    site = proc.where() if proc.stack.frames else proc.error or "no Python stack"
    file = proc.file() if one.suspect and proc.role == "loader" else None
    return f"{one.who()} [{len(one.procs)}]", f"{kind}: {site}" + (f"  {file}" if file else "")


def _wrap(text: str, style: str | None, width: int) -> Iterator[Line]:
    for line in wrapped(text, width, indent="  "):
        yield line, style


def permission_lines(snapshot: JobSnapshot) -> list[str]:
    """What to allow where py-spy was refused or is missing; equal nodes together."""
    refused = []
    for node in snapshot.nodes:
        procs = (p for p in node.procs if p.role in ("trainer", "loader") and p.error)
        if proc := next((p for p in procs if p.how != "py-spy"), None):
            refused.append((_advice(node.rights, proc, node.py_spy), node.name))
    return [f"{fold(names)}: {advice}" for advice, names in grouped(refused).items()]


def _advice(rights: dict[str, Any], proc: Proc, py_spy: str | None) -> str:
    by_signal = proc.how == "faulthandler"
    instead = "stacks by the trainer's own signal handler" if by_signal else "kernel facts only"
    if py_spy is None:
        return f"{proc.error} ({instead}): pip install py-spy beside clusterctl, or --py-spy PATH"
    if "ermission" not in proc.error and "ptrace" not in proc.error:
        return f"py-spy: {proc.error} ({instead})"
    allow = "in a container --cap-add SYS_PTRACE"
    if scope := rights.get("scope"):
        instead = f"kernel.yama.ptrace_scope = {scope}; {instead}"
        allow = "as root sysctl kernel.yama.ptrace_scope=0"
    return f"py-spy has no permission ({instead}): --sudo, or {allow}"


def to_json(snapshot: JobSnapshot, verdict: Verdict, clues: Sequence[Clue]) -> dict[str, Any]:
    return {
        "verdict": verdict.to_json(),
        "exit_code": verdict.exit_code,
        **_values(snapshot, ("world", "runs", "samples", "interval_s")),
        "seconds": round(snapshot.seconds, 3),
        "taken_s": snapshot.taken_s,
        "clues": [asdict(clue) for clue in clues],
        "nccl": nccl_json(snapshot),
        "classes": [
            {
                "who": one.who(),
                **_values(one.first, ("role", "kind", "progress")),
                "suspect": one.suspect,
                "count": len(one.procs),
                "ranks": fold_ranks(p.rank for p in one.procs if p.rank is not None),
                "nodes": one.nodes,
                "frames": [f"{f.function} {f.path}:{f.line}" for f in one.first.stack.frames],
            }
            for one in classes(snapshot, verdict)
        ],
        "nodes": [
            {
                "node": node.name,
                **_values(node, ("silent", "py_spy", "seconds", "late")),
                "processes": [_proc_json(proc) for proc in node.procs],
            }
            for node in snapshot.nodes
        ],
    }


_BEFORE = ("pid", "rank", "role", "index", "user", "program", "state", "kind", "progress")
_AFTER = ("how", "error", "wchan", "kernel_stack", "beat", "clip", "files", "repaired")


def _values(one: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _proc_json(proc: Proc) -> dict[str, Any]:
    computed = {"where": proc.where(), "cpu_share": round(proc.cpu_share, 3)}
    threads = [
        {
            **_values(thread, ("tid", "name", "kind", "owns_gil")),
            "frames": [[f.function, f.path, f.line] for f in thread.stack.frames],
        }
        for thread in proc.threads
    ]
    return {**_values(proc, _BEFORE), **computed, **_values(proc, _AFTER), "threads": threads}


def nccl_json(snapshot: JobSnapshot) -> dict[str, Any]:
    launched, gpus = read_launched(snapshot), read_use(snapshot)
    return {
        "answered": list(launched.answered),
        "silent": dict(launched.silent),
        "why_not": launched.why_not or None,
        "moved": launched.has_moved if launched.looks > 1 else None,
        "communicators": [_group_json(group) for group in launched.groups],
        "gpus": [
            {
                "rank": one.rank,
                "node": one.node,
                "use": one.use,
                "used_pct": one.load.used_pct,
                "power_w": one.load.power_w,
                "limit_w": one.load.limit_w,
                "clock_mhz": one.load.clock_mhz,
            }
            for one in gpus.ranks
        ],
        "gpus_unknown": gpus.unknown,
    }


def _group_json(group: Group) -> dict[str, Any]:
    moved = sorted(group.moved, key=lambda member: member.number)
    return {
        "name": group.name,
        "size": group.size,
        "equal": None if group.is_unclear else group.is_equal,
        "moved": [_member_json(member) for member in moved],
        "missing": [{**_member_json(member), "why": why} for member, why in group.missing],
        "ranks": [
            {**_member_json(member), "launched": dict(counts)}
            for member, counts in sorted(group.counts.items(), key=lambda one: one[0].number)
        ],
    }


def _member_json(member: Member) -> dict[str, Any]:
    return {"number": member.number, "rank": member.rank, "node": member.node, "pid": member.pid}
