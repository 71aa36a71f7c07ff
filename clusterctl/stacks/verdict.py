"""Who hangs: ordered rules over a picture, each with its evidence and how sure it is. Pure.

The majority is healthy and waits; whoever it waits for is suspect (STAT, ByteRobust). Never "faulty
GPU" from stacks alone, and a rank that still works is slow, not hung.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.job import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks import sites as kinds
from clusterctl.stacks import words
from clusterctl.stacks.model import GONE, MOVING, SPINNING, STUCK, Picture, Proc

HANG, DESYNC, WAITING, ALL_SAME, DATA, SILENT, OK, BUSY, UNKNOWN = (
    "hang", "desync", "waiting", "all-same", "data", "no-answer", "moving", "busy", "unknown",
)  # fmt: skip
EXIT = {OK: 0, WAITING: 1, HANG: 1, DESYNC: 1, ALL_SAME: 1, DATA: 1, SILENT: 3, BUSY: 3, UNKNOWN: 3}
HIGH, MEDIUM, LOW = "high", "medium", "low"
SURE_S = 10.0  # a rank that has stood for less may just be slow
FEW = 0.25  # suspects beyond this share of the ranks are no minority any more


@dataclass(frozen=True, slots=True)
class Suspect:
    """Somebody the others wait for; `proc` is None for a node or rank of which nothing was seen."""

    node: str
    rank: int | None
    what: str  # role in words
    why: str
    proc: Proc | None = None

    def to_json(self) -> dict[str, object]:
        proc = self.proc
        return {
            "node": self.node,
            "rank": self.rank,
            "what": self.what,
            "why": self.why,
            "pid": proc.pid if proc else None,
            "role": proc.role if proc else None,
            "index": proc.index if proc else None,
            "site": proc.where() if proc else None,
            "file": proc.file() if proc else None,
        }


@dataclass(slots=True)
class Verdict:
    """The answer: `kind`, one sentence, who, why, and what to do next."""

    kind: str
    sentence: str
    confidence: str = HIGH
    suspects: list[Suspect] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return EXIT[self.kind]

    @property
    def headline(self) -> str:
        word = {
            HANG: "HANG", DESYNC: "DESYNC", WAITING: "WAITING", ALL_SAME: "HANG", DATA: "HANG",
            SILENT: "NO ANSWER", OK: "MOVING", BUSY: "BUSY", UNKNOWN: "UNKNOWN",
        }[self.kind]  # fmt: skip
        return f"{word}: {self.sentence}"

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "confidence": self.confidence,
            "suspects": [suspect.to_json() for suspect in self.suspects],
            "evidence": self.evidence,
            "next": self.next_steps,
        }


def judge(picture: Picture) -> Verdict:
    """The first rule that fits; evidence of the kernel about every suspect is added to it."""
    trainers = [p for p in picture.trainers if p.progress != GONE]
    missing = _missing(picture)
    halted = [p for p in picture.procs if _is_halted(p)]
    if not picture.trainers:
        verdict = _nothing(picture)
    elif has_moved(trainers) and not missing:
        verdict = _moving(picture, trainers, halted)
    else:
        waiting = [p for p in trainers if p.waits_for_peers and p.progress in (STUCK, SPINNING)]
        verdict = (
            _halted(picture, trainers, waiting, halted)
            or _missing_ranks(picture, trainers, waiting, missing)
            or _minority(picture, trainers, waiting)
            or _all_wait(picture, trainers, waiting)
            or _all_data(picture, trainers)
            or _undecided(picture, trainers)
        )
    verdict.evidence += _repaired(picture)
    return verdict


def has_moved(trainers: Sequence[Proc]) -> bool:
    """Whether every rank went on between the samples: by its heartbeats, else by its stacks."""
    return bool(trainers) and all(_has_moved(p) for p in trainers)


def _has_moved(proc: Proc) -> bool:
    if len(proc.beats) > 1:
        first, last = proc.beats[0], proc.beats[-1]
        if first["step"] != last["step"]:
            return True
        # Within a step: another phase, or the same one begun anew.
        began_anew = last["age_s"] < proc.seconds - 0.01
        return bool(began_anew or first["phase"] != last["phase"])
    return proc.progress == MOVING


def _is_halted(proc: Proc) -> bool:
    """Stopped, frozen, or asleep in the kernel through all samples."""
    if proc.role in ("tracker", "shell", "logger", "compiler"):
        return False
    if proc.state in ("T", "t") or proc.is_frozen:
        return True
    return proc.state == "D" and proc.progress == STUCK


# --- rule 1: what is not there, or not allowed to run ---


def _missing(picture: Picture) -> list[int]:
    """Ranks of which no trainer is alive; only where the world's size is known."""
    if not picture.world:
        return []
    seen = {p.rank for p in picture.trainers if p.progress != GONE}
    return [rank for rank in range(picture.world) if rank not in seen]


def _halted(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc], halted: Sequence[Proc]
) -> Verdict | None:
    # A loader that is stopped while its rank works on hurts nobody yet.
    guilty = [
        p for p in halted
        if p.role == "trainer" or any(t.rank == p.rank and t.node == p.node and t.kind == kinds.WAIT_DATA for t in trainers)
    ]  # fmt: skip
    guilty = guilty or [p for p in halted if p.role not in ("trainer", "loader")]
    # A save sleeps in the kernel while the disk works: that is waiting (rule 2), not a fault yet.
    guilty = [p for p in guilty if p.state != "D" or p.is_frozen or not _saves(p)]
    if not guilty or (not waiting and len(guilty) < len(trainers) and not _wait_for_data(trainers)):
        return None
    suspects = [_suspect(p, words.halt_reason(p)) for p in guilty]
    first = guilty[0]
    rest = [p for p in waiting if p not in guilty]
    parent = ""
    if first.role == "loader":
        parent = f"rank {first.rank} waits for data; its "
    name = first.label.split(" ", 2)[-1] if parent else _names(suspects)
    others = f"; {words.waits(rest)}" if rest else ""
    return Verdict(
        HANG,
        f"{parent}{name} ({first.node}) {words.halt_reason(first)}{words.at(first)}{others}.",
        HIGH,
        suspects,
        [*(words.facts(p) for p in guilty[:4]), *words.beat_lines(guilty)],
        ["sudo dmesg and the mount of that file"] if first.in_storage else [f"find out who stopped it; clusterctl run -w {first.node} 'kill -CONT {first.pid}'"] if first.state == "T" else ["thaw its cgroup" if first.is_frozen else "look at that node's kernel log"],
    )  # fmt: skip


def _wait_for_data(trainers: Sequence[Proc]) -> bool:
    return any(p.kind == kinds.WAIT_DATA and p.progress == STUCK for p in trainers)


def _missing_ranks(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc], missing: Sequence[int]
) -> Verdict | None:
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
                HANG, f"{where} gives no answer, so {ranks} may hang there; {words.waits(waiting)}.",
                MEDIUM, suspects, evidence, [f"reach {where} another way; clusterctl nodes"],
            )  # fmt: skip
        if has_moved(trainers):
            return Verdict(
                SILENT, f"{where} gives no answer; all {len(trainers)} other ranks move, so {ranks} must too.",
                MEDIUM, suspects, evidence, [f"sshd or network of {where}; training goes on"],
            )  # fmt: skip
        return None
    ranks = fold_ranks(missing)
    seen = f"no process with rank {ranks} on these nodes, {len(trainers)} of {picture.world} ranks are there"
    if missing and waiting:
        suspects = [Suspect(_home(picture, rank), rank, "trainer", "no process of it") for rank in missing]  # fmt: skip
        nodes = fold(list(dict.fromkeys(s.node for s in suspects)))
        # Whole nodes may simply not stand in this hostfile.
        sure = len(missing) <= max(1, FEW * (picture.world or 1))
        return Verdict(
            HANG, f"rank {ranks} ({nodes}) has ended; {words.waits(waiting)}.", HIGH if sure else MEDIUM,
            suspects, [seen], [f"the end of ranks/{missing[0]}.log; clusterctl kill", "or its node is not in this hostfile"],
        )  # fmt: skip
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


# --- rule 2: most wait for peers, a few do something else ---


def _minority(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc]
) -> Verdict | None:
    rest = [p for p in trainers if p not in waiting]
    if not waiting or not rest:
        return None
    suspects: list[Suspect] = []
    busy: list[Suspect] = []
    evidence: list[str] = []
    for proc in rest:
        found, working = _descend(picture, proc)
        suspects += found
        busy += working
        evidence += [words.facts(proc)]
    confidence = HIGH if len(rest) <= max(1, FEW * len(trainers)) else MEDIUM
    evidence = [*evidence[:4], *words.beat_lines(rest), *(words.facts(s.proc) for s in suspects if s.proc and s.proc not in rest)]  # fmt: skip
    saving = [p for p in rest if _saves(p)]
    if saving and len(saving) == len(rest):
        who = [_suspect(p, "saves a checkpoint") for p in saving]
        return Verdict(
            WAITING, f"{_names(who)} ({saving[0].node}) saves a checkpoint at {saving[0].where(limit=1)}{words.age(saving[0])}{words.asleep(saving[0])}; {words.waits(waiting)}.",
            confidence, who, evidence, ["wait for the save, or look at its disk; --watch tells when it goes on"],
        )  # fmt: skip
    if suspects:
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
        what = f"burns CPU in {first.where(limit=1)} through all samples, without an end or for long" if spin else f"has not moved: {words.where(first)}"  # fmt: skip
        parent = ""
        if first.role != "trainer":
            parent = f"rank {first.rank} waits for data; its "
        name = first.label.split(" ", 2)[-1] if parent else _names(suspects)
        more = f" (and {len(suspects) - 1} more)" if parent and len(suspects) > 1 else ""
        return Verdict(
            HANG, f"{parent}{name}{more} ({first.node}) {what}{words.age(first)}; {words.waits(waiting)}.",
            confidence, suspects, evidence, words.next_for(first),
        )  # fmt: skip
    who = busy or [_suspect(p, "works") for p in rest]
    return Verdict(
        BUSY, f"{_names(who)} ({who[0].node}) still works at {who[0].proc.where(limit=2) if who[0].proc else '?'}; {words.waits(waiting)}. Slow, or just late.",
        LOW, who, evidence, ["--watch, or more time between samples: --interval 30"],
    )  # fmt: skip


def _descend(picture: Picture, trainer: Proc) -> tuple[list[Suspect], list[Suspect]]:
    """(who is to blame, who merely works) for a trainer that the others wait for."""
    if trainer.kind != kinds.WAIT_DATA:
        if trainer.progress in (STUCK, SPINNING):
            return [_suspect(trainer, trainer.progress)], []
        return [], [_suspect(trainer, "works")]
    blamed, working = [], []
    for loader in picture.loaders(trainer):
        if _is_halted(loader):
            blamed.append(_suspect(loader, words.halt_reason(loader)))
        elif loader.kind in (kinds.IDLE, kinds.PUT):
            continue
        elif loader.progress in (STUCK, SPINNING):
            blamed.append(_suspect(loader, loader.progress))
        elif loader.progress == GONE:
            blamed.append(_suspect(loader, "has ended"))
        else:
            working.append(_suspect(loader, "works"))
    if not blamed and not working:
        # Every loader is idle, or there is none: the fault is between them and the rank.
        return [_suspect(trainer, "waits for data that no loader works on")], []
    return blamed, [] if blamed else working


# --- rules 3 and 4: all wait for peers ---


def _all_wait(
    picture: Picture, trainers: Sequence[Proc], waiting: Sequence[Proc]
) -> Verdict | None:
    if not waiting or len(waiting) < len(trainers):
        return None
    groups: dict[tuple[str, str, int | None], list[Proc]] = {}
    for proc in waiting:
        operation, caller = picture.sites.call(proc.stack)
        step = proc.beat["step"] if proc.beat else None
        groups.setdefault((operation, caller, step), []).append(proc)
    ordered = sorted(groups.items(), key=lambda item: len(item[1]))
    if len(ordered) > 1:
        lines = [
            f"rank{'s' * (len(procs) > 1)} {fold_ranks(p.rank for p in procs if p.rank is not None)} in {operation} at {caller}"
            + (f", step {step}" if step is not None else "")
            for (operation, caller, step), procs in reversed(ordered)
        ]  # fmt: skip
        few, many = ordered[0], ordered[-1]
        tie = len(few[1]) == len(ordered[1][1])
        steps = {key[2] for key, _ in ordered}
        if tie and len(steps) > 1 and None not in steps:
            few = min(ordered, key=lambda item: item[0][2] or 0)  # who is a step behind
            tie = False
        suspects = [] if tie else [_suspect(p, f"in {few[0][0]} at {few[0][1]}, the others elsewhere") for p in few[1]]  # fmt: skip
        who = f"{_names(suspects)} ({suspects[0].node}) stands in {few[0][0]} at {few[0][1]}" if suspects else "two groups of the same size stand apart"  # fmt: skip
        return Verdict(
            DESYNC, f"ranks wait in different collectives: {who}; {len(many[1])} in {many[0][0]} at {many[0][1]}.",
            LOW if tie else HIGH if len(few[1]) <= max(1, FEW * len(trainers)) else MEDIUM,
            suspects, [*lines, *words.beat_lines([p for _, procs in ordered for p in procs[:1]])],
            ["what made one rank take another branch (an empty batch, an early return) before these lines"],
        )  # fmt: skip
    (operation, caller, _), _ = ordered[0]
    return Verdict(
        ALL_SAME,
        f"all {len(waiting)} ranks wait in {operation} at {caller}; stacks alone do not say who is missing.",
        LOW, [], [words.facts(waiting[0]), *words.beat_lines(waiting[:1])],
        [
            "the flight recorder's counters, if any stand below: who has not joined is behind",
            "ncclras on a node (NCCL 2.24 or newer): ranks that do not answer, counters that differ",
            "clusterctl preflight for links and Xid; a pair by pair all-reduce finds a bad cable",
        ],
    )  # fmt: skip


# --- rule 5: all wait for data ---


def _all_data(picture: Picture, trainers: Sequence[Proc]) -> Verdict | None:
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
            BUSY, f"all {len(hungry)} ranks wait for data, and their loaders work: the data come slowly.",
            MEDIUM, busy[:8], [words.facts(busy[0].proc)] if busy[0].proc else [],
            ["more loader workers, or a faster place for the data"],
        )  # fmt: skip
    first = suspects[0].proc
    assert first is not None
    return Verdict(
        DATA, f"all {len(hungry)} ranks wait for data; {_names(suspects)} ({first.node}): {words.where(first)}{words.age(first)}.",
        MEDIUM if len(hungry) > 1 else HIGH, suspects,
        [*(words.facts(s.proc) for s in suspects[:4] if s.proc), *words.beat_lines(hungry[:2])], words.next_for(first),
    )  # fmt: skip


# --- rule 6, and when nothing fits ---


def _moving(picture: Picture, trainers: Sequence[Proc], halted: Sequence[Proc]) -> Verdict:
    steps = [p.beats for p in trainers if len(p.beats) > 1]
    evidence = []
    if steps:
        first = min(beats[0]["step"] for beats in steps)
        last = max(beats[-1]["step"] for beats in steps)
        evidence.append(f"heartbeats of {len(steps)} ranks: step {first} to {last} in {picture.interval_s * (picture.samples - 1):.1f} s")  # fmt: skip
    evidence += [
        f"but {p.label} ({p.node}) pid {p.pid}: {words.halt_reason(p)}" for p in halted[:3]
    ]
    silent = picture.silent
    if silent:
        names = fold([node.name for node in silent])
        return Verdict(
            SILENT, f"all {len(trainers)} ranks that can be seen move; {names} gives no answer.", MEDIUM,
            [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent],
            [*evidence, *(f"{n.name}: {n.silent}" for n in silent[:4])], [f"sshd or network of {names}"],
        )  # fmt: skip
    return Verdict(
        OK, f"all {len(trainers)} ranks go on.", HIGH if steps else MEDIUM, [], evidence,
        ["slow rather than hung? clusterctl top shows the slowest rank of each step"],
    )  # fmt: skip


def _undecided(picture: Picture, trainers: Sequence[Proc]) -> Verdict:
    unseen = [p for p in trainers if p.kind == kinds.UNKNOWN]
    if unseen and len(unseen) == len(trainers):
        return Verdict(
            UNKNOWN, f"no stack of any rank could be read: {unseen[0].error or 'no reason given'}.", LOW,
            [], [words.facts(p) for p in unseen[:2]], ["see below for what to allow, or --sudo"],
        )  # fmt: skip
    stuck = [p for p in trainers if p.progress in (STUCK, SPINNING)]
    if stuck and len(stuck) == len(trainers):
        kinds_there = {p.kind for p in stuck}
        suspects = [_suspect(p, p.progress) for p in stuck]
        doing = "stand still" if any(p.progress == STUCK for p in stuck) else "burn CPU in the same functions"  # fmt: skip
        if all(p.progress == SPINNING for p in stuck) and len(trainers) > 1:
            return Verdict(
                BUSY, f"all {len(stuck)} ranks compute in {stuck[0].where(limit=2)}: a long step, or one without end.",
                LOW, [], [words.facts(stuck[0]), *words.beat_lines(stuck[:1])], ["--interval 30, or --watch"],
            )  # fmt: skip
        return Verdict(
            HANG, f"{_names(suspects)} ({stuck[0].node}) {doing} in {stuck[0].where(limit=2)}{words.age(stuck[0])}.",
            MEDIUM if len(kinds_there) == 1 else LOW, suspects,
            [*(words.facts(p) for p in stuck[:4]), *words.beat_lines(stuck[:2])], words.next_for(stuck[0]),
        )  # fmt: skip
    moved = [p for p in trainers if _has_moved(p)]
    still = [p for p in trainers if not _has_moved(p)]
    return Verdict(
        BUSY, f"{len(moved)} of {len(trainers)} ranks went on, rank {fold_ranks(p.rank for p in still if p.rank is not None)} did not in {picture.interval_s:g} s: too short to tell.",
        LOW, [], [*(words.facts(p) for p in still[:3]), *words.beat_lines(still[:2])], ["--interval 30, or --watch"],
    )  # fmt: skip


def _nothing(picture: Picture) -> Verdict:
    silent = picture.silent
    if silent:
        names = fold([node.name for node in silent])
        return Verdict(
            SILENT, f"{names} gives no answer, and no rank runs on the others.", LOW,
            [Suspect(n.name, None, "node", f"no answer: {n.silent}") for n in silent],
            [f"{n.name}: {n.silent}" for n in silent[:4]], [],
        )  # fmt: skip
    return Verdict(UNKNOWN, "there is no rank on any node.", LOW)


def _suspect(proc: Proc, why: str) -> Suspect:
    return Suspect(proc.node, proc.rank, proc.role, why, proc)


def _saves(proc: Proc) -> bool:
    """By its stack, or by what it says itself."""
    return proc.kind == kinds.CHECKPOINT or bool(
        proc.beat and proc.beat["phase"] == "checkpoint" and not proc.waits_for_peers
    )


def _repaired(picture: Picture) -> list[str]:
    return [
        f"{p.label} ({p.node}) pid {p.pid} was left stopped by a dump and set going again"
        for p in picture.procs
        if p.repaired
    ]


def _names(suspects: Sequence[Suspect]) -> str:
    procs = [s.proc for s in suspects if s.proc]
    return words.names(procs) if procs else fold([s.node for s in suspects])
