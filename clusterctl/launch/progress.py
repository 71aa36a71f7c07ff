"""A running launch in one line: overwritten on a terminal, every 10 s elsewhere."""

from __future__ import annotations

import time

from clusterctl.launch.state import RunState
from clusterctl.nodes import fold
from clusterctl.output import Live, Output, clock

PLAIN_EVERY_S = 10.0
SHOWN = {
    **dict.fromkeys(("checkpoint", "start", "note", "done", "stopped"), "dim"),
    **dict.fromkeys(("hang", "goes-on"), "warn"),
    "verdict": "bad",
}  # event -> style


class Progress:
    """Give `update` to `supervise`; it shows steps, loss, pace, time left and the nodes' state."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._live = Live(enabled=not output.quiet)
        self._shown_s = 0.0
        self._told = 0  # events of the state that were shown
        self._pace: float | None = None  # s/step, smoothed
        self._step = 0

    def update(self, state: RunState) -> None:
        fresh = min(len(state.events), state.told - self._told)
        for event in list(state.events)[len(state.events) - fresh :]:
            if event.name in SHOWN:
                self._live.clear()
                self._output.note(f"  {event.name}: {event.text}", SHOWN[event.name])
        self._told = state.told
        now = time.monotonic()
        if self._live.is_on:
            self._live.show(self.line(state))
        elif now - self._shown_s >= PLAIN_EVERY_S:
            self._shown_s = now
            self._output.note(self.line(state))

    def close(self) -> None:
        self._live.clear()

    def line(self, state: RunState) -> str:
        """One line for people."""
        nodes = _nodes(state)
        record = state.step
        if record is None:
            return f"{nodes}  {clock(time.monotonic() - state.started_s)}"
        if record.step != self._step:
            self._step = record.step
            smooth = self._pace if self._pace is not None else record.step_s
            self._pace = 0.9 * smooth + 0.1 * record.step_s
        pace = self._pace or record.step_s
        left = max(0, record.steps_total - record.step) * pace
        return (
            f"step {record.step}/{record.steps_total}  loss {record.loss:.4f}  {pace:.2f} s/step  "
            f"{clock(left)} left  {nodes}"
        )


def _nodes(state: RunState) -> str:
    """Nodes folded by what they are doing."""
    groups: dict[str, list[str]] = {}
    for name, node in state.nodes.items():
        groups.setdefault(node.text, []).append(name)
    return ", ".join(f"{fold(names)} {text}" for text, names in groups.items())
