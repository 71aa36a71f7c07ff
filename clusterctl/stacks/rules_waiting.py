"""Rules 2 to 5: most wait for peers, or all for peers, or all for data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.stacks import messages
from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.predicates import is_halted, saves
from clusterctl.stacks.progress import STANDS, Progress
from clusterctl.stacks.verdict import (
    FEW,
    SURE_S,
    Confidence,
    Suspect,
    Verdict,
    VerdictKind,
    named,
    suspect,
)
from clusterctl.stacks.wait_sites import Kind


def few_do_not_wait(
    snapshot: JobSnapshot, trainers: Sequence[Proc], waiting: Sequence[Proc]
) -> Verdict | None:
    """Rule 2: most wait for peers, a few do not; these, or their loaders, are suspects."""
    counted = {id(p) for p in waiting}
    rest = [p for p in trainers if id(p) not in counted]
    if not waiting or not rest:
        return None
    unseen = [p for p in rest if p.kind == Kind.UNKNOWN]
    rest = [p for p in rest if p.kind != Kind.UNKNOWN]
    if not rest:
        return _unseen(waiting, unseen)
    suspects: list[Suspect] = []
    busy: list[Suspect] = []
    evidence: list[str] = []
    for proc in rest:
        found, working = _descend(snapshot, proc)
        suspects += found
        busy += working
        evidence += [messages.facts(proc)]
    confidence = Confidence.HIGH if len(rest) <= max(1, FEW * len(trainers)) else Confidence.MEDIUM
    if unseen:
        evidence.append(
            f"{messages.names(unseen)}: no stack could be read "
            f"({unseen[0].error or 'no reason given'})"
        )
    if confidence == Confidence.HIGH and (unseen or not all(p.waits_for_peers for p in waiting)):
        confidence = Confidence.MEDIUM
    evidence = [
        *messages.doubt(waiting),
        *evidence[:4],
        *messages.beat_lines(rest),
        *(messages.facts(s.proc) for s in suspects if s.proc and s.proc not in rest),
    ]
    saving = [p for p in rest if saves(p)]
    if saving and len(saving) == len(rest):
        who = [suspect(p, "saves a checkpoint") for p in saving]
        first = saving[0]
        return Verdict(
            VerdictKind.WAITING,
            f"{named(who)} ({first.node}) saves a checkpoint at {first.where(limit=1)}"
            f"{messages.age(first)}{messages.asleep(first)}; {messages.waits(waiting)}.",
            confidence,
            who,
            evidence,
            ["wait for the save, or check its disk; --watch shows when it continues"],
        )
    if suspects:
        own = [
            s.proc
            for s in suspects
            if s.proc and s.proc.role == "trainer" and s.proc.kind != Kind.WAIT_DATA
        ]
        if 2 * len(own) > len(trainers):  # no suspects when most would be
            return Verdict(
                VerdictKind.HANG,
                f"{messages.waits(waiting)}; {len(own)} others are stuck, and their stacks do not "
                f"show what they wait for: {messages.places(own)}{messages.age(own[0])}.",
                Confidence.LOW,
                [],
                evidence,
                [*messages.next_for(own[0]), "--interval 30, and the ranks' own logs"],
            )
        assert suspects[0].proc is not None
        first = suspects[0].proc
        spin = first.progress == Progress.SPINNING
        stood_s = max(first.stood_s, *(p.stood_s for p in rest))
        if confidence == Confidence.HIGH and (spin or stood_s < SURE_S):
            confidence = Confidence.MEDIUM
        if stood_s < SURE_S:
            evidence.append(
                f"it was seen there for only {stood_s:.0f} s: use --interval 30 to be sure"
            )
        if any(p.progress == Progress.MOVING for p in rest):
            confidence = Confidence.LOW if confidence == Confidence.MEDIUM else Confidence.MEDIUM
        what = (
            f"uses CPU in {first.where(limit=1)} in all samples, for long or without end"
            if spin
            else f"has not moved: {messages.where(first)}"
        )
        parent = ""
        if first.role != "trainer":
            parent = f"rank {first.rank} waits for data; its "
        name = first.label.split(" ", 2)[-1] if parent else named(suspects)
        more = f" (and {len(suspects) - 1} more)" if parent and len(suspects) > 1 else ""
        return Verdict(
            VerdictKind.HANG,
            f"{parent}{name}{more} ({first.node}) {what}{messages.age(first)}; "
            f"{messages.waits(waiting)}.",
            confidence,
            suspects,
            evidence,
            messages.next_for(first),
        )
    who = busy or [suspect(p, "works") for p in rest]
    where = who[0].proc.where(limit=2) if who[0].proc else "?"
    return Verdict(
        VerdictKind.BUSY,
        f"{named(who)} ({who[0].node}) still works at {where}; {messages.waits(waiting)}. "
        "Slow, or just late.",
        Confidence.LOW,
        who,
        evidence,
        ["--watch, or more time between samples: --interval 30"],
    )


def _unseen(waiting: Sequence[Proc], unseen: Sequence[Proc]) -> Verdict:
    """All visible ranks wait; the others may wait, too."""
    return Verdict(
        VerdictKind.UNKNOWN,
        f"{messages.waits(waiting)}; no stack of {messages.names(unseen)} ({unseen[0].node}) could "
        f"be read, so it may wait, too: {unseen[0].error or 'no reason given'}.",
        Confidence.LOW,
        [],
        [*(messages.facts(p) for p in unseen[:4]), *messages.beat_lines(unseen)],
        ["see below for what to allow, or --sudo; --dump-timeout"],
    )


def _descend(snapshot: JobSnapshot, trainer: Proc) -> tuple[list[Suspect], list[Suspect]]:
    """(suspects, processes that merely work) for a trainer that the others wait for."""
    # A backward pass in C++ shows one frame all the time: a rank that computes there is not stuck.
    computes = trainer.kind == Kind.BACKWARD or trainer.progress not in STANDS
    if trainer.kind != Kind.WAIT_DATA:
        return (
            ([], [suspect(trainer, "works")])
            if computes
            else ([suspect(trainer, trainer.progress)], [])
        )
    blamed, working = [], []
    for loader in snapshot.loaders(trainer):
        if is_halted(loader):
            blamed.append(suspect(loader, messages.halt_reason(loader)))
        elif loader.kind in (Kind.IDLE, Kind.PUT):
            continue
        elif loader.progress in STANDS:
            blamed.append(suspect(loader, loader.progress))
        elif loader.progress == Progress.GONE:
            blamed.append(suspect(loader, "has ended"))
        else:
            working.append(suspect(loader, "works"))
    if not blamed and not working:
        # Every loader is idle, or there is none: the fault is between them and the rank.
        if computes:
            return [], [suspect(trainer, "waits for data, but moves")]
        return [suspect(trainer, "waits for data that no loader works on")], []
    return blamed, [] if blamed else working


def all_wait(
    snapshot: JobSnapshot, trainers: Sequence[Proc], waiting: Sequence[Proc]
) -> Verdict | None:
    """Rules 3 and 4: all wait for peers, in different collectives or all in the same."""
    if not waiting or len(waiting) < len(trainers):
        return None
    groups: dict[tuple[str, str, int | None], list[Proc]] = {}
    for proc in waiting:
        step = proc.beat["step"] if proc.beat else None
        groups.setdefault((proc.operation, proc.caller, step), []).append(proc)
    ordered = sorted(groups.items(), key=lambda item: len(item[1]))
    if len(ordered) > 1:
        lines = [
            f"{messages.names(procs)} in {operation} at {caller}"
            + (f", step {step}" if step is not None else "")
            for (operation, caller, step), procs in reversed(ordered)
        ]
        few, many = ordered[0], ordered[-1]
        tie = len(few[1]) == len(ordered[1][1])
        steps = {key[2] for key, _ in ordered}
        if tie and len(steps) > 1 and None not in steps:
            few = min(ordered, key=lambda item: item[0][2] or 0)  # who is a step behind
            tie = False
        suspects = (
            []
            if tie
            else [
                suspect(p, f"in {few[0][0]} at {few[0][1]}, the others elsewhere") for p in few[1]
            ]
        )
        who = (
            f"{named(suspects)} ({suspects[0].node}) is in {few[0][0]} at {few[0][1]}"
            if suspects
            else "there are two groups of the same size"
        )
        return Verdict(
            VerdictKind.DESYNC,
            f"ranks wait in different collectives: {who}; {len(many[1])} in {many[0][0]} "
            f"at {many[0][1]}.",
            Confidence.LOW
            if tie
            else Confidence.HIGH
            if len(few[1]) <= max(1, FEW * len(trainers))
            else Confidence.MEDIUM,
            suspects,
            [*lines, *messages.beat_lines([p for _, procs in ordered for p in procs[:1]])],
            [
                (
                    "find what made one rank take another branch before these lines "
                    "(an empty batch, an early return)"
                )
            ],
        )
    (operation, caller, _), _ = ordered[0]
    return Verdict(
        VerdictKind.ALL_SAME,
        f"all {len(waiting)} ranks wait in {operation} at {caller}; stacks alone do not show which "
        "one is missing.",
        Confidence.LOW,
        [],
        [messages.facts(waiting[0]), *messages.beat_lines(waiting[:1])],
        [
            "the flight recorder's counters, if shown below: a rank that has not joined is behind",
            "ncclras on a node (NCCL 2.24 or newer): silent ranks, counters that differ",
            "clusterctl preflight for links and Xid; an all-reduce of each pair finds a bad cable",
        ],
    )


def all_want_data(snapshot: JobSnapshot, trainers: Sequence[Proc]) -> Verdict | None:
    """Rule 5: all ranks wait for data."""
    hungry = [p for p in trainers if p.kind == Kind.WAIT_DATA]
    if not hungry or len(hungry) < len(trainers):
        return None
    suspects, busy = [], []
    for proc in hungry:
        found, working = _descend(snapshot, proc)
        suspects += found
        busy += working
    if busy and not suspects:
        return Verdict(
            VerdictKind.BUSY,
            f"all {len(hungry)} ranks wait for data, and their loaders work: data loading is slow.",
            Confidence.MEDIUM,
            busy[:8],
            [messages.facts(busy[0].proc)] if busy[0].proc else [],
            ["more loader workers, or a faster place for the data"],
        )
    first = suspects[0].proc
    assert first is not None
    return Verdict(
        VerdictKind.DATA,
        f"all {len(hungry)} ranks wait for data; {named(suspects)} ({first.node}): "
        f"{messages.where(first)}{messages.age(first)}.",
        Confidence.MEDIUM if len(hungry) > 1 else Confidence.HIGH,
        suspects,
        [
            *(messages.facts(s.proc) for s in suspects[:4] if s.proc),
            *messages.beat_lines(hungry[:2]),
        ],
        messages.next_for(first),
    )
