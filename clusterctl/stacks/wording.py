"""Sentences of a verdict: who, where, since when, and in which kernel state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checks import units
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import grouped
from clusterctl.stacks.model import Proc, Progress
from clusterctl.stacks.wait_sites import Kind

UNSHOWN = "and their stacks do not show what they wait for"


def halt_reason(proc: Proc) -> str:
    """Why a halted process does not run."""
    if proc.is_frozen:
        return "is frozen by its cgroup (state D)"
    if proc.state == "T":
        return "is stopped by a signal (state T; kill -CONT wakes it)"
    if proc.state == "t":
        return "is held by a tracer (state t)"
    where = f" in {proc.wchan}" if proc.wchan else ""
    what = "waits for storage" if proc.in_storage else "sleeps in the kernel"
    return f"{what}{where} (state D)"


def names(procs: Sequence[Proc]) -> str:
    """`rank 3`, `ranks 3,5`, `rank 3 loader 1 (and 2 more)`."""
    if all(p.role == "trainer" for p in procs):
        ranks = [p.rank for p in procs if p.rank is not None]
        if not ranks:
            return f"pid {procs[0].pid}"
        return f"rank{'s' * (len(ranks) > 1)} {fold_ranks(ranks)}"
    return procs[0].label + (f" (and {len(procs) - 1} more)" if len(procs) > 1 else "")


def culprit(proc: Proc, name: str) -> str:
    """`name` of what others wait for; of a loader `rank 3 waits for data; its loader 1`."""
    if proc.role != "loader":
        return name
    return f"rank {proc.rank} waits for data; its {proc.label.split(' ', 2)[-1]}"


def waits(waiting: Sequence[Proc]) -> str:
    """`191 ranks wait in all_reduce`; `… are in conv2d, as if waiting` where no stack shows it."""
    sure = [p for p in waiting if p.waits_for_peers]
    operations = [p.operation if sure else p.stack.frames[0].function for p in sure or waiting]
    common = max(sorted(set(operations)), key=operations.count) if operations else "?"
    count, s = len(waiting), "s" * (len(waiting) == 1)
    is_ = "is" if s else "are"
    what = f"wait{s} in {common}" if sure else f"{is_} in {common}, as if waiting"
    return f"{count} rank{'s' * (count != 1)} {what}"


def doubt(waiting: Sequence[Proc]) -> list[str]:
    """Evidence that some ranks only seem to wait."""
    crowd = [p for p in waiting if not p.waits_for_peers]
    if not crowd:
        return []
    who = f"{names(crowd)} {'is' if len(crowd) == 1 else 'are'}"
    why = "with NCCL a rank runs until its launch queue is full"
    return [f"{who} in one place that is not a collective; {why}"]


def places(procs: Sequence[Proc]) -> str:
    """`ranks 0-2 in forward model.py:40; rank 3 in acquire train.py:9`, larger groups first."""
    groups = grouped(((proc.kind, proc.where(limit=2)), proc) for proc in procs)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    shown = [f"{names(found)} in {place}" for (_, place), found in ordered[:3]]
    shown += [f"and {len(ordered) - 3} more places"] if len(ordered) > 3 else []
    return "; ".join(shown)


def where(proc: Proc) -> str:
    text = proc.where(limit=2)
    if proc.in_storage:
        text += f", storage ({proc.wchan})"
    file = proc.file() if proc.role == "loader" else None
    return f"{text}, file {file}" if file else text


def age(proc: Proc) -> str:
    """` for 12 s`, where that is known."""
    return f" for {units.duration(proc.age_s)}" if proc.clip or proc.age_s >= 1 else ""


def facts(proc: Proc) -> str:
    gil = ", holds the GIL" if proc.owns_gil else ""
    wchan = f" in {proc.wchan}" if proc.wchan else ""
    return (
        f"{proc.label} ({proc.node}) pid {proc.pid}: {proc.kind}, {proc.progress}, "
        f"{proc.cpu_share:.0%} CPU in {units.duration(proc.seconds)}, "
        f"state {proc.state}{wchan}{gil}: {proc.where(limit=3)}"
    )


def beat_lines(procs: Iterable[Proc]) -> list[str]:
    return [
        f"rank {proc.rank} heartbeat: step {beat['step']}, phase {beat['phase']}, "
        f"{units.duration(beat['age_s'])} old"
        for proc in procs
        if (beat := proc.beat)
    ][:3]


def evidence(seen: Iterable[Proc], beating: Iterable[Proc]) -> list[str]:
    return [*map(facts, seen), *beat_lines(beating)]


def next_for(proc: Proc) -> list[str]:
    if proc.progress == Progress.SPINNING:
        return ["py-spy top or --native-suspects on it: where the CPU goes"]
    if proc.in_storage:
        return ["check that file's mount and that node's kernel log"]
    if proc.role == "loader" and proc.file():
        return [f"try that file alone: {proc.file()}"]
    if proc.role != "loader" and proc.kind == Kind.LOG:
        return ["check the network of that node; a run must not wait for its logger"]
    return ["--native-suspects: which call in C it waits in"]
