"""Who hangs: ordered rules over a snapshot, each with its evidence and confidence. Pure.

The majority is healthy and waits; what it waits for is suspect (STAT, ByteRobust). Never "faulty
GPU" from stacks alone, and a rank that still works is slow, not hung.
"""

from __future__ import annotations

from collections.abc import Sequence

from checks import units
from checks.units import counted
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold, grouped
from clusterctl.stacks import wording
from clusterctl.stacks.model import STANDS, JobSnapshot, Proc, Progress
from clusterctl.stacks.rules_waiting import all_save, all_wait, all_want_data, few_do_not_wait
from clusterctl.stacks.verdict import Confidence, Suspect, Verdict, VerdictKind, named
from clusterctl.stacks.wait_sites import Kind, pauses

MOST = 0.75  # share of the ranks in one place from which on they wait there


def judge(snapshot: JobSnapshot) -> Verdict:
    """The first rule that applies."""
    if not snapshot.alive:
        verdict = _no_rank(snapshot)
    elif _all_move(snapshot) and not snapshot.missing:
        verdict = _moving(snapshot)
    else:
        waiting = who_waits(snapshot)
        verdict = (
            who_is_halted(snapshot, waiting)
            or who_is_missing(snapshot, waiting)
            or few_do_not_wait(snapshot, waiting)
            or all_wait(snapshot, waiting)
            or all_save(snapshot)
            or all_want_data(snapshot)
            or _undecided(snapshot)
        )
        if snapshot.missing and not verdict.suspects:
            ranks = fold_ranks(snapshot.missing)
            verdict.evidence.insert(0, f"no process with rank {ranks} on the nodes that answer")
    verdict.evidence += [
        f"{p.label} ({p.node}) pid {p.pid} was left stopped by a dump and resumed"
        for p in snapshot.procs
        if p.repaired
    ]
    return verdict


def _all_move(snapshot: JobSnapshot) -> bool:
    return all(p.has_moved for p in snapshot.alive)


def _moving(snapshot: JobSnapshot) -> Verdict:
    trainers = snapshot.alive
    steps = [p.beats for p in trainers if len(p.beats) > 1]
    evidence = []
    if steps:
        first = min(beats[0]["step"] for beats in steps)
        last = max(beats[-1]["step"] for beats in steps)
        seconds = snapshot.interval_s * (snapshot.samples - 1)
        passed = f"step {first} to {last} in {units.duration(seconds)}"
        evidence.append(f"heartbeats of {counted(len(steps), 'rank')}: {passed}")
    for p in [p for p in snapshot.procs if p.is_halted][:3]:
        evidence.append(f"but {p.label} ({p.node}) pid {p.pid}: {wording.halt_reason(p)}")
    if snapshot.silent:
        names, suspects, reasons = _silent(snapshot)
        text = f"all {len(trainers)} visible ranks move; {names} did not answer."
        evidence += reasons
        check = [f"sshd or network of {names}"]
        return Verdict(VerdictKind.SILENT, text, Confidence.MEDIUM, suspects, evidence, check)
    text = "the only rank moves." if len(trainers) == 1 else f"all {len(trainers)} ranks move."
    next_steps = ["slow rather than hung? clusterctl top shows the slowest rank of each step"]
    confidence = Confidence.HIGH if steps else Confidence.MEDIUM
    return Verdict(VerdictKind.OK, text, confidence, [], evidence, next_steps)


def _undecided(snapshot: JobSnapshot) -> Verdict:
    trainers, low = snapshot.alive, Confidence.LOW
    count, first = len(trainers), trainers[0]
    again = ["--interval 30, or --watch"]
    ranks = "visible ranks" if snapshot.missing else "ranks"
    if all(p.kind == Kind.UNKNOWN for p in trainers):
        text = f"no stack of any rank could be read: {first.error or 'no reason given'}."
        next_steps = ["see below for what to allow, or --sudo"]
        evidence = [wording.facts(p) for p in trainers[:2]]
        return Verdict(VerdictKind.UNKNOWN, text, low, [], evidence, next_steps)
    if any(p.progress not in STANDS for p in trainers):
        still = [p for p in trainers if not p.has_moved]
        numbers = fold_ranks(p.rank for p in still if p.rank is not None)
        others = (
            f"rank {numbers} did not in {units.duration(snapshot.interval_s)}: too short to decide"
        )
        text = f"{count - len(still)} of {count} {ranks} moved, {others}."
        evidence = wording.evidence(still[:3], still[:2])
        return Verdict(VerdictKind.BUSY, text, low, [], evidence, again)
    if all(p.progress == Progress.STUCK and pauses(p.stack) for p in trainers):
        who = f"all {count} {ranks} stand" if count > 1 else f"{wording.names(trainers)} stands"
        why = "idle, or waiting for something outside of the job"
        text = f"{who} still, {why} ({wording.places(trainers)}{wording.age(first)})."
        evidence = wording.evidence(trainers[:4], trainers[:2])
        next_steps = ["the line above shows what they wait for", *again]
        return Verdict(VerdictKind.UNKNOWN, text, low, [], evidence, next_steps)
    few = _elsewhere(trainers)
    place = first.where(limit=2)
    if all(p.progress == Progress.SPINNING for p in trainers):
        who = f"all {count} {ranks} compute" if count > 1 else f"{wording.names(trainers)} computes"
        text = f"{who} in {place}: a long step, or an endless one."
        evidence = wording.evidence([first], [first])
        return Verdict(VerdictKind.BUSY, text, low, [], evidence, again)
    shown = [*few[:3], *(p for p in trainers if p not in few)]
    evidence = wording.evidence(shown[:4], shown[:2])
    next_steps = wording.next_for(shown[0])
    if count > 1:  # no suspects when all would be
        places = f"{wording.UNSHOWN}: {wording.places(trainers)}{wording.age(first)}"
        others = f"the other {count - len(few)}"
        odd = f"{wording.names(few)} ({few[0].node}) elsewhere than {others}, " if few else ""
        text = f"all {count} {ranks} are stuck, {odd}{places}."
        next_steps.append("--interval 30, and the ranks' own logs")
        return Verdict(VerdictKind.HANG, text, low, [], evidence, next_steps)
    text = f"{wording.names(trainers)} ({first.node}) is stuck in {place}{wording.age(first)}."
    suspects = [Suspect.of(first, first.progress)]
    return Verdict(VerdictKind.HANG, text, Confidence.MEDIUM, suspects, evidence, next_steps)


def _elsewhere(trainers: Sequence[Proc]) -> list[Proc]:
    """The few that stand in another place than nearly all; none where there is no such crowd.

    They are where to look, and no suspects: with NCCL a rank stops wherever its queue is full.
    """
    crowd = max(grouped((p.stack.coarse, p) for p in trainers).values(), key=len)
    is_most = MOST * len(trainers) <= len(crowd) < len(trainers)
    return [p for p in trainers if p not in crowd] if is_most else []


def _no_rank(snapshot: JobSnapshot) -> Verdict:
    if not snapshot.silent:
        return Verdict(VerdictKind.UNKNOWN, "no rank runs on any node.", Confidence.LOW)
    names, suspects, evidence = _silent(snapshot)
    text = f"{names} did not answer, and no rank runs on the other nodes."
    return Verdict(VerdictKind.SILENT, text, Confidence.LOW, suspects, evidence)


def who_waits(snapshot: JobSnapshot) -> list[Proc]:
    """Ranks that wait for peers: by their stacks, or because nearly all are in one place.

    With NCCL the CPU runs until the launch queue is full and then stops, often spinning, in any
    operation. So where some ranks are missing, halted, saving or waiting for data, a crowd in one
    place waits for them.
    """
    trainers, missing = snapshot.alive, snapshot.missing
    sure = [p for p in trainers if p.waits_for_peers and p.progress in STANDS]
    known = set(sure)
    rest = [p for p in trainers if p not in known]
    telling = {p for p in rest if p.kind == Kind.WAIT_DATA or p.saves or p.is_halted}
    if not telling and not missing:
        return sure
    stand = [p for p in rest if p not in telling and p.progress in STANDS and p.stack.frames]
    places = grouped((p.stack.coarse, p) for p in stand)
    crowd = max(places.values(), key=len, default=[])
    everybody = len(trainers) + len(missing)
    is_most = len(crowd) >= MOST * (len(rest) + len(missing)) and 2 * len(crowd) >= everybody
    return sure + crowd if is_most else sure


def who_is_halted(snapshot: JobSnapshot, waiting: Sequence[Proc]) -> Verdict | None:
    """Rule 1: a process is stopped, frozen or asleep in the kernel, and others wait for it."""
    halted = [p for p in snapshot.procs if p.is_halted]
    wait_data = [t for t in snapshot.alive if t.kind == Kind.WAIT_DATA]
    # A stopped loader whose rank still works does no harm yet.
    places = {(t.rank, t.node) for t in wait_data}
    causes = [p for p in halted if p.role == "trainer" or (p.rank, p.node) in places]
    causes = causes or [p for p in halted if p.role not in ("trainer", "loader")]
    # A save sleeps in the kernel while the disk works: that is waiting (rule 2), not a fault.
    causes = [p for p in causes if p.state != "D" or p.is_frozen or not p.saves]
    # A process that cannot run blocks the others, whether or not they already wait for it.
    stopped = [p for p in causes if p.role == "trainer" and (p.state == "T" or p.is_frozen)]
    others_wait = waiting or any(t.progress == Progress.STUCK for t in wait_data)
    if not causes or not (others_wait or stopped or len(causes) >= len(snapshot.alive)):
        return None
    suspects = [Suspect.of(p, wording.halt_reason(p)) for p in causes]
    first = causes[0]
    rest = [p for p in waiting if p not in causes]
    others = f"; {wording.waits(rest)}" if rest else ""
    at = f" at {wording.where(first)}" if first.stack.frames else ""
    how = f"{wording.halt_reason(first)}{at}{others}"
    text = f"{wording.culprit(first, named(suspects))} ({first.node}) {how}."
    if first.in_storage:
        next_step = "sudo dmesg and the mount of that file"
    elif first.state == "T":
        wake = f"clusterctl run -w {first.node} 'kill -CONT {first.pid}'"
        next_step = f"find out what stopped it; {wake}"
    else:
        next_step = "thaw its cgroup" if first.is_frozen else "look at that node's kernel log"
    evidence = wording.evidence(causes[:4], causes) + wording.doubt(rest)
    return Verdict(VerdictKind.HANG, text, Confidence.HIGH, suspects, evidence, [next_step])


def who_is_missing(snapshot: JobSnapshot, waiting: Sequence[Proc]) -> Verdict | None:
    """A rank has no process, or a node does not answer."""
    trainers, missing = snapshot.alive, snapshot.missing
    if not missing:
        return None
    if snapshot.silent:
        return _on_silent_nodes(snapshot, waiting)
    ranks = fold_ranks(missing)
    here = f"on these nodes, which have {len(trainers)} of {snapshot.world} ranks"
    evidence = [f"no process with rank {ranks} {here}"]
    # A rank without a process while no other moves is enough, wherever the others are.
    if waiting or all(p.progress in STANDS and not p.has_moved for p in trainers):
        suspects = [Suspect(_home(snapshot, r), r, "trainer", "no process of it") for r in missing]
        nodes = fold(list(dict.fromkeys(s.node for s in suspects)))
        if waiting:
            rest = wording.waits(waiting)
            # Whole nodes may be missing from the hostfile.
            confidence = Confidence.of(len(missing), snapshot.world or 1)
        else:
            rest = f"none of the others moves: {wording.places(trainers)}"
            confidence = Confidence.MEDIUM
        text = f"rank {ranks} ({nodes}) has ended; {rest}."
        evidence += wording.doubt(waiting)
        end = f"the end of ranks/{missing[0]}.log; clusterctl kill"
        next_steps = [end, "or its node is not in this hostfile"]
        return Verdict(VerdictKind.HANG, text, confidence, suspects, evidence, next_steps)
    if _all_move(snapshot):
        text = f"all {len(trainers)} ranks on these nodes move."
        return Verdict(VerdictKind.OK, text, Confidence.MEDIUM, [], evidence)
    return None


def _on_silent_nodes(snapshot: JobSnapshot, waiting: Sequence[Proc]) -> Verdict | None:
    names, suspects, evidence = _silent(snapshot)
    ranks = f"rank{'s' * (len(snapshot.missing) > 1)} {fold_ranks(snapshot.missing)}"
    if waiting and len(waiting) == len(snapshot.alive):
        # MegaScale's rule: who does not answer is the first suspect.
        kind, next_step = VerdictKind.HANG, f"reach {names} another way; clusterctl nodes"
        text = f"{names} did not answer, so {ranks} may hang there; {wording.waits(waiting)}."
    elif _all_move(snapshot):
        kind, next_step = VerdictKind.SILENT, f"sshd or network of {names}; training continues"
        others = f"all {len(snapshot.alive)} other ranks move, so {ranks} must, too"
        text = f"{names} did not answer; {others}."
    else:
        return None
    return Verdict(kind, text, Confidence.MEDIUM, suspects, evidence, [next_step])


def _home(snapshot: JobSnapshot, rank: int) -> str:
    """The node of a rank that is gone: that of its remaining processes or its neighbours."""
    near = min(snapshot.trainers, key=lambda p: abs((p.rank or 0) - rank), default=None)
    own = (proc.node for proc in snapshot.procs if proc.rank == rank)
    return next(own, f"{near.node}?" if near else "?")


def _silent(snapshot: JobSnapshot) -> tuple[str, list[Suspect], list[str]]:
    """(names, suspects, evidence) of nodes that did not answer."""
    silent = snapshot.silent
    suspects = [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent]
    return fold([n.name for n in silent]), suspects, [f"{n.name}: {n.silent}" for n in silent[:4]]
