"""What NCCL's RAS reports of a job: its communicators and what each rank has launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank of a communicator; `counts` are collectives launched so far, by operation.

    Sends, receives and what a CUDA graph replays are in no count of NCCL.
    """

    rank: int  # in its communicator
    host: str | None  # an address
    pid: int | None  # as the process itself sees it
    counts: Mapping[str, int]
    status: str = "RUNNING"  # INIT, RUNNING, FINALIZE, ABORT
    error: int = 0  # ncclResult_t of its initialisation or of what runs; 7 is in progress


@dataclass(frozen=True, slots=True)
class RasMissing:
    """A rank of which RAS has no counts."""

    rank: int
    host: str | None
    pid: int | None
    is_unresponsive: bool  # else its process answered and is no member (yet, or any more)
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class RasComm:
    """A communicator. RAS's text shows only those with a problem, and not their equal counts."""

    key: str  # unique in a job
    size: int
    ranks: tuple[RasRank, ...]
    missing: tuple[RasMissing, ...] = ()
    is_unclear: bool = False  # of text: counts differ, and it does not show whose

    @property
    def name(self) -> str:
        return self.key.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class RasAnswer:
    version: str  # of NCCL
    comms: tuple[RasComm, ...]
    is_complete: bool  # False: text, where communicators without a problem are only counted
    timeouts: int = 0
    processes: int = 0  # of text: all of the job that RAS knows
    others: Mapping[str, int] = field(default_factory=dict)  # of text: groups by their error
