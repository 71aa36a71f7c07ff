"""Who hangs: ordered rules over a snapshot, each with its evidence and confidence. Pure.

The majority is healthy and waits; what it waits for is suspect (STAT, ByteRobust). Never "faulty
GPU" from stacks alone, and a rank that still works is slow, not hung.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.stacks import messages
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.predicates import has_gone_on, has_moved, is_halted, missing_ranks, who_waits
from clusterctl.stacks.progress import STANDS, Progress
from clusterctl.stacks.rules_missing import who_is_halted, who_is_missing
from clusterctl.stacks.rules_waiting import all_wait, all_want_data, few_do_not_wait
from clusterctl.stacks.verdict import Confidence, Verdict, VerdictKind, silent_suspects, suspect
from clusterctl.stacks.wait_sites import Kind


def judge(snapshot: JobSnapshot) -> Verdict:
    """The first rule that applies."""
    trainers = [p for p in snapshot.trainers if p.progress != Progress.GONE]
    missing = missing_ranks(snapshot)
    halted = [p for p in snapshot.procs if is_halted(p)]
    if not snapshot.trainers:
        verdict = _no_rank(snapshot)
    elif has_moved(trainers) and not missing:
        verdict = _moving(snapshot, trainers, halted)
    else:
        waiting = who_waits(snapshot, trainers, missing)
        verdict = (
            who_is_halted(trainers, waiting, halted)
            or who_is_missing(snapshot, trainers, waiting, missing)
            or few_do_not_wait(snapshot, trainers, waiting)
            or all_wait(trainers, waiting)
            or all_want_data(snapshot, trainers)
            or _undecided(snapshot, trainers)
        )
        if missing and not verdict.suspects:
            ranks = fold_ranks(missing)
            verdict.evidence.insert(0, f"no process with rank {ranks} on the nodes that answer")
    for p in snapshot.procs:
        if p.repaired:
            left = f"{p.label} ({p.node}) pid {p.pid} was left stopped by a dump and resumed"
            verdict.evidence.append(left)
    return verdict


def _moving(snapshot: JobSnapshot, trainers: Sequence[Proc], halted: Sequence[Proc]) -> Verdict:
    steps = [p.beats for p in trainers if len(p.beats) > 1]
    evidence = []
    if steps:
        first = min(beats[0]["step"] for beats in steps)
        last = max(beats[-1]["step"] for beats in steps)
        seconds = snapshot.interval_s * (snapshot.samples - 1)
        passed = f"step {first} to {last} in {seconds:.1f} s"
        evidence.append(f"heartbeats of {len(steps)} ranks: {passed}")
    for p in halted[:3]:
        evidence.append(f"but {p.label} ({p.node}) pid {p.pid}: {messages.halt_reason(p)}")
    if snapshot.silent:
        names, suspects, reasons = silent_suspects(snapshot.silent)
        text = f"all {len(trainers)} visible ranks move; {names} did not answer."
        evidence += reasons
        check = [f"sshd or network of {names}"]
        return Verdict(VerdictKind.SILENT, text, Confidence.MEDIUM, suspects, evidence, check)
    text = f"all {len(trainers)} ranks move."
    next_steps = ["slow rather than hung? clusterctl top shows the slowest rank of each step"]
    confidence = Confidence.HIGH if steps else Confidence.MEDIUM
    return Verdict(VerdictKind.OK, text, confidence, [], evidence, next_steps)


def _undecided(snapshot: JobSnapshot, trainers: Sequence[Proc]) -> Verdict:
    low, count = Confidence.LOW, len(trainers)
    unseen = [p for p in trainers if p.kind == Kind.UNKNOWN]
    if unseen and len(unseen) == count:
        text = f"no stack of any rank could be read: {unseen[0].error or 'no reason given'}."
        next_steps = ["see below for what to allow, or --sudo"]
        evidence = [messages.facts(p) for p in unseen[:2]]
        return Verdict(VerdictKind.UNKNOWN, text, low, [], evidence, next_steps)
    stuck = [p for p in trainers if p.progress in STANDS]
    if len(stuck) < count:
        still = [p for p in trainers if not has_gone_on(p)]
        ranks = fold_ranks(p.rank for p in still if p.rank is not None)
        others = f"rank {ranks} did not in {snapshot.interval_s:g} s: too short to decide"
        text = f"{count - len(still)} of {count} ranks moved, {others}."
        evidence = messages.evidence(still[:3], still[:2])
        return Verdict(VerdictKind.BUSY, text, low, [], evidence, ["--interval 30, or --watch"])
    first = stuck[0]
    spins = first.progress == Progress.SPINNING
    if count > 1 and all(p.progress == Progress.SPINNING for p in stuck):
        place = first.where(limit=2)
        text = f"all {count} ranks compute in {place}: a long step, or an endless one."
        evidence = messages.evidence([first], [first])
        return Verdict(VerdictKind.BUSY, text, low, [], evidence, ["--interval 30, or --watch"])
    evidence, next_steps = messages.evidence(stuck[:4], stuck[:2]), messages.next_for(first)
    if count > 1:  # no suspects when all would be
        places = f"{messages.UNSHOWN}: {messages.places(stuck)}{messages.age(first)}"
        text = f"all {count} ranks are stuck, {places}."
        next_steps.append("--interval 30, and the ranks' own logs")
        return Verdict(VerdictKind.HANG, text, low, [], evidence, next_steps)
    doing = "uses CPU in the same functions," if spins else "is stuck in"
    place = f"{doing} {first.where(limit=2)}{messages.age(first)}"
    text = f"{messages.names(stuck)} ({first.node}) {place}."
    suspects = [suspect(first, first.progress)]
    return Verdict(VerdictKind.HANG, text, Confidence.MEDIUM, suspects, evidence, next_steps)


def _no_rank(snapshot: JobSnapshot) -> Verdict:
    if not snapshot.silent:
        return Verdict(VerdictKind.UNKNOWN, "no rank runs on any node.", Confidence.LOW)
    names, suspects, evidence = silent_suspects(snapshot.silent)
    text = f"{names} did not answer, and no rank runs on the other nodes."
    return Verdict(VerdictKind.SILENT, text, Confidence.LOW, suspects, evidence)
