"""Rule 1: ranks and nodes that are missing, or cannot run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import messages
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.predicates import has_gone_on, has_moved, saves
from clusterctl.stacks.progress import STANDS, Progress
from clusterctl.stacks.verdict import (
    Confidence,
    Suspect,
    Verdict,
    VerdictKind,
    confidence_of,
    named,
    silent_suspects,
    suspect,
)
from clusterctl.stacks.wait_sites import Kind


def who_is_halted(
    trainers: Sequence[Proc], waiting: Sequence[Proc], halted: Sequence[Proc]
) -> Verdict | None:
    """A process is stopped, frozen or asleep in the kernel, and others wait for it."""
    wait_data = [t for t in trainers if t.kind == Kind.WAIT_DATA]
    # A stopped loader whose rank still works does no harm yet.
    places = {(t.rank, t.node) for t in wait_data}
    causes = [p for p in halted if p.role == "trainer" or (p.rank, p.node) in places]
    causes = causes or [p for p in halted if p.role not in ("trainer", "loader")]
    # A save sleeps in the kernel while the disk works: that is waiting (rule 2), not a fault.
    causes = [p for p in causes if p.state != "D" or p.is_frozen or not saves(p)]
    # A process that cannot run blocks the others, whether or not they already wait for it.
    stopped = [p for p in causes if p.role == "trainer" and (p.state == "T" or p.is_frozen)]
    others_wait = waiting or any(t.progress == Progress.STUCK for t in wait_data)
    if not causes or not (others_wait or stopped or len(causes) >= len(trainers)):
        return None
    suspects = [suspect(p, messages.halt_reason(p)) for p in causes]
    first = causes[0]
    rest = [p for p in waiting if p not in causes]
    others = f"; {messages.waits(rest)}" if rest else ""
    how = f"{messages.halt_reason(first)}{messages.at(first)}{others}"
    text = f"{messages.culprit(first, named(suspects))} ({first.node}) {how}."
    if first.in_storage:
        next_step = "sudo dmesg and the mount of that file"
    elif first.state == "T":
        wake = f"clusterctl run -w {first.node} 'kill -CONT {first.pid}'"
        next_step = f"find out what stopped it; {wake}"
    else:
        next_step = "thaw its cgroup" if first.is_frozen else "look at that node's kernel log"
    evidence = messages.evidence(causes[:4], causes) + messages.doubt(rest)
    return Verdict(VerdictKind.HANG, text, Confidence.HIGH, suspects, evidence, [next_step])


def who_is_missing(
    snapshot: JobSnapshot, trainers: Sequence[Proc], waiting: Sequence[Proc], missing: Sequence[int]
) -> Verdict | None:
    """A rank has no process, or a node does not answer."""
    if not missing:
        return None
    if snapshot.silent:
        return _on_silent_nodes(snapshot, trainers, waiting, missing)
    ranks = fold_ranks(missing)
    here = f"on these nodes, which have {len(trainers)} of {snapshot.world} ranks"
    evidence = [f"no process with rank {ranks} {here}"]
    # A rank without a process while no other moves is enough, wherever the others are.
    stand = [p for p in trainers if p.progress in STANDS and not has_gone_on(p)]
    if waiting or (trainers and len(stand) == len(trainers)):
        suspects = [Suspect(_home(snapshot, r), r, "trainer", "no process of it") for r in missing]
        nodes = fold(list(dict.fromkeys(s.node for s in suspects)))
        rest = f"none of the others moves: {messages.places(trainers)}"
        confidence = Confidence.MEDIUM
        if waiting:
            rest = messages.waits(waiting)
            # Whole nodes may be missing from the hostfile.
            confidence = confidence_of(len(missing), snapshot.world or 1)
        text = f"rank {ranks} ({nodes}) has ended; {rest}."
        evidence += messages.doubt(waiting)
        next_steps = [f"the end of ranks/{missing[0]}.log; clusterctl kill"]
        next_steps.append("or its node is not in this hostfile")
        return Verdict(VerdictKind.HANG, text, confidence, suspects, evidence, next_steps)
    if has_moved(trainers):
        text = f"all {len(trainers)} ranks on these nodes move."
        return Verdict(VerdictKind.OK, text, Confidence.MEDIUM, [], evidence)
    return None


def _on_silent_nodes(
    snapshot: JobSnapshot, trainers: Sequence[Proc], waiting: Sequence[Proc], missing: Sequence[int]
) -> Verdict | None:
    names, suspects, evidence = silent_suspects(snapshot.silent)
    ranks = f"rank{'s' * (len(missing) > 1)} {fold_ranks(missing)}"
    if waiting and len(waiting) == len(trainers):
        # MegaScale's rule: who does not answer is the first suspect.
        kind, next_step = VerdictKind.HANG, f"reach {names} another way; clusterctl nodes"
        text = f"{names} did not answer, so {ranks} may hang there; {messages.waits(waiting)}."
    elif has_moved(trainers):
        kind, next_step = VerdictKind.SILENT, f"sshd or network of {names}; training continues"
        others = f"all {len(trainers)} other ranks move, so {ranks} must, too"
        text = f"{names} did not answer; {others}."
    else:
        return None
    return Verdict(kind, text, Confidence.MEDIUM, suspects, evidence, [next_step])


def _home(snapshot: JobSnapshot, rank: int) -> str:
    """The node of a rank that is gone: that of its remaining processes or its neighbours."""
    for proc in snapshot.procs:
        if proc.rank == rank:
            return proc.node
    near = min(snapshot.trainers, key=lambda p: abs((p.rank or 0) - rank), default=None)
    return f"{near.node}?" if near else "?"
