"""What a supervisor tells those who look at its run, as JSON lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.dataclass_json import decode, encode
from clusterctl.launch.state import NodeState, RunResult, RunState
from clusterctl.node_name import first_bad_name
from clusterctl.nodes import grouped
from trainer.runlog import telemetry

# What reading or showing raises for what no supervisor of this version sends.
NOT_OURS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def picture(state: RunState) -> dict[str, Any]:
    """The state without its events; nodes by what they do."""
    groups = grouped((node.text, name) for name, node in state.nodes.items())
    return {
        "attempt": state.attempt,
        "seconds": round(time.monotonic() - state.started_s, 1),
        "nodes": groups,
        "ranks": len(state.beats),
        "step": encode(state.step),
        "event_count": state.event_count,
        "failure": state.failure,
        "phase": state.phase,
        "reason": state.reason,
        "phase_s": round(time.monotonic() - state.phase_s, 1),
    }


def take(state: RunState, data: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
    """Put a picture and the events since the last one into a state. Raises ValueError, TypeError,
    LookupError for what no supervisor of this version sends."""
    state.attempt = int(data["attempt"])
    state.started_s = time.monotonic() - float(data["seconds"])
    state.failure = data["failure"]
    state.phase, state.reason = str(data["phase"]), str(data["reason"])
    state.phase_s = time.monotonic() - float(data["phase_s"])
    texts = {name: text for text, names in data["nodes"].items() for name in names}
    if why := first_bad_name(texts):
        raise ValueError(why)
    state.nodes = {name: NodeState(text) for name, text in texts.items()}
    if data["step"] is not None:
        state.step = decode(telemetry.StepRecord, data["step"])
    for event in events:
        state.add(decode(telemetry.Event, event))


def result_of(data: Mapping[str, Any]) -> RunResult:
    """A result from its dictionary. Raises one of `NOT_OURS`."""
    result = decode(RunResult, data)
    if not 0 <= result.exit_code <= 255:
        raise ValueError("the exit code is none")
    return result
