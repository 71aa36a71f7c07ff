"""State of a run on the head while it lasts, and how the run ended."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.launch import error_line
from trainer.runlog import telemetry

EVENTS = 500  # kept: a run lasts for weeks
SETTLE_S = 1.5  # for other nodes' deaths to arrive, of which one may state the cause


@dataclass(slots=True)
class NodeState:
    text: str = "connecting"
    heard_s: float = 0.0  # monotonic time of its last message
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)  # heartbeats by rank
    pids: dict[int, int] = field(default_factory=dict)  # of ranks that have started
    ended: set[int] = field(default_factory=set)  # ranks
    code: int | None = None  # of what started its ranks
    is_over: bool = False
    shared: bool = True  # it uses the head's run directory


@dataclass(slots=True)
class RunState:
    """A run as the head sees it now; passed to `on_update` after every change."""

    nodes: dict[str, NodeState]
    started_s: float = field(default_factory=time.monotonic)
    step: telemetry.StepRecord | None = None
    events: deque[telemetry.Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    event_count: int = 0  # with those that are not kept any more
    failure: str | None = None

    def add(self, event: telemetry.Event) -> None:
        self.events.append(event)
        self.event_count += 1

    @property
    def beats(self) -> dict[int, dict[str, Any]]:
        return {rank: beat for node in self.nodes.values() for rank, beat in node.ranks.items()}

    @property
    def is_saving(self) -> bool:
        return any(beat.get("phase") == "checkpoint" for beat in self.beats.values())


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `exit_code` is the command's: 0, 1, 3 (a node out of reach) or 130."""

    exit_code: int
    reason: str
    failed_rank: int | None = None
    last_lines: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()  # "node: pid 123 (python3, state D)"
    unconfirmed: tuple[str, ...] = ()  # nodes that could not be asked
    hint: str | None = None
    verdict: str | None = None  # of a run that took no step: who is waited for, in one line
    stacks: str | None = None  # the folder of its stacks

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class RunFailed(Exception):
    """Why a run ends before its time, with what `RunResult` says of it."""

    def __init__(self, exit_code: int, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.exit_code, self.facts = exit_code, facts


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ended badly. `code` is None when it is not known, negative for a signal."""

    node: str
    rank: int
    code: int | None
    how: str
    tail: Sequence[str]
    at_s: float  # monotonic time at which the message arrived
    error: str | None = None  # the reason in its log

    @property
    def weight(self) -> int:
        """0 for a likely cause, more for a consequence.

        torchrun sends SIGTERM to the peers of a dead rank. NCCL's watchdog and gloo send SIGABRT,
        so it counts as an exit code; of those an error in the log comes first: ranks log it once.
        """
        if self.code is None:
            return 4
        if self.code == -signal.SIGTERM:
            return 5
        if self.code < 0 and self.code != -signal.SIGABRT:
            return 0
        if self.error is None:
            return 2
        return 3 if error_line.blames_a_peer(self.error) else 1

    @property
    def settle_s(self) -> float:
        """Seconds to wait for a likelier cause; an unseen end may have been a good one."""
        return (0.0, 0.3, SETTLE_S, SETTLE_S, math.inf, SETTLE_S)[self.weight]


def cause(deaths: Sequence[Death], now_s: float) -> Death | None:
    """The death that ended a run; None while the message of a likelier one may still come."""
    if not deaths:
        return None
    likeliest = min(deaths, key=lambda death: (death.weight, death.at_s))
    first_s = min(death.at_s for death in deaths)
    return likeliest if now_s - first_s >= likeliest.settle_s else None
