"""Who hangs: ordered rules over a picture, each with its evidence and how sure it is. Pure.

The majority is healthy and waits; whoever it waits for is suspect (STAT, ByteRobust). Never "faulty
GPU" from stacks alone, and a rank that still works is slow, not hung.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import messages as words
from clusterctl.stacks import wait_sites as kinds
from clusterctl.stacks.model import Picture, Proc
from clusterctl.stacks.predicates import has_gone_on, has_moved, is_halted, missing_ranks, who_waits
from clusterctl.stacks.progress import GONE, SPINNING, STANDS
from clusterctl.stacks.rules_missing import who_is_halted, who_is_missing
from clusterctl.stacks.rules_waiting import all_wait, all_want_data, who_stands_apart
from clusterctl.stacks.verdict import (
    BUSY,
    HANG,
    HIGH,
    LOW,
    MEDIUM,
    OK,
    SILENT,
    UNKNOWN,
    Suspect,
    Verdict,
    suspect,
)


def judge(picture: Picture) -> Verdict:
    """The first rule that fits; evidence of the kernel about every suspect is added to it."""
    trainers = [p for p in picture.trainers if p.progress != GONE]
    missing = missing_ranks(picture)
    halted = [p for p in picture.procs if is_halted(p)]
    if not picture.trainers:
        verdict = _nothing(picture)
    elif has_moved(trainers) and not missing:
        verdict = _moving(picture, trainers, halted)
    else:
        waiting = who_waits(picture, trainers, missing)
        verdict = (
            who_is_halted(picture, trainers, waiting, halted)
            or who_is_missing(picture, trainers, waiting, missing)
            or who_stands_apart(picture, trainers, waiting)
            or all_wait(picture, trainers, waiting)
            or all_want_data(picture, trainers)
            or _undecided(picture, trainers)
        )
        if missing and not verdict.suspects:
            ranks = fold_ranks(missing)
            verdict.evidence.insert(0, f"no process with rank {ranks} on the nodes that answer")
    verdict.evidence += _repaired(picture)
    return verdict


def _moving(picture: Picture, trainers: Sequence[Proc], halted: Sequence[Proc]) -> Verdict:
    steps = [p.beats for p in trainers if len(p.beats) > 1]
    evidence = []
    if steps:
        first = min(beats[0]["step"] for beats in steps)
        last = max(beats[-1]["step"] for beats in steps)
        evidence.append(
            f"heartbeats of {len(steps)} ranks: step {first} to {last} in {picture.interval_s * (picture.samples - 1):.1f} s"
        )
    evidence += [
        f"but {p.label} ({p.node}) pid {p.pid}: {words.halt_reason(p)}" for p in halted[:3]
    ]
    silent = picture.silent
    if silent:
        names = fold([node.name for node in silent])
        return Verdict(
            SILENT,
            f"all {len(trainers)} ranks that can be seen move; {names} gives no answer.",
            MEDIUM,
            [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent],
            [*evidence, *(f"{n.name}: {n.silent}" for n in silent[:4])],
            [f"sshd or network of {names}"],
        )
    return Verdict(
        OK,
        f"all {len(trainers)} ranks go on.",
        HIGH if steps else MEDIUM,
        [],
        evidence,
        ["slow rather than hung? clusterctl top shows the slowest rank of each step"],
    )


def _undecided(picture: Picture, trainers: Sequence[Proc]) -> Verdict:
    unseen = [p for p in trainers if p.kind == kinds.UNKNOWN]
    if unseen and len(unseen) == len(trainers):
        return Verdict(
            UNKNOWN,
            f"no stack of any rank could be read: {unseen[0].error or 'no reason given'}.",
            LOW,
            [],
            [words.facts(p) for p in unseen[:2]],
            ["see below for what to allow, or --sudo"],
        )
    stuck = [p for p in trainers if p.progress in STANDS]
    if stuck and len(stuck) == len(trainers):
        if all(p.progress == SPINNING for p in stuck) and len(trainers) > 1:
            return Verdict(
                BUSY,
                f"all {len(stuck)} ranks compute in {stuck[0].where(limit=2)}: a long step, or one without end.",
                LOW,
                [],
                [words.facts(stuck[0]), *words.beat_lines(stuck[:1])],
                ["--interval 30, or --watch"],
            )
        evidence = [*(words.facts(p) for p in stuck[:4]), *words.beat_lines(stuck[:2])]
        if len(stuck) > 1:  # nobody is accused when that would mean everybody
            return Verdict(
                HANG,
                f"all {len(stuck)} ranks stand, and their stacks do not say for whom: {words.places(stuck)}{words.age(stuck[0])}.",
                LOW,
                [],
                evidence,
                [*words.next_for(stuck[0]), "--interval 30, and the ranks' own logs"],
            )
        doing = (
            "burns CPU in the same functions,"
            if stuck[0].progress == SPINNING
            else "stands still in"
        )
        return Verdict(
            HANG,
            f"{words.names(stuck)} ({stuck[0].node}) {doing} {stuck[0].where(limit=2)}{words.age(stuck[0])}.",
            MEDIUM,
            [suspect(stuck[0], stuck[0].progress)],
            evidence,
            words.next_for(stuck[0]),
        )
    moved = [p for p in trainers if has_gone_on(p)]
    still = [p for p in trainers if not has_gone_on(p)]
    return Verdict(
        BUSY,
        f"{len(moved)} of {len(trainers)} ranks went on, rank {fold_ranks(p.rank for p in still if p.rank is not None)} did not in {picture.interval_s:g} s: too short to tell.",
        LOW,
        [],
        [*(words.facts(p) for p in still[:3]), *words.beat_lines(still[:2])],
        ["--interval 30, or --watch"],
    )


def _nothing(picture: Picture) -> Verdict:
    silent = picture.silent
    if silent:
        names = fold([node.name for node in silent])
        return Verdict(
            SILENT,
            f"{names} gives no answer, and no rank runs on the others.",
            LOW,
            [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent],
            [f"{n.name}: {n.silent}" for n in silent[:4]],
            [],
        )
    return Verdict(UNKNOWN, "there is no rank on any node.", LOW)


def _repaired(picture: Picture) -> list[str]:
    return [
        f"{p.label} ({p.node}) pid {p.pid} was left stopped by a dump and set going again"
        for p in picture.procs
        if p.repaired
    ]
