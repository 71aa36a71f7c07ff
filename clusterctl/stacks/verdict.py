"""What a diagnosis answers: who hangs, why, how sure that is, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.nodes import fold
from clusterctl.stacks import messages as words
from clusterctl.stacks.model import Proc

HANG, DESYNC, WAITING, ALL_SAME, DATA, SILENT, OK, BUSY, UNKNOWN = (
    "hang",
    "desync",
    "waiting",
    "all-same",
    "data",
    "no-answer",
    "moving",
    "busy",
    "unknown",
)
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
            HANG: "HANG",
            DESYNC: "DESYNC",
            WAITING: "WAITING",
            ALL_SAME: "HANG",
            DATA: "HANG",
            SILENT: "NO ANSWER",
            OK: "MOVING",
            BUSY: "BUSY",
            UNKNOWN: "UNKNOWN",
        }[self.kind]
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


def suspect(proc: Proc, why: str) -> Suspect:
    """A process that was seen, as a suspect."""
    return Suspect(proc.node, proc.rank, proc.role, why, proc)


def named(suspects: Sequence[Suspect]) -> str:
    """`ranks 3,5`, `rank 3 loader 1 (and 2 more)`, or nodes where no process was seen."""
    procs = [s.proc for s in suspects if s.proc]
    return words.names(procs) if procs else fold([s.node for s in suspects])
