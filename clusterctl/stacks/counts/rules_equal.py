"""Where no rank is behind: a kernel that spins, frozen, idle, or why it cannot be told. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from checks.units import counted
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import wording
from clusterctl.stacks.counts.gpu_use import GpuUse, RankUse, Use
from clusterctl.stacks.counts.launched import Launched, named_members
from clusterctl.stacks.model import JobSnapshot
from clusterctl.stacks.verdict import Confidence, Suspect, Verdict, VerdictKind

_P2P = re.compile(r"(i?send|i?recv|batch_isend_irecv)\b")


def where_all_are(snapshot: JobSnapshot) -> str:
    """`all 8 ranks wait in all_reduce at main train.py:318`, as far as they agree."""
    procs = snapshot.alive
    places = {(p.operation, p.caller) for p in procs}
    if len(places) == 1 and all(p.waits_for_peers for p in procs):
        operation, caller = places.pop()
        return f"all {len(procs)} ranks wait in {operation} at {caller}"
    return f"all {len(procs)} ranks stand"


def missing_ranks(launched: Launched) -> str:
    """`rank 21 (does not answer RAS)`; "" where no rank is missing."""
    lost = [(member, why) for group in launched.groups for member, why in group.missing]
    if not lost:
        return ""
    members = list({(one.rank, one.number, one.pid): one for one, _ in lost}.values())
    nodes = [member.node for member in members if member.node]
    where = f"{fold(list(dict.fromkeys(nodes)))}: " if nodes else ""
    return f"{named_members(members)} ({where}{lost[0][1]})"


def judge_equal(
    verdict: Verdict, launched: Launched, gpus: GpuUse, snapshot: JobSnapshot
) -> Verdict:
    """No rank is behind, as far as is known."""
    if verdict.kind != VerdictKind.DESYNC:
        if found := _idle(verdict, launched, gpus, snapshot):
            return found
        if found := _by_gpus(verdict, launched, gpus, snapshot):
            return found
    if launched.why_not:
        return cannot_tell(verdict, snapshot, launched.why_not)
    if lost := missing_ranks(launched):
        return cannot_tell(verdict, snapshot, f"there are no counts of {lost}")
    if launched.looks < 2:
        return cannot_tell(verdict, snapshot, "NCCL RAS answered at one sample only")
    if any(_P2P.match(p.operation) for p in snapshot.alive):
        why = "NCCL counts no sends and receives, and all other counts are equal"
        return cannot_tell(verdict, snapshot, why)
    if verdict.kind != VerdictKind.ALL_SAME:
        return replace(verdict, evidence=[_equal_words(launched), *verdict.evidence])
    if any(group.ends for group in launched.groups):
        why = "a communicator is being made or ended, and its counts say nothing"
        return cannot_tell(verdict, snapshot, why)
    text = f"{where_all_are(snapshot)}: frozen, with equal counts of NCCL on all of them."
    next_steps = [
        "clusterctl preflight for links and Xid; an all-reduce of each pair finds a bad cable",
        "the cause is the network or a device rather than a rank's code",
    ]
    evidence = [_equal_words(launched), *_spin_lines(gpus), *verdict.evidence]
    confidence = Confidence.LOW if launched.is_text else Confidence.MEDIUM
    return Verdict(VerdictKind.ALL_SAME, text, confidence, [], evidence, next_steps)


def _equal_words(launched: Launched) -> str:
    if launched.is_text:
        return (
            "NCCL RAS: no communicator has different counts at a sample (its text has no numbers)"
        )
    number = counted(len(launched.groups), "communicator")
    return f"NCCL RAS: all ranks of {number} launched the same, and nothing between the samples"


def _idle(
    verdict: Verdict, launched: Launched, gpus: GpuUse, snapshot: JobSnapshot
) -> Verdict | None:
    """Nobody waits for a peer, and neither NCCL nor a GPU has work."""
    is_covered = gpus.covers(p.rank for p in snapshot.alive if p.rank is not None)
    if not is_covered or len(gpus.of(Use.IDLE)) != len(gpus.ranks) or not gpus.ranks:
        return None
    if launched.why_not or launched.looks < 2 or missing_ranks(launched):
        return None
    if any(p.waits_for_peers for p in snapshot.alive):
        return None
    place = wording.places(snapshot.alive)
    idle = "their GPUs are idle and NCCL waits for nothing"
    text = f"all {len(snapshot.alive)} ranks stand, {idle} ({place})."
    evidence = [_equal_words(launched), *verdict.evidence]
    return Verdict(VerdictKind.UNKNOWN, text, Confidence.LOW, [], evidence, verdict.next_steps)


def _by_gpus(
    verdict: Verdict, launched: Launched, gpus: GpuUse, snapshot: JobSnapshot
) -> Verdict | None:
    if not gpus.covers(p.rank for p in snapshot.alive if p.rank is not None) or not gpus.ranks:
        return None
    spins, idle, busy = gpus.of(Use.SPINS), gpus.of(Use.IDLE), gpus.of(Use.COMPUTES)
    if busy:
        who, are = _ranks(busy), f"{busy[0].words}"
        why = f"the GPU of {who} computes ({are}): slow, or an endless kernel"
        text = f"{where_all_are(snapshot)}; cannot tell who is missing, because {why}."
        return Verdict(
            VerdictKind.BUSY, text, Confidence.LOW, [], list(verdict.evidence),
            ["--interval 30, or --watch", *look_at_gpus(busy)],
        )  # fmt: skip
    if len(idle) == len(gpus.ranks):
        why = "no GPU runs a kernel: they wait for something that NCCL does not do"
        return cannot_tell(verdict, snapshot, why)
    few = spins and len(spins) + len(idle) == len(gpus.ranks) and 4 * len(spins) <= len(gpus.ranks)
    if not few or missing_ranks(launched):
        return None
    nodes = fold(list(dict.fromkeys(one.node for one in spins)))
    by_rank = {p.rank: p for p in snapshot.alive}
    why = f"its GPU is at {spins[0].words} while the others are idle"
    suspects = [Suspect.of(by_rank[one.rank], why) for one in spins]
    which = f"{_ranks(spins)}: {spins[0].words}, as if it waits"
    others = f"the GPUs of the other {len(idle)} ranks are idle"
    text = f"a kernel spins on {nodes} ({which}), and {others}."
    next_steps = ["--native-suspects on it", *look_at_gpus(spins)]
    evidence = [*([] if launched.why_not else [_equal_words(launched)]), *verdict.evidence]
    return Verdict(VerdictKind.HANG, text, Confidence.MEDIUM, suspects, evidence, next_steps)


def _ranks(uses: Sequence[RankUse]) -> str:
    return f"rank{'s' * (len(uses) > 1)} {fold_ranks(one.rank for one in uses)}"


def look_at_gpus(uses: Sequence[RankUse]) -> list[str]:
    return [f"clusterctl gpus -w {fold(list(dict.fromkeys(one.node for one in uses)))}"]


def _spin_lines(gpus: GpuUse) -> list[str]:
    spins, idle = gpus.of(Use.SPINS), gpus.of(Use.IDLE)
    lines = []
    if spins:
        lines.append(f"GPUs of {_ranks(spins)} spin ({spins[0].words})")
    if spins and idle:
        lines.append(f"GPUs of {_ranks(idle)} run no kernel")
    return lines


def cannot_tell(verdict: Verdict, snapshot: JobSnapshot, why: str) -> Verdict:
    """As the stacks had it, with the reason why nothing else helps."""
    if verdict.kind != VerdictKind.ALL_SAME:
        return replace(verdict, evidence=[f"cannot tell more: {why}", *verdict.evidence])
    text = f"{where_all_are(snapshot)}; unknown which rank is missing: {why}."
    return replace(verdict, sentence=text, confidence=Confidence.LOW)
