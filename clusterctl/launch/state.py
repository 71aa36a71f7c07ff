"""State of a run on the head while it lasts, and how the run ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.launch.root_cause import Judgement
from trainer.runlog import telemetry

# A node without a word for so long is not awaited in a stop, and is looked for while no step comes:
# agents beat at 1 Hz.
SILENT_S = 5.0
BETWEEN_STEPS = ("checkpoint", "validation")  # phases that may take much longer than a step
# Phases between two attempts: a pause and a look at the nodes; too few of them can be used.
BETWEEN = ("restarting", "waiting")
EVENTS = 500  # kept: a run lasts for weeks


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

    nodes: dict[str, NodeState] = field(default_factory=dict)  # of the attempt that runs
    attempt: int = 1
    started_s: float = field(default_factory=time.monotonic)
    step: telemetry.StepRecord | None = None
    events: deque[telemetry.Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    event_count: int = 0  # with those that are not kept any more
    checkpoint: str | None = None  # path of the newest one that an event has told
    failure: str | None = None
    # "starting", "running", "stopping", or one of BETWEEN. `reason` says why it is not running.
    phase: str = "starting"
    reason: str = ""
    phase_s: float = field(default_factory=time.monotonic)  # since when

    def enter(self, phase: str, reason: str = "") -> None:
        if phase != self.phase:
            self.phase, self.phase_s = phase, time.monotonic()
        self.reason = reason

    def add(self, event: telemetry.Event) -> None:
        self.events.append(event)
        self.event_count += 1
        if event.name == "checkpoint" and "path" in event.data:
            self.checkpoint = str(event.data["path"])

    @property
    def beats(self) -> dict[int, dict[str, Any]]:
        return {rank: beat for node in self.nodes.values() for rank, beat in node.ranks.items()}

    @property
    def is_over(self) -> bool:
        return all(node.is_over for node in self.nodes.values())

    @property
    def is_awaited(self) -> bool:
        """Whether an agent that can still be heard has not told the end of its ranks."""
        return any(not node.is_over for node in self._heard())

    @property
    def is_saving(self) -> bool:
        beats = (beat for node in self._heard() for beat in node.ranks.values())
        return any(beat.get("phase") in BETWEEN_STEPS for beat in beats)

    def _heard(self) -> list[NodeState]:
        since_s = time.monotonic() - SILENT_S
        return [node for node in self.nodes.values() if node.heard_s > since_s]


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, after every node was asked for what is left of it."""

    exit_code: int
    reason: str
    at_s: float  # monotonic, when it was noticed
    facts: Mapping[str, Any] = field(default_factory=dict)  # of `RunResult`
    judgement: Judgement | None = None  # None of a good end, and where nothing was started
    more: Mapping[str, Any] = field(default_factory=dict)  # keys of its incident
    leftovers: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)  # nodes that failed it, and why
    stopped: str = ""  # who has asked its ranks to save and end, whatever then ended it


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `exit_code` is the command's: 0, 1, 3 (a node out of reach), 93 (given
    up) or 130."""

    exit_code: int
    reason: str
    failed_rank: int | None = None
    last_lines: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()  # "node: pid 123 (python3, state D)"
    unconfirmed: tuple[str, ...] = ()  # nodes that could not be asked
    hint: str | None = None
    verdict: str | None = None  # of a run that took no step: who is waited for, in one line
    stacks: str | None = None  # the folder of its stacks
    cause: dict[str, Any] | None = None  # the root, as in incidents.jsonl; None of a good end
    attempts: int = 1

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Left(Exception):
    """The supervisor was told to end, the run was not: its ranks go on without it."""


class RunFailed(Exception):
    """Why a run ends before its time, with what `RunResult` says of it; `in_order` where ranks need
    time to save."""

    def __init__(self, exit_code: int, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.exit_code, self.facts = exit_code, facts
