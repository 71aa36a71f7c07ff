"""Who hangs: ordered rules over a snapshot, each with its evidence and confidence. Pure.

The majority is healthy and waits; what it waits for is suspect (STAT, ByteRobust). Never "faulty
GPU" from stacks alone, and a rank that still works is slow, not hung.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import messages
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.predicates import has_gone_on, has_moved, is_halted, missing_ranks, who_waits
from clusterctl.stacks.progress import STANDS, Progress
from clusterctl.stacks.rules_missing import who_is_halted, who_is_missing
from clusterctl.stacks.rules_waiting import all_wait, all_want_data, few_do_not_wait
from clusterctl.stacks.verdict import Confidence, Suspect, Verdict, VerdictKind, suspect
from clusterctl.stacks.wait_sites import Kind


def judge(snapshot: JobSnapshot) -> Verdict:
    """The first rule that applies."""
    trainers = [p for p in snapshot.trainers if p.progress != Progress.GONE]
    missing = missing_ranks(snapshot)
    halted = [p for p in snapshot.procs if is_halted(p)]
    if not snapshot.trainers:
        verdict = _nothing(snapshot)
    elif has_moved(trainers) and not missing:
        verdict = _moving(snapshot, trainers, halted)
    else:
        waiting = who_waits(snapshot, trainers, missing)
        verdict = (
            who_is_halted(snapshot, trainers, waiting, halted)
            or who_is_missing(snapshot, trainers, waiting, missing)
            or few_do_not_wait(snapshot, trainers, waiting)
            or all_wait(snapshot, trainers, waiting)
            or all_want_data(snapshot, trainers)
            or _undecided(snapshot, trainers)
        )
        if missing and not verdict.suspects:
            ranks = fold_ranks(missing)
            verdict.evidence.insert(0, f"no process with rank {ranks} on the nodes that answer")
    verdict.evidence += _repaired(snapshot)
    return verdict


def _moving(snapshot: JobSnapshot, trainers: Sequence[Proc], halted: Sequence[Proc]) -> Verdict:
    steps = [p.beats for p in trainers if len(p.beats) > 1]
    evidence = []
    if steps:
        first = min(beats[0]["step"] for beats in steps)
        last = max(beats[-1]["step"] for beats in steps)
        evidence.append(
            f"heartbeats of {len(steps)} ranks: step {first} to {last} in "
            f"{snapshot.interval_s * (snapshot.samples - 1):.1f} s"
        )
    evidence += [
        f"but {p.label} ({p.node}) pid {p.pid}: {messages.halt_reason(p)}" for p in halted[:3]
    ]
    silent = snapshot.silent
    if silent:
        names = fold([node.name for node in silent])
        return Verdict(
            VerdictKind.SILENT,
            f"all {len(trainers)} visible ranks move; {names} did not answer.",
            Confidence.MEDIUM,
            [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent],
            [*evidence, *(f"{n.name}: {n.silent}" for n in silent[:4])],
            [f"sshd or network of {names}"],
        )
    return Verdict(
        VerdictKind.OK,
        f"all {len(trainers)} ranks move.",
        Confidence.HIGH if steps else Confidence.MEDIUM,
        [],
        evidence,
        ["slow rather than hung? clusterctl top shows the slowest rank of each step"],
    )


def _undecided(snapshot: JobSnapshot, trainers: Sequence[Proc]) -> Verdict:
    unseen = [p for p in trainers if p.kind == Kind.UNKNOWN]
    if unseen and len(unseen) == len(trainers):
        return Verdict(
            VerdictKind.UNKNOWN,
            f"no stack of any rank could be read: {unseen[0].error or 'no reason given'}.",
            Confidence.LOW,
            [],
            [messages.facts(p) for p in unseen[:2]],
            ["see below for what to allow, or --sudo"],
        )
    stuck = [p for p in trainers if p.progress in STANDS]
    if stuck and len(stuck) == len(trainers):
        if all(p.progress == Progress.SPINNING for p in stuck) and len(trainers) > 1:
            return Verdict(
                VerdictKind.BUSY,
                f"all {len(stuck)} ranks compute in {stuck[0].where(limit=2)}: "
                "a long step, or an endless one.",
                Confidence.LOW,
                [],
                [messages.facts(stuck[0]), *messages.beat_lines(stuck[:1])],
                ["--interval 30, or --watch"],
            )
        evidence = [*(messages.facts(p) for p in stuck[:4]), *messages.beat_lines(stuck[:2])]
        if len(stuck) > 1:  # no suspects when all would be
            return Verdict(
                VerdictKind.HANG,
                f"all {len(stuck)} ranks are stuck, and their stacks do not show what they wait "
                f"for: {messages.places(stuck)}{messages.age(stuck[0])}.",
                Confidence.LOW,
                [],
                evidence,
                [*messages.next_for(stuck[0]), "--interval 30, and the ranks' own logs"],
            )
        spins = stuck[0].progress == Progress.SPINNING
        doing = "uses CPU in the same functions," if spins else "is stuck in"
        return Verdict(
            VerdictKind.HANG,
            f"{messages.names(stuck)} ({stuck[0].node}) {doing} "
            f"{stuck[0].where(limit=2)}{messages.age(stuck[0])}.",
            Confidence.MEDIUM,
            [suspect(stuck[0], stuck[0].progress)],
            evidence,
            messages.next_for(stuck[0]),
        )
    moved = [p for p in trainers if has_gone_on(p)]
    still = [p for p in trainers if not has_gone_on(p)]
    ranks = fold_ranks(p.rank for p in still if p.rank is not None)
    return Verdict(
        VerdictKind.BUSY,
        f"{len(moved)} of {len(trainers)} ranks moved, rank {ranks} did not in "
        f"{snapshot.interval_s:g} s: too short to decide.",
        Confidence.LOW,
        [],
        [*(messages.facts(p) for p in still[:3]), *messages.beat_lines(still[:2])],
        ["--interval 30, or --watch"],
    )


def _nothing(snapshot: JobSnapshot) -> Verdict:
    silent = snapshot.silent
    if silent:
        names = fold([node.name for node in silent])
        return Verdict(
            VerdictKind.SILENT,
            f"{names} did not answer, and no rank runs on the other nodes.",
            Confidence.LOW,
            [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent],
            [f"{n.name}: {n.silent}" for n in silent[:4]],
            [],
        )
    return Verdict(VerdictKind.UNKNOWN, "no rank runs on any node.", Confidence.LOW)


def _repaired(snapshot: JobSnapshot) -> list[str]:
    return [
        f"{p.label} ({p.node}) pid {p.pid} was left stopped by a dump and resumed"
        for p in snapshot.procs
        if p.repaired
    ]
