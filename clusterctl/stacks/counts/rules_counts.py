"""Where stacks accuse nobody: what RAS, GPUs, watchdogs and flight records say together. Pure.

One of five answers: a rank never launched what the others did; a kernel spins on a node; frozen
with equal counts; desync; or it cannot be told, and why.
"""

from __future__ import annotations

from dataclasses import replace

from checks import units
from checks.units import counted
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import wording
from clusterctl.stacks.counts.behind import Difference, Lag, find_difference
from clusterctl.stacks.counts.gpu_use import GpuUse, Use, read_use
from clusterctl.stacks.counts.launched import Launched, Member, named_members, read_launched
from clusterctl.stacks.counts.recorded import Recorded, read_recorded
from clusterctl.stacks.counts.rules_equal import (
    cannot_tell,
    judge_equal,
    look_at_gpus,
    missing_ranks,
    where_all_are,
)
from clusterctl.stacks.model import JobSnapshot
from clusterctl.stacks.verdict import SURE_S, Confidence, Suspect, Verdict, VerdictKind

# Verdicts of stacks that name nobody and are about waiting for each other.
OPEN = (VerdictKind.ALL_SAME, VerdictKind.HANG, VerdictKind.DESYNC)


def explain(verdict: Verdict, snapshot: JobSnapshot) -> Verdict:
    """The verdict, or one from the counts where the stacks name nobody."""
    if verdict.kind not in OPEN or verdict.suspects or snapshot.missing or snapshot.silent:
        return verdict
    launched, gpus = read_launched(snapshot), read_use(snapshot)
    recorded = read_recorded(snapshot)
    found = (
        _moving(verdict, launched, snapshot)
        or _behind(verdict, launched, gpus, recorded, snapshot)
        or _by_records(verdict, launched, recorded, snapshot)
        or judge_equal(verdict, launched, gpus, snapshot)
    )
    more = [text for text in _about(launched) if text not in found.evidence]
    return replace(found, evidence=[*found.evidence, *more])


def _apart(snapshot: JobSnapshot) -> str:
    return f"{units.duration(snapshot.interval_s * (snapshot.samples - 1))}"


def _moving(verdict: Verdict, launched: Launched, snapshot: JobSnapshot) -> Verdict | None:
    if not launched.has_moved:
        return None
    moved = launched.moved
    known = {member for group in launched.groups for member in group.counts}
    ranks = {member.rank for member in moved}
    is_all = launched.changed or ranks >= {member.rank for member in known}
    took = f"in {_apart(snapshot)}"
    if is_all:
        text = f"{where_all_are(snapshot)}, and what NCCL has launched grows: no hang {took}."
        evidence = [f"NCCL RAS: the counts of {counted(len(ranks), 'rank')} grew {took}"]
        next_steps = ["slow rather than hung? clusterctl top shows the slowest rank of each step"]
        return Verdict(VerdictKind.OK, text, Confidence.MEDIUM, [], evidence, next_steps)
    some = named_members(sorted(moved, key=lambda one: (one.rank is None, one.rank or 0)))
    others = f"{some} launched more {took}, the others did not: too early to say"
    text = f"{where_all_are(snapshot)}; {others}."
    evidence = [*verdict.evidence]
    return Verdict(
        VerdictKind.BUSY, text, Confidence.LOW, [], evidence, ["--interval 30, or --watch"]
    )


def _behind(
    verdict: Verdict, launched: Launched, gpus: GpuUse, recorded: Recorded, snapshot: JobSnapshot
) -> Verdict | None:
    if unclear := [group for group in launched.groups if group.is_unclear]:
        why = f"the text of NCCL RAS does not show whose counts of {unclear[0].title} differ"
        return cannot_tell(verdict, snapshot, why)
    found = find_difference(launched)
    if found is None:
        return None
    if launched.looks < 2:
        why = "NCCL RAS answered at one sample only, so it is unknown whether its counts move"
        return cannot_tell(verdict, snapshot, why)
    if found.lag == Lag.UNCLEAR:
        return cannot_tell(verdict, snapshot, f"{found.why} (ranks differ in {_what(found)})")
    if lost := missing_ranks(launched):
        why = f"there are no counts of {lost}, which may be the first that is behind"
        return cannot_tell(verdict, snapshot, f"{why} ({_difference_words(found)})")
    blamed = {member.rank for member in found.members}
    if recorded.behind and found.members and not blamed & set(recorded.behind.ranks):
        others = f"{recorded.behind.source} says rank {fold_ranks(recorded.behind.ranks)}"
        why = f"NCCL RAS says that {named_members(found.members)} is behind, and {others}"
        return cannot_tell(verdict, snapshot, why)
    stood_s = _stood_s(snapshot)
    brief = f"seen for only {units.duration(stood_s)}: use --interval 30 to be sure"
    evidence = _counts_lines(found) + [brief] * (stood_s < SURE_S) + verdict.evidence
    if found.lag == Lag.FROZEN:
        return _frozen_part(found, evidence, gpus)
    confidence = _confidence(found, stood_s, gpus)
    suspects = [_suspect(member, found, snapshot) for member in found.members]
    if found.lag != Lag.BEHIND:
        return _desync(found, suspects, confidence, evidence, launched)
    busy = [one for one in gpus.of(Use.COMPUTES) if one.rank in blamed]
    if busy:
        words = f"its GPU computes ({busy[0].words})"
        what = f"{_title(found)} has not launched {_what(found)} yet"
        text = f"{what}, and {words}: slow, or an endless kernel."
        again = ["--interval 30: a slow rank catches up", *look_at_gpus(busy)]
        return Verdict(VerdictKind.BUSY, text, Confidence.LOW, suspects, evidence, again)
    text = f"{_title(found)} never launched {_what(found)}; {found.others} others have and wait."
    first = suspects[0]
    next_steps = [
        "what it does instead: --native-suspects, and the end of its log",
        f"clusterctl preflight -w {first.node}",
    ]
    return Verdict(VerdictKind.HANG, text, confidence, suspects, evidence, next_steps)


def _frozen_part(found: Difference, evidence: list[str], gpus: GpuUse) -> Verdict:
    members = list(found.group.counts)
    ranks = {member.rank for member in members}
    if busy := [one for one in gpus.of(Use.COMPUTES) if one.rank in ranks]:
        who = f"rank {busy[0].rank} ({busy[0].node})"
        text = f"the GPU of {who} computes ({busy[0].words}): slow, or an endless kernel."
        again = ["--interval 30: a slow rank catches up", *look_at_gpus(busy)]
        return Verdict(VerdictKind.BUSY, text, Confidence.LOW, [], evidence, again)
    nodes = fold(list(dict.fromkeys(one.node for one in members if one.node)))
    text = (
        f"frozen in {found.group.title}: {named_members(members)} ({nodes}) have launched the same"
        f" there, and therefore less than the others of {found.also[0]}."
    )
    next_steps = [f"clusterctl preflight --active -w {nodes}: the links between them"]
    return Verdict(VerdictKind.ALL_SAME, text, Confidence.MEDIUM, [], evidence, next_steps)


def _title(found: Difference) -> str:
    nodes = [member.node for member in found.members if member.node]
    where = f" ({fold(list(dict.fromkeys(nodes)))})" if nodes else ""
    return f"{named_members(found.members)}{where}"


def _what(found: Difference) -> str:
    return f"{found.what} of {found.group.title}"


def _difference_words(found: Difference) -> str:
    if not found.members:
        return f"counts of {found.group.title} differ"
    return f"{named_members(found.members)} differs in {found.what} of {found.group.title}"


def _stood_s(snapshot: JobSnapshot) -> float:
    """How long nothing is known to have moved."""
    beats = [p.beat["age_s"] for p in snapshot.alive if p.beat]
    return max(snapshot.interval_s * (snapshot.samples - 1), min(beats, default=0.0))


def _confidence(found: Difference, stood_s: float, gpus: GpuUse) -> Confidence:
    """High after ten seconds for a small minority; low where its GPU may still compute."""
    if stood_s < SURE_S:
        is_known = gpus.covers(one.rank for one in found.members if one.rank is not None)
        return Confidence.MEDIUM if is_known else Confidence.LOW
    if any(member.rank is None for member in found.members):
        return Confidence.MEDIUM
    return Confidence.of(len(found.members), len(found.group.counts))


def _suspect(member: Member, found: Difference, snapshot: JobSnapshot) -> Suspect:
    what = "never launched" if found.lag == Lag.BEHIND else "differs in"
    why = f"{what} {_what(found)}"
    for proc in snapshot.alive:
        if member.rank is not None and proc.rank == member.rank:
            return Suspect.of(proc, why)
    return Suspect(member.node or member.host or "?", member.rank, "trainer", why)


def _counts_lines(found: Difference) -> list[str]:
    """How many ranks of the communicator have launched how much, by operation."""
    lines = []
    names = sorted({name for counts in found.group.counts.values() for name in counts})
    for name in names:
        by_value: dict[int, list[Member]] = {}
        for member, counts in found.group.counts.items():
            by_value.setdefault(counts.get(name, 0), []).append(member)
        if len(by_value) > 1:
            parts = [
                f"{named_members(members)}: {value}" for value, members in sorted(by_value.items())
            ]
            lines.append(f"NCCL RAS: {name} launched in {found.group.title}: {', '.join(parts)}")
    return lines


def _desync(
    found: Difference,
    suspects: list[Suspect],
    confidence: Confidence,
    evidence: list[str],
    launched: Launched,
) -> Verdict:
    cause = "find what made one rank take another branch"
    next_steps = [f"{cause} (an empty batch, an early return, an extra call)"]
    if found.lag == Lag.ORDER:
        titles = " and ".join(found.also[:2])
        text = f"desync: ranks wait for each other in {titles}: they use them in different orders."
        return Verdict(VerdictKind.DESYNC, text, Confidence.MEDIUM, [], evidence, next_steps)
    if not found.members:
        who = "half of the ranks" if found.lag == Lag.TIE else "some ranks"
        text = (
            f"desync: {who} launched {_what(found)}, the others did not; the counts accuse nobody."
        )
        return Verdict(VerdictKind.DESYNC, text, Confidence.LOW, [], evidence, next_steps)
    than = f"; the other {found.others} have not" if found.lag == Lag.AHEAD else ""
    text = f"desync: {_title(found)} launched {_what(found)}{than}."
    confidence = Confidence.MEDIUM if confidence == Confidence.HIGH else Confidence.LOW
    return Verdict(VerdictKind.DESYNC, text, confidence, suspects, evidence, next_steps)


def _by_records(
    verdict: Verdict, launched: Launched, recorded: Recorded, snapshot: JobSnapshot
) -> Verdict | None:
    """torch's own counters, where RAS cannot answer."""
    one = recorded.behind
    if one is None or (launched.groups and not launched.why_not and not missing_ranks(launched)):
        return None
    evidence = [f"{one.source}: {one.text}", *verdict.evidence]
    if recorded.conflict:
        return cannot_tell(verdict, snapshot, recorded.conflict)
    procs = [p for p in snapshot.alive if p.rank in one.ranks]
    suspects = [Suspect.of(p, one.why) for p in procs]
    if not suspects or 2 * len(one.ranks) > len(snapshot.alive) or one.is_partial:
        why = one.why_partial or "the records point at half of the ranks or more"
        return replace(cannot_tell(verdict, snapshot, why), evidence=evidence)
    text = f"{wording.names(procs)} ({procs[0].node}) {one.why}."
    kind = VerdictKind.DESYNC if one.is_desync else VerdictKind.HANG
    next_steps = ["--native-suspects, and the end of its log"]
    return Verdict(kind, text, Confidence.MEDIUM, suspects, evidence, next_steps)


def _about(launched: Launched) -> list[str]:
    lines = []
    for group in launched.groups:
        for member, code in group.errors[:3]:
            where = f" ({member.node})" if member.node else ""
            what = f"error {code}" if code > 0 else "an error"
            lines.append(f"NCCL RAS: {member.label}{where} reports {what} of {group.title}")
    if launched.silent and launched.answered:
        number = len(launched.answered) + len(launched.silent)
        names = fold(list(launched.silent))
        lines.append(
            f"NCCL RAS answered on {len(launched.answered)} of {number} nodes, not on {names}"
        )
    return lines
