"""Rules 2 to 5: most wait for peers, or all for peers, or all for data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.stacks import messages as words
from clusterctl.stacks import wait_sites as kinds
from clusterctl.stacks.model import Picture, Proc
from clusterctl.stacks.predicates import is_halted, saves
from clusterctl.stacks.progress import GONE, MOVING, SPINNING, STANDS
from clusterctl.stacks.verdict import (
    ALL_SAME,
    BUSY,
    DATA,
    DESYNC,
    FEW,
    HANG,
    HIGH,
    LOW,
    MEDIUM,
    SURE_S,
    UNKNOWN,
    WAITING,
    Suspect,
    Verdict,
    named,
    suspect,
)


def who_stands_apart(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc]
) -> Verdict | None:
    """Rule 2: most wait for peers, a few do something else; these, or their loaders, are suspects."""
    counted = {id(p) for p in waiting}
    rest = [p for p in trainers if id(p) not in counted]
    if not waiting or not rest:
        return None
    unseen = [p for p in rest if p.kind == kinds.UNKNOWN]
    rest = [p for p in rest if p.kind != kinds.UNKNOWN]
    if not rest:
        return _unseen(waiting, unseen)
    suspects: list[Suspect] = []
    busy: list[Suspect] = []
    evidence: list[str] = []
    for proc in rest:
        found, working = _descend(picture, proc)
        suspects += found
        busy += working
        evidence += [words.facts(proc)]
    confidence = HIGH if len(rest) <= max(1, FEW * len(trainers)) else MEDIUM
    if unseen:
        evidence.append(
            f"{words.names(unseen)}: no stack could be read ({unseen[0].error or 'no reason given'})"
        )
    if confidence == HIGH and (unseen or not all(p.waits_for_peers for p in waiting)):
        confidence = MEDIUM
    evidence = [
        *words.doubt(waiting),
        *evidence[:4],
        *words.beat_lines(rest),
        *(words.facts(s.proc) for s in suspects if s.proc and s.proc not in rest),
    ]
    saving = [p for p in rest if saves(p)]
    if saving and len(saving) == len(rest):
        who = [suspect(p, "saves a checkpoint") for p in saving]
        return Verdict(
            WAITING,
            f"{named(who)} ({saving[0].node}) saves a checkpoint at {saving[0].where(limit=1)}{words.age(saving[0])}{words.asleep(saving[0])}; {words.waits(waiting)}.",
            confidence,
            who,
            evidence,
            ["wait for the save, or look at its disk; --watch tells when it goes on"],
        )
    if suspects:
        own = [
            s.proc
            for s in suspects
            if s.proc and s.proc.role == "trainer" and s.proc.kind != kinds.WAIT_DATA
        ]
        if 2 * len(own) > len(trainers):  # where most would be to blame, nobody is known to be
            return Verdict(
                HANG,
                f"{words.waits(waiting)}; {len(own)} others stand, and their stacks do not say for whom: {words.places(own)}{words.age(own[0])}.",
                LOW,
                [],
                evidence,
                [*words.next_for(own[0]), "--interval 30, and the ranks' own logs"],
            )
        first = suspects[0].proc
        assert first is not None
        spin = first.progress == SPINNING
        stood_s = max(first.stood_s, *(p.stood_s for p in rest))
        if confidence == HIGH and (spin or stood_s < SURE_S):
            confidence = MEDIUM
        if stood_s < SURE_S:
            evidence.append(
                f"it was seen to stand for {stood_s:.0f} s only: --interval 30 makes sure"
            )
        if any(p.progress == MOVING for p in rest):
            confidence = LOW if confidence == MEDIUM else MEDIUM
        what = (
            f"burns CPU in {first.where(limit=1)} through all samples, without an end or for long"
            if spin
            else f"has not moved: {words.where(first)}"
        )
        parent = ""
        if first.role != "trainer":
            parent = f"rank {first.rank} waits for data; its "
        name = first.label.split(" ", 2)[-1] if parent else named(suspects)
        more = f" (and {len(suspects) - 1} more)" if parent and len(suspects) > 1 else ""
        return Verdict(
            HANG,
            f"{parent}{name}{more} ({first.node}) {what}{words.age(first)}; {words.waits(waiting)}.",
            confidence,
            suspects,
            evidence,
            words.next_for(first),
        )
    who = busy or [suspect(p, "works") for p in rest]
    return Verdict(
        BUSY,
        f"{named(who)} ({who[0].node}) still works at {who[0].proc.where(limit=2) if who[0].proc else '?'}; {words.waits(waiting)}. Slow, or just late.",
        LOW,
        who,
        evidence,
        ["--watch, or more time between samples: --interval 30"],
    )


def _unseen(waiting: Sequence[Proc], unseen: Sequence[Proc]) -> Verdict:
    """All that can be seen wait; who cannot be seen may wait, too."""
    return Verdict(
        UNKNOWN,
        f"{words.waits(waiting)}; no stack of {words.names(unseen)} ({unseen[0].node}) could be read, so it may wait, too: {unseen[0].error or 'no reason given'}.",
        LOW,
        [],
        [*(words.facts(p) for p in unseen[:4]), *words.beat_lines(unseen)],
        ["see below for what to allow, or --sudo; --dump-timeout"],
    )


def _descend(picture: Picture, trainer: Proc) -> tuple[list[Suspect], list[Suspect]]:
    """(who is to blame, who merely works) for a trainer that the others wait for."""
    # A backward pass in C++ shows one frame however far it is: who computes there is not stuck.
    computes = trainer.kind == kinds.BACKWARD or trainer.progress not in STANDS
    if trainer.kind != kinds.WAIT_DATA:
        return (
            ([], [suspect(trainer, "works")])
            if computes
            else ([suspect(trainer, trainer.progress)], [])
        )
    blamed, working = [], []
    for loader in picture.loaders(trainer):
        if is_halted(loader):
            blamed.append(suspect(loader, words.halt_reason(loader)))
        elif loader.kind in (kinds.IDLE, kinds.PUT):
            continue
        elif loader.progress in STANDS:
            blamed.append(suspect(loader, loader.progress))
        elif loader.progress == GONE:
            blamed.append(suspect(loader, "has ended"))
        else:
            working.append(suspect(loader, "works"))
    if not blamed and not working:
        # Every loader is idle, or there is none: the fault is between them and the rank.
        if computes:
            return [], [suspect(trainer, "waits for data, but goes on")]
        return [suspect(trainer, "waits for data that no loader works on")], []
    return blamed, [] if blamed else working


def all_wait(picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc]) -> Verdict | None:
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
            f"rank{'s' * (len(procs) > 1)} {fold_ranks(p.rank for p in procs if p.rank is not None)} in {operation} at {caller}"
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
            f"{named(suspects)} ({suspects[0].node}) stands in {few[0][0]} at {few[0][1]}"
            if suspects
            else "two groups of the same size stand apart"
        )
        return Verdict(
            DESYNC,
            f"ranks wait in different collectives: {who}; {len(many[1])} in {many[0][0]} at {many[0][1]}.",
            LOW if tie else HIGH if len(few[1]) <= max(1, FEW * len(trainers)) else MEDIUM,
            suspects,
            [*lines, *words.beat_lines([p for _, procs in ordered for p in procs[:1]])],
            [
                "what made one rank take another branch (an empty batch, an early return) before these lines"
            ],
        )
    (operation, caller, _), _ = ordered[0]
    return Verdict(
        ALL_SAME,
        f"all {len(waiting)} ranks wait in {operation} at {caller}; stacks alone do not say who is missing.",
        LOW,
        [],
        [words.facts(waiting[0]), *words.beat_lines(waiting[:1])],
        [
            "the flight recorder's counters, if any stand below: who has not joined is behind",
            "ncclras on a node (NCCL 2.24 or newer): ranks that do not answer, counters that differ",
            "clusterctl preflight for links and Xid; a pair by pair all-reduce finds a bad cable",
        ],
    )


def all_want_data(picture: Picture, trainers: Sequence[Proc]) -> Verdict | None:
    """Rule 5: the data are late for everybody."""
    hungry = [p for p in trainers if p.kind == kinds.WAIT_DATA]
    if not hungry or any(p.kind not in (kinds.WAIT_DATA,) for p in trainers):
        return None
    suspects, busy = [], []
    for proc in hungry:
        found, working = _descend(picture, proc)
        suspects += found
        busy += working
    if busy and not suspects:
        return Verdict(
            BUSY,
            f"all {len(hungry)} ranks wait for data, and their loaders work: the data come slowly.",
            MEDIUM,
            busy[:8],
            [words.facts(busy[0].proc)] if busy[0].proc else [],
            ["more loader workers, or a faster place for the data"],
        )
    first = suspects[0].proc
    assert first is not None
    return Verdict(
        DATA,
        f"all {len(hungry)} ranks wait for data; {named(suspects)} ({first.node}): {words.where(first)}{words.age(first)}.",
        MEDIUM if len(hungry) > 1 else HIGH,
        suspects,
        [*(words.facts(s.proc) for s in suspects[:4] if s.proc), *words.beat_lines(hungry[:2])],
        words.next_for(first),
    )
