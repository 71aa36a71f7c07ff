"""What a supervisor must know of the attempts of a run so far. It is saved with every change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterctl.launch.restart.budget import Failure, decide
from trainer.runlog.telemetry import StepRecord


@dataclass(frozen=True, slots=True)
class Past:
    """What a supervisor must know of a run that it did not begin itself."""

    failures: tuple[Failure, ...] = ()
    unproved: Mapping[str, str] = field(default_factory=dict)  # nodes not proved clean, and why
    barred: Mapping[str, str] = field(default_factory=dict)  # nodes with a fault of their own
    entered: frozenset[str] = frozenset()  # those of them that are in exclude.toml
    stopped: str = ""  # who has stopped the run: nothing starts it again
    damaged: frozenset[str] = frozenset()
    phase: str = "new"  # else what `on_change` was last called with
    positions: Mapping[str, dict[str, int]] = field(default_factory=dict)  # in the nodes' files
    began_s: float | None = None  # unix time of the first attempt
    known: frozenset[tuple[str, str | None, str]] = frozenset()  # events on record
    step: StepRecord | None = None  # the last one
    checkpoint: str | None = None  # path of the last one

    def over(self, max_restarts: int | None) -> str:
        """Why no supervisor starts the run again; "" where one does."""
        if self.stopped:
            return self.stopped
        last = decide(self.failures, max_restarts) if self.failures else None
        return last.text if last is not None and not last.is_restart else ""
