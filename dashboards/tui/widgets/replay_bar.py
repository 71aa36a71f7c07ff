"""Where a replay stands, how fast it plays; a click goes there."""

from __future__ import annotations

from textual.events import Click
from textual.message import Message

from dashboards.feeds.replay import Player
from dashboards.model import units
from dashboards.model.state import State
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, gauge, width_of, words


class ReplayBar(Panel):
    """One line above the keys; not there where nothing is played."""

    class Seek(Message):
        """The user wants to see another time."""

        def __init__(self, at_s: float) -> None:
            super().__init__()
            self.at_s = at_s

    _bar = range(0)  # the columns of the bar

    def __init__(self, replay: Player | None, *, id: str) -> None:
        super().__init__(id=id)
        self._replay = replay

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        replay = self._replay
        if replay is None:
            return []
        span_s = max(1e-9, replay.last_s - replay.first_s)
        part = min(1.0, max(0.0, (replay.now() - replay.first_s) / span_s))
        # No emoji: terminals do not agree on how wide those are.
        speed = f"► x{replay.speed:g}" if replay.speed else "|| paused"
        speed = "■ end" if part >= 1.0 else speed
        left = words((f" {speed:<10}", colors.accent))
        here, end = clock(replay.now()), clock(replay.last_s)
        ago = f"  {units.span(replay.last_s - replay.now())} left"
        right = words(
            (f" {here}", colors.strong),
            (f" of {end}", colors.dim),
            (ago if width >= 90 else "", colors.label),
            ("  space [ ] , . + -" if width >= 110 else "", colors.dim),
            (" ", colors.dim),
        )
        start = width_of(left)
        self._bar = range(start, start + max(4, width - start - width_of(right)))
        return [left + gauge(part, len(self._bar), colors.good, colors) + right]

    def on_click(self, event: Click) -> None:
        offset, replay = event.get_content_offset(self), self._replay
        if replay is not None and offset is not None and offset.x in self._bar:
            part = (offset.x - self._bar.start) / max(1, len(self._bar) - 1)
            at_s = replay.first_s + part * (replay.last_s - replay.first_s)
            self.post_message(self.Seek(at_s))
