"""Rule 1: ranks and nodes that are not there, or are not allowed to run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import messages as words
from clusterctl.stacks import wait_sites as kinds
from clusterctl.stacks.model import Picture, Proc
from clusterctl.stacks.predicates import has_gone_on, has_moved, saves
from clusterctl.stacks.progress import STANDS, STUCK
from clusterctl.stacks.verdict import (
    FEW,
    HANG,
    HIGH,
    MEDIUM,
    OK,
    SILENT,
    Suspect,
    Verdict,
    named,
    suspect,
)


def who_is_halted(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc], halted: Sequence[Proc]
) -> Verdict | None:
    """Somebody is stopped, frozen or asleep in the kernel, and others wait for it."""
    # A loader that is stopped while its rank works on hurts nobody yet.
    guilty = [
        p
        for p in halted
        if p.role == "trainer"
        or any(
            t.rank == p.rank and t.node == p.node and t.kind == kinds.WAIT_DATA for t in trainers
        )
    ]
    guilty = guilty or [p for p in halted if p.role not in ("trainer", "loader")]
    # A save sleeps in the kernel while the disk works: that is waiting (rule 2), not a fault yet.
    guilty = [p for p in guilty if p.state != "D" or p.is_frozen or not saves(p)]
    # Who may not run at all holds up the others whether or not they have come to wait for it.
    barred = [p for p in guilty if p.role == "trainer" and (p.state == "T" or p.is_frozen)]
    if not guilty or not (
        waiting or barred or len(guilty) >= len(trainers) or _wait_for_data(trainers)
    ):
        return None
    suspects = [suspect(p, words.halt_reason(p)) for p in guilty]
    first = guilty[0]
    rest = [p for p in waiting if p not in guilty]
    parent = ""
    if first.role == "loader":
        parent = f"rank {first.rank} waits for data; its "
    name = first.label.split(" ", 2)[-1] if parent else named(suspects)
    others = f"; {words.waits(rest)}" if rest else ""
    return Verdict(
        HANG,
        f"{parent}{name} ({first.node}) {words.halt_reason(first)}{words.at(first)}{others}.",
        HIGH,
        suspects,
        [*(words.facts(p) for p in guilty[:4]), *words.beat_lines(guilty), *words.doubt(rest)],
        ["sudo dmesg and the mount of that file"]
        if first.in_storage
        else [f"find out who stopped it; clusterctl run -w {first.node} 'kill -CONT {first.pid}'"]
        if first.state == "T"
        else ["thaw its cgroup" if first.is_frozen else "look at that node's kernel log"],
    )


def _wait_for_data(trainers: Sequence[Proc]) -> bool:
    return any(p.kind == kinds.WAIT_DATA and p.progress == STUCK for p in trainers)


def who_is_missing(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc], missing: Sequence[int]
) -> Verdict | None:
    """A rank has no process, or a node gives no answer."""
    silent = picture.silent
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
                HANG,
                f"{where} gives no answer, so {ranks} may hang there; {words.waits(waiting)}.",
                MEDIUM,
                suspects,
                evidence,
                [f"reach {where} another way; clusterctl nodes"],
            )
        if has_moved(trainers):
            return Verdict(
                SILENT,
                f"{where} gives no answer; all {len(trainers)} other ranks move, so {ranks} must too.",
                MEDIUM,
                suspects,
                evidence,
                [f"sshd or network of {where}; training goes on"],
            )
        return None
    ranks = fold_ranks(missing)
    seen = f"no process with rank {ranks} on these nodes, {len(trainers)} of {picture.world} ranks are there"
    # A rank without a process, and nobody goes on: that is enough, whatever the others stand in.
    all_stand = bool(trainers) and all(
        p.progress in STANDS and not has_gone_on(p) for p in trainers
    )
    if missing and (waiting or all_stand):
        suspects = [
            Suspect(_home(picture, rank), rank, "trainer", "no process of it") for rank in missing
        ]
        nodes = fold(list(dict.fromkeys(s.node for s in suspects)))
        # Whole nodes may simply not stand in this hostfile.
        sure = bool(waiting) and len(missing) <= max(1, FEW * (picture.world or 1))
        rest = (
            words.waits(waiting)
            if waiting
            else f"of the others none goes on: {words.places(trainers)}"
        )
        return Verdict(
            HANG,
            f"rank {ranks} ({nodes}) has ended; {rest}.",
            HIGH if sure else MEDIUM,
            suspects,
            [seen, *words.doubt(waiting)],
            [
                f"the end of ranks/{missing[0]}.log; clusterctl kill",
                "or its node is not in this hostfile",
            ],
        )
    if missing and has_moved(trainers):
        return Verdict(OK, f"all {len(trainers)} ranks on these nodes go on.", MEDIUM, [], [seen])
    return None


def _home(picture: Picture, rank: int) -> str:
    """The node of a rank that is gone: where its neighbours or what is left of it are."""
    for proc in picture.procs:
        if proc.rank == rank:
            return proc.node
    near = sorted(picture.trainers, key=lambda p: abs((p.rank or 0) - rank))
    return f"{near[0].node}?" if near else "?"
