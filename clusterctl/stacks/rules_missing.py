"""Rule 1: ranks and nodes that are missing, or cannot run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import messages
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.predicates import has_gone_on, has_moved, saves
from clusterctl.stacks.progress import STANDS, Progress
from clusterctl.stacks.verdict import FEW, Confidence, Suspect, Verdict, VerdictKind, named, suspect
from clusterctl.stacks.wait_sites import Kind


def who_is_halted(
    snapshot: JobSnapshot, trainers: Sequence[Proc], waiting: Sequence[Proc], halted: Sequence[Proc]
) -> Verdict | None:
    """A process is stopped, frozen or asleep in the kernel, and others wait for it."""
    # A stopped loader whose rank still works does no harm yet.
    guilty = [
        p
        for p in halted
        if p.role == "trainer"
        or any(t.rank == p.rank and t.node == p.node and t.kind == Kind.WAIT_DATA for t in trainers)
    ]
    guilty = guilty or [p for p in halted if p.role not in ("trainer", "loader")]
    # A save sleeps in the kernel while the disk works: that is waiting (rule 2), not a fault.
    guilty = [p for p in guilty if p.state != "D" or p.is_frozen or not saves(p)]
    # A process that cannot run blocks the others, whether or not they already wait for it.
    barred = [p for p in guilty if p.role == "trainer" and (p.state == "T" or p.is_frozen)]
    if not guilty or not (
        waiting or barred or len(guilty) >= len(trainers) or _wait_for_data(trainers)
    ):
        return None
    suspects = [suspect(p, messages.halt_reason(p)) for p in guilty]
    first = guilty[0]
    rest = [p for p in waiting if p not in guilty]
    parent = ""
    if first.role == "loader":
        parent = f"rank {first.rank} waits for data; its "
    name = first.label.split(" ", 2)[-1] if parent else named(suspects)
    others = f"; {messages.waits(rest)}" if rest else ""
    return Verdict(
        VerdictKind.HANG,
        f"{parent}{name} ({first.node}) {messages.halt_reason(first)}{messages.at(first)}{others}.",
        Confidence.HIGH,
        suspects,
        [
            *(messages.facts(p) for p in guilty[:4]),
            *messages.beat_lines(guilty),
            *messages.doubt(rest),
        ],
        ["sudo dmesg and the mount of that file"]
        if first.in_storage
        else [f"find out what stopped it; clusterctl run -w {first.node} 'kill -CONT {first.pid}'"]
        if first.state == "T"
        else ["thaw its cgroup" if first.is_frozen else "look at that node's kernel log"],
    )


def _wait_for_data(trainers: Sequence[Proc]) -> bool:
    return any(p.kind == Kind.WAIT_DATA and p.progress == Progress.STUCK for p in trainers)


def who_is_missing(
    snapshot: JobSnapshot, trainers: Sequence[Proc], waiting: Sequence[Proc], missing: Sequence[int]
) -> Verdict | None:
    """A rank has no process, or a node does not answer."""
    silent = snapshot.silent
    if not missing and not silent:
        return None
    if missing and silent:
        where = fold([node.name for node in silent])
        suspects = [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent]
        ranks = f"rank{'s' * (len(missing) > 1)} {fold_ranks(missing)}"
        evidence = [f"{n.name}: {n.silent}" for n in silent[:4]]
        if waiting and len(waiting) == len(trainers):
            # MegaScale's rule: who does not answer is the first suspect.
            return Verdict(
                VerdictKind.HANG,
                f"{where} did not answer, so {ranks} may hang there; {messages.waits(waiting)}.",
                Confidence.MEDIUM,
                suspects,
                evidence,
                [f"reach {where} another way; clusterctl nodes"],
            )
        if has_moved(trainers):
            return Verdict(
                VerdictKind.SILENT,
                f"{where} did not answer; all {len(trainers)} other ranks move, so {ranks} must, "
                "too.",
                Confidence.MEDIUM,
                suspects,
                evidence,
                [f"sshd or network of {where}; training goes on"],
            )
        return None
    ranks = fold_ranks(missing)
    seen = (
        f"no process with rank {ranks} on these nodes, which have {len(trainers)} of "
        f"{snapshot.world} ranks"
    )
    # A rank without a process while no other moves is enough, wherever the others are.
    all_stand = bool(trainers) and all(
        p.progress in STANDS and not has_gone_on(p) for p in trainers
    )
    if missing and (waiting or all_stand):
        suspects = [
            Suspect(_home(snapshot, rank), rank, "trainer", "no process of it") for rank in missing
        ]
        nodes = fold(list(dict.fromkeys(s.node for s in suspects)))
        # Whole nodes may be missing from the hostfile.
        sure = bool(waiting) and len(missing) <= max(1, FEW * (snapshot.world or 1))
        rest = (
            messages.waits(waiting)
            if waiting
            else f"none of the others moves: {messages.places(trainers)}"
        )
        return Verdict(
            VerdictKind.HANG,
            f"rank {ranks} ({nodes}) has ended; {rest}.",
            Confidence.HIGH if sure else Confidence.MEDIUM,
            suspects,
            [seen, *messages.doubt(waiting)],
            [
                f"the end of ranks/{missing[0]}.log; clusterctl kill",
                "or its node is not in this hostfile",
            ],
        )
    if missing and has_moved(trainers):
        return Verdict(
            VerdictKind.OK,
            f"all {len(trainers)} ranks on these nodes move.",
            Confidence.MEDIUM,
            [],
            [seen],
        )
    return None


def _home(snapshot: JobSnapshot, rank: int) -> str:
    """The node of a rank that is gone: that of its remaining processes or its neighbours."""
    for proc in snapshot.procs:
        if proc.rank == rank:
            return proc.node
    near = sorted(snapshot.trainers, key=lambda p: abs((p.rank or 0) - rank))
    return f"{near[0].node}?" if near else "?"
