"""What a supervisor must know of the attempts of a run so far. It is saved with every change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterctl.dataclass_json import LEFT_OUT
from clusterctl.launch.restart.budget import Failure, decide
from clusterctl.node_name import NodeName
from trainer.runlog.telemetry import StepRecord


@dataclass(frozen=True, slots=True)
class Past:
    """What a supervisor must know of a run that it did not begin itself."""

    failures: tuple[Failure, ...] = ()
    unproved: Mapping[NodeName, str] = field(default_factory=dict)  # not proved clean, and why
    barred: Mapping[NodeName, str] = field(default_factory=dict)  # nodes with a fault of their own
    entered: frozenset[NodeName] = frozenset()  # those of them that are in exclude.toml
    damaged: frozenset[str] = frozenset()
    stopped: str = ""  # who has stopped the run: nothing starts it again
    # The others are found in the files of the run:
    phase: str = field(default="new", metadata=LEFT_OUT)  # else that of the last `on_change`
    positions: Mapping[str, dict[str, int]] = field(default_factory=dict, metadata=LEFT_OUT)
    began_s: float | None = field(default=None, metadata=LEFT_OUT)  # of the first attempt, unix
    known: frozenset[tuple[str, str | None, str]] = field(default=frozenset(), metadata=LEFT_OUT)
    step: StepRecord | None = field(default=None, metadata=LEFT_OUT)  # the last one
    checkpoint: str | None = field(default=None, metadata=LEFT_OUT)  # path of the last one

    def over(self, max_restarts: int | None) -> str:
        """Why no supervisor starts the run again; "" where one does."""
        if self.stopped:
            return self.stopped
        last = decide(self.failures, max_restarts) if self.failures else None
        return last.text if last is not None and not last.is_restart else ""
