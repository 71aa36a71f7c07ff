"""The result of a diagnosis: who hangs, why, how sure that is, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from clusterctl.nodes import fold
from clusterctl.stacks import wording
from clusterctl.stacks.model import Proc


class VerdictKind(str, Enum):
    """What is known of a job; `headline` and `exit_code` are what people and scripts see."""

    headline: str
    exit_code: int

    def __new__(cls, value: str, headline: str, exit_code: int) -> VerdictKind:
        kind = str.__new__(cls, value)
        kind._value_, kind.headline, kind.exit_code = value, headline, exit_code
        return kind

    HANG = "hang", "HANG", 1
    DESYNC = "desync", "DESYNC", 1
    WAITING = "waiting", "WAITING", 1
    ALL_SAME = "all-same", "HANG", 1
    DATA = "data", "HANG", 1
    SILENT = "no-answer", "NO ANSWER", 3
    OK = "moving", "MOVING", 0
    BUSY = "busy", "BUSY", 3
    UNKNOWN = "unknown", "UNKNOWN", 3

    __str__ = str.__str__


class Confidence(str, Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    __str__ = str.__str__

    @classmethod
    def of(cls, count: int, ranks: int) -> Confidence:
        """High for suspects that are a small minority of the ranks."""
        return cls.HIGH if count <= max(1, FEW * ranks) else cls.MEDIUM


SURE_S = 10.0  # a rank that was in one place for less may just be slow
FEW = 0.25  # suspects beyond this share of the ranks are not a minority


@dataclass(frozen=True, slots=True)
class Suspect:
    """A process that others wait for; `proc` is None for a node or rank that was not seen."""

    node: str
    rank: int | None
    what: str  # role in words
    why: str
    proc: Proc | None = None

    @classmethod
    def of(cls, proc: Proc, why: str) -> Suspect:
        return cls(proc.node, proc.rank, proc.role, why, proc)

    def to_json(self) -> dict[str, object]:
        proc = self.proc
        found = {name: getattr(self, name) for name in ("node", "rank", "what", "why")}
        found |= {name: getattr(proc, name, None) for name in ("pid", "role", "index")}
        return found | {"site": proc and proc.where(), "file": proc and proc.file()}


@dataclass(slots=True)
class Verdict:
    """The answer: `kind`, one sentence, who, why, and what to do next."""

    kind: VerdictKind
    sentence: str
    confidence: Confidence = Confidence.HIGH
    suspects: list[Suspect] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return self.kind.exit_code

    @property
    def headline(self) -> str:
        return f"{self.kind.headline}: {self.sentence}"

    def to_json(self) -> dict[str, object]:
        found = {name: getattr(self, name) for name in ("kind", "sentence", "confidence")}
        suspects = [suspect.to_json() for suspect in self.suspects]
        return found | {"suspects": suspects, "evidence": self.evidence, "next": self.next_steps}


def named(suspects: Sequence[Suspect]) -> str:
    """`ranks 3,5`, `rank 3 loader 1 (and 2 more)`, or nodes where no process was seen."""
    procs = [s.proc for s in suspects if s.proc]
    return wording.names(procs) if procs else fold([s.node for s in suspects])
