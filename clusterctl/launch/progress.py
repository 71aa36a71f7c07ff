"""A running launch in one line: overwritten on a terminal, else every 10 s while it changes."""

from __future__ import annotations

import time
from itertools import islice

from checks import units
from clusterctl.launch.state import BETWEEN, RunState
from clusterctl.nodes import fold, grouped
from clusterctl.output import Live, Output

PLAIN_EVERY_S = 10.0
# The same once more, so that a log shows that somebody still waits: for ranks, or for nodes.
SAME_EVERY_S, WAITS_EVERY_S = 60.0, 600.0
STYLES = {
    **dict.fromkeys(("checkpoint", "start", "note", "done", "stopped", "reconnected"), "dim"),
    **dict.fromkeys(("attempt", "nodes"), "dim"),
    **dict.fromkeys(("hang", "goes-on", "disconnected", "cut-off", "logout"), "warn"),
    **dict.fromkeys(("waiting", "excluded", "exclude-file"), "warn"),
    "restart": "bad",
    **dict.fromkeys(("save-failed", "lost"), "bad"),  # "lost": lines of telemetry
    "verdict": "bad",
}  # of the events that are shown


class Progress:
    """Give `update` to `supervise`; it shows steps, loss, pace, time left and the nodes' state."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._live = Live(enabled=not output.quiet)
        self._shown_s, self._shown = 0.0, ""
        self._shown_events = 0
        self._pace: float | None = None  # s/step, smoothed
        self._step = 0

    def update(self, state: RunState) -> None:
        skipped = len(state.events) - (state.event_count - self._shown_events)
        for event in islice(state.events, max(0, skipped), None):
            if event.name in STYLES:
                self._live.clear()
                self._output.note(f"  {event.line}", STYLES[event.name])
        self._shown_events = state.event_count
        now = time.monotonic()
        if not state.nodes:
            return  # an attempt that has not begun
        text, seconds = self._line(state, now)
        line = f"{text}  {units.duration(seconds)}" if seconds is not None else text
        if self._live.is_on:
            self._live.show(line)
            return
        same_s = WAITS_EVERY_S if state.phase in BETWEEN else SAME_EVERY_S
        if now - self._shown_s >= (same_s if text == self._shown else PLAIN_EVERY_S):
            self._shown_s, self._shown = now, text
            self._output.note(line)

    def close(self) -> None:
        self._live.clear()

    def _line(self, state: RunState, now: float) -> tuple[str, float | None]:
        """(text, seconds since something without which the text may stay the same)."""
        if state.phase in BETWEEN:
            return f"{state.phase}: {state.reason}", now - state.phase_s
        groups = grouped((node.text, name) for name, node in state.nodes.items())
        nodes = ", ".join(f"{fold(names)} {text}" for text, names in groups.items())
        record = state.step
        if record is None:
            return f"{nodes}{', no step yet' * ('running' in groups)}", now - state.started_s
        if record.step != self._step:
            self._step = record.step
            smooth = self._pace if self._pace is not None else record.step_s
            self._pace = 0.9 * smooth + 0.1 * record.step_s
        pace = self._pace or record.step_s
        left = units.duration(max(0, record.steps_total - record.step) * pace)
        step = f"step {record.step}/{record.steps_total}  loss {record.loss:.4f}"
        return f"{step}  {units.measured(pace)}/step  {left} left  {nodes}", None
