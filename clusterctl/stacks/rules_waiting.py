"""Rules 2 to 5: most wait for peers, or all for peers, or all for data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from checks import units
from clusterctl.nodes import grouped
from clusterctl.stacks import wording
from clusterctl.stacks.model import STANDS, JobSnapshot, Proc, Progress
from clusterctl.stacks.verdict import SURE_S, Confidence, Suspect, Verdict, VerdictKind, named
from clusterctl.stacks.wait_sites import Kind


def few_do_not_wait(snapshot: JobSnapshot, waiting: Sequence[Proc]) -> Verdict | None:
    """Rule 2: most wait for peers, a few do not; these, or their loaders, are suspects."""
    trainers = snapshot.alive
    others = set(trainers).difference(waiting)
    if not waiting or not others:
        return None
    unseen = [p for p in trainers if p in others and p.kind == Kind.UNKNOWN]
    rest = [p for p in trainers if p in others and p.kind != Kind.UNKNOWN]
    if not rest:
        return _unseen(waiting, unseen)
    suspects, busy = _descend(snapshot, rest)
    confidence = Confidence.of(len(rest), len(trainers))
    evidence = [wording.facts(p) for p in rest]
    if unseen:
        why = unseen[0].error or "no reason given"
        evidence.append(f"{wording.names(unseen)}: no stack could be read ({why})")
    if unseen or not all(p.waits_for_peers for p in waiting):
        confidence = Confidence.MEDIUM
    evidence = wording.doubt(waiting) + evidence[:4] + wording.beat_lines(rest)
    blamed = [s.proc for s in suspects if s.proc]
    evidence += [wording.facts(p) for p in blamed if p not in rest]
    if all(p.saves for p in rest):
        return _saving(rest, waiting, confidence, evidence)
    if not suspects:
        where = busy[0].proc.where(limit=2) if busy[0].proc else "?"
        waits = f"{wording.waits(waiting)}. Slow, or just late."
        text = f"{named(busy)} ({busy[0].node}) still works at {where}; {waits}"
        next_steps = ["--watch, or more time between samples: --interval 30"]
        return Verdict(VerdictKind.BUSY, text, Confidence.LOW, busy, evidence, next_steps)
    own = [p for p in blamed if p.role == "trainer" and p.kind != Kind.WAIT_DATA]
    if 2 * len(own) > len(trainers):  # no suspects when most would be
        places = f"{wording.UNSHOWN}: {wording.places(own)}{wording.age(own[0])}"
        text = f"{wording.waits(waiting)}; {len(own)} others are stuck, {places}."
        next_steps = [*wording.next_for(own[0]), "--interval 30, and the ranks' own logs"]
        return Verdict(VerdictKind.HANG, text, Confidence.LOW, [], evidence, next_steps)
    first = blamed[0]
    spins = first.progress == Progress.SPINNING
    stood_s = max(first.stood_s, *(p.stood_s for p in rest))
    if spins or stood_s < SURE_S:
        confidence = Confidence.MEDIUM
    if stood_s < SURE_S:
        evidence.append(
            f"it was seen there for only {units.duration(stood_s)}: use --interval 30 to be sure"
        )
    if any(p.progress == Progress.MOVING for p in rest):
        confidence = Confidence.LOW if confidence == Confidence.MEDIUM else Confidence.MEDIUM
    what = f"has not moved: {wording.where(first)}"
    if spins:
        what = f"uses CPU in {first.where(limit=1)} in all samples, for long or without end"
    who_ = wording.culprit(first, named(suspects))
    if first.role != "trainer" and len(suspects) > 1:
        who_ += f" (and {len(suspects) - 1} more)"
    text = f"{who_} ({first.node}) {what}{wording.age(first)}; {wording.waits(waiting)}."
    return Verdict(VerdictKind.HANG, text, confidence, suspects, evidence, wording.next_for(first))


def _unseen(waiting: Sequence[Proc], unseen: Sequence[Proc]) -> Verdict:
    """All visible ranks wait; the others may wait, too."""
    which = f"{wording.names(unseen)} ({unseen[0].node})"
    why = unseen[0].error or "no reason given"
    could_wait = f"no stack of {which} could be read, so it may wait, too: {why}"
    text = f"{wording.waits(waiting)}; {could_wait}."
    evidence = wording.evidence(unseen[:4], unseen)
    next_steps = ["see below for what to allow, or --sudo; --dump-timeout"]
    return Verdict(VerdictKind.UNKNOWN, text, Confidence.LOW, [], evidence, next_steps)


def _saving(
    saving: Sequence[Proc], waiting: Sequence[Proc], confidence: Confidence, evidence: list[str]
) -> Verdict:
    who = [Suspect.of(p, "saves a checkpoint") for p in saving] if waiting else []
    first = saving[0]
    what = f"saves a checkpoint at {first.where(limit=1)}{wording.age(first)}"
    if first.state == "D":
        what += ", asleep in the kernel" + (f" ({first.wchan})" if first.wchan else "")
    text = f"{named(who)} ({first.node}) {what}; {wording.waits(waiting)}."
    if not waiting:
        text = f"all {len(saving)} ranks save; rank {first.rank} {what}."
    next_steps = ["wait for the save, or check its disk; --watch shows when it continues"]
    return Verdict(VerdictKind.WAITING, text, confidence, who, evidence, next_steps)


def all_save(snapshot: JobSnapshot) -> Verdict | None:
    """All ranks save, so they wait for a disk and nobody for another."""
    saving = snapshot.alive
    if len(saving) < 2 or not all(p.saves and p.progress in STANDS for p in saving):
        return None
    return _saving(saving, (), Confidence.MEDIUM, wording.evidence(saving[:4], saving[:2]))


def _descend(
    snapshot: JobSnapshot, trainers: Sequence[Proc]
) -> tuple[list[Suspect], list[Suspect]]:
    """(suspects, processes that merely work) among trainers that others wait for, and loaders."""
    suspects, busy = [], []
    for trainer in trainers:
        # A backward pass in C++ shows one frame all the time: a rank that computes is not stuck.
        computes = trainer.kind == Kind.BACKWARD or trainer.progress not in STANDS
        if trainer.kind == Kind.WAIT_DATA:
            blamed, working = _judge_loaders(snapshot.loaders(trainer))
            why = f"waits for data{', but moves' if computes else ' that no loader works on'}"
        else:
            blamed, working = [], []
            why = "works" if computes else trainer.progress
        if not blamed and not working:
            # For data: every loader is idle, or there is none; the fault is between them and it.
            (working if computes else blamed).append(Suspect.of(trainer, why))
        suspects += blamed
        busy += working
    return suspects, busy


def _judge_loaders(loaders: Sequence[Proc]) -> tuple[list[Suspect], list[Suspect]]:
    """(suspects, if there are none those that work)."""
    blamed, working = [], []
    for loader in loaders:
        if loader.is_halted:
            blamed.append(Suspect.of(loader, wording.halt_reason(loader)))
        elif loader.kind in (Kind.IDLE, Kind.PUT):
            continue
        elif loader.progress in STANDS:
            blamed.append(Suspect.of(loader, loader.progress))
        elif loader.progress == Progress.GONE:
            blamed.append(Suspect.of(loader, "has ended"))
        else:
            working.append(Suspect.of(loader, "works"))
    return blamed, [] if blamed else working


def all_wait(snapshot: JobSnapshot, waiting: Sequence[Proc]) -> Verdict | None:
    """Rules 3 and 4: all wait for peers, in different collectives or all in the same."""
    if len(waiting) < len(snapshot.alive):
        return None
    groups = grouped(
        ((p.operation, p.caller, p.beat["step"] if p.beat else None), p) for p in waiting
    )
    ordered = sorted(groups.items(), key=lambda item: len(item[1]))
    if len(ordered) > 1:
        return _different(len(waiting), ordered)
    (operation, caller, _), _ = ordered[0]
    where = f"all {len(waiting)} ranks wait in {operation} at {caller}"
    text = f"{where}; stacks alone do not show which one is missing."
    evidence = wording.evidence(waiting[:1], waiting[:1])
    next_steps = [
        "the flight recorder's counters, if shown below: a rank that has not joined is behind",
        "ncclras on a node (NCCL 2.24 or newer), or --ras HOST:PORT: counts that differ",
        "clusterctl preflight for links and Xid; an all-reduce of each pair finds a bad cable",
    ]
    return Verdict(VerdictKind.ALL_SAME, text, Confidence.LOW, [], evidence, next_steps)


def _different(
    count: int, ordered: Sequence[tuple[tuple[str, str, int | None], list[Proc]]]
) -> Verdict:
    """Groups of ranks in different collectives, the smallest first."""
    lines = []
    for (operation, caller, step), procs in reversed(ordered):
        at_step = f", step {step}" if step is not None else ""
        lines.append(f"{wording.names(procs)} in {operation} at {caller}{at_step}")
    few, many = ordered[0], ordered[-1]
    tie = len(few[1]) == len(ordered[1][1])
    steps = {key[2] for key, _ in ordered}
    if tie and len(steps) > 1 and None not in steps:
        few = min(ordered, key=lambda item: item[0][2] or 0)  # who is a step behind
        tie = False
    place, suspects = f"in {few[0][0]} at {few[0][1]}", []
    who, confidence = "there are two groups of the same size", Confidence.LOW
    if not tie:
        suspects = [Suspect.of(p, f"{place}, the others elsewhere") for p in few[1]]
        who = f"{named(suspects)} ({suspects[0].node}) is {place}"
        confidence = Confidence.of(len(few[1]), count)
    others = f"{len(many[1])} in {many[0][0]} at {many[0][1]}"
    text = f"ranks wait in different collectives: {who}; {others}."
    evidence = lines + wording.beat_lines(procs[0] for _, procs in ordered)
    cause = "find what made one rank take another branch before these lines"
    next_steps = [f"{cause} (an empty batch, an early return)"]
    return Verdict(VerdictKind.DESYNC, text, confidence, suspects, evidence, next_steps)


def all_want_data(snapshot: JobSnapshot) -> Verdict | None:
    """Rule 5: all ranks wait for data."""
    wanting = snapshot.alive
    if any(p.kind != Kind.WAIT_DATA for p in wanting):
        return None
    suspects, busy = _descend(snapshot, wanting)
    blamed = [s.proc for s in suspects or busy if s.proc]
    first = blamed[0]
    waits = f"all {len(wanting)} ranks wait for data"
    if not suspects:
        text = f"{waits}, and their loaders work: data loading is slow."
        evidence = [wording.facts(first)]
        next_steps = ["more loader workers, or a faster place for the data"]
        return Verdict(VerdictKind.BUSY, text, Confidence.MEDIUM, busy[:8], evidence, next_steps)
    place = f"{wording.where(first)}{wording.age(first)}"
    text = f"{waits}; {named(suspects)} ({first.node}): {place}."
    confidence = Confidence.MEDIUM if len(wanting) > 1 else Confidence.HIGH
    evidence = wording.evidence(blamed[:4], wanting[:2])
    return Verdict(VerdictKind.DATA, text, confidence, suspects, evidence, wording.next_for(first))
