"""What a supervisor tells those who look at its run, as JSON lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

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
        "step": asdict(state.step) if state.step is not None else None,
        "event_count": state.event_count,
        "failure": state.failure,
        "phase": state.phase,
        "reason": state.reason,
        "phase_s": round(time.monotonic() - state.phase_s, 1),
    }


def event_line(event: telemetry.Event) -> dict[str, Any]:
    return asdict(event)


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
        state.step = telemetry.StepRecord(**data["step"])
    for event in events:
        state.add(telemetry.Event(**event))


def result_of(data: Mapping[str, Any]) -> RunResult:
    """A result from its dictionary. Raises one of `NOT_OURS`."""
    names = {field.name for field in fields(RunResult)}
    lists = {name: tuple(data[name]) for name in ("last_lines", "leftovers", "unconfirmed")}
    texts = [data["reason"], *(line for lines in lists.values() for line in lines)]
    texts += [data[name] for name in ("hint", "verdict", "stacks") if data.get(name) is not None]
    if type(data["exit_code"]) is not int or not 0 <= data["exit_code"] <= 255:
        raise ValueError("the exit code is none")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text of the result is none")
    return RunResult(**{name: data[name] for name in names if name in data} | lists)
