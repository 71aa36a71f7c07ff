"""Where the ranks of a run were, its attempts, and whether it is over, by the launcher's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.runs.attempts import Attempt, account
from clusterctl.runs.find import EVENTS_FILE, INCIDENTS_FILE, PLAN_FILE
from clusterctl.runs.journal import (
    Journal,
    after_event,
    after_incident,
    incident_event,
    launcher_event,
    node_of,
    planned_nodes,
)
from trainer.runlog import run_files
from trainer.runlog.steps import Steps
from trainer.runlog.telemetry import Event, Tail

_RANK = re.compile(r"rank (\d{1,7}) is pid ", re.ASCII)
_BEGINS = ("plan", "start", "attempt", "restart")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the launcher has written so far. Empty for a run without one."""

    attempts: tuple[Attempt, ...] = ()
    ranks: Mapping[str, frozenset[int]] = field(default_factory=dict)  # of a node, in any attempt
    nodes: Mapping[int, str] = field(default_factory=dict)  # of a rank, in its newest attempt
    is_over: bool = False
    began_s: float | None = None  # unix time of the first event; None: not known
    unread: str = ""  # which of the launcher's files could not be read to its end, and why

    @property
    def newest(self) -> int:
        """Number of the newest attempt; 1 where nothing is known of attempts."""
        return max((attempt.number for attempt in self.attempts), default=1)


class LayoutReader:
    """Follows the files of the launcher; reads only what is new."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._events = Tail(run_dir / EVENTS_FILE, launcher_event)
        self._incidents = Tail(run_dir / INCIDENTS_FILE, incident_event)
        self._journal = Journal()
        self._ranks: dict[str, set[int]] = {}
        self._nodes: dict[int, str] = {}
        self._is_over = False
        self._began_s: float | None = None
        self._unread = ""
        self._take_plan()

    def is_over(self) -> bool:
        """Whether the run has ended, by now."""
        self._poll()
        return self._is_over

    def read(self) -> Layout:
        self._poll()
        ranks = {name: frozenset(ranks) for name, ranks in self._ranks.items()}
        attempts = account(Steps(), self._journal).attempts
        known = attempts, ranks, dict(self._nodes), self._is_over, self._began_s
        return Layout(*known, self._unread)

    def _poll(self) -> None:
        try:
            self._take_new()
            self._unread = ""
        except OSError as error:  # a file system that fails for a moment: again at the next call
            self._unread = f"{error.filename or self._run_dir}: {error.strerror or error}"

    def _take_new(self) -> None:
        for event in self._events.records():
            if isinstance(event, Event):
                self._journal = after_event(self._journal, event)
                self._began_s = event.time_s or None if self._began_s is None else self._began_s
                self._take(event)
        for event in self._incidents.records():
            if isinstance(event, Event):
                self._journal = after_incident(self._journal, event)

    def _take(self, event: Event) -> None:
        if event.name == "end":
            self._is_over = True
        elif event.name in _BEGINS:
            self._is_over = False
        elif event.name == "rank" and (match := _RANK.match(event.text)):
            self._place(node_of(event) or "", int(match[1]))

    def _place(self, node: str, rank: int) -> None:
        self._ranks.setdefault(node, set()).add(rank)
        self._nodes[rank] = node

    def _take_plan(self) -> None:
        """Before ranks have started, the plan says where they will be."""
        first = 0
        for name, count in planned_nodes(run_files.object_in(self._run_dir, PLAN_FILE)):
            self._ranks.setdefault(name, set())
            for rank in range(first, first + count):
                self._place(name, rank)
            first += count
