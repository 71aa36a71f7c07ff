"""Where a replay stands, how fast it plays; a click goes there."""

from __future__ import annotations

import time
from typing import Protocol

from textual.events import Click
from textual.message import Message

from dashboards.model import units
from dashboards.model.state import State
from dashboards.tui.braille import bar
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, width_of, words


class Replay(Protocol):
    """A feed that plays something again."""

    @property
    def first_s(self) -> float: ...
    @property
    def last_s(self) -> float: ...
    @property
    def speed(self) -> float:
        """Seconds of the past in a second; 0 while it is paused."""

    def now(self) -> float: ...
    def pause(self) -> None:
        """Stop the time, or let it go on."""

    def faster(self, factor: float) -> None: ...
    def seek(self, seconds: float) -> None:
        """Forth, or back."""


class ReplayBar(Panel):
    """One line above the keys; not there where nothing is played."""

    class Wanted(Message):
        """The user points at a part of the recording, 0 to 1."""

        def __init__(self, part: float) -> None:
            super().__init__()
            self.part = part

    def __init__(self, replay: Replay | None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._replay = replay
        self._from, self._wide = 0, 0  # where the bar begins, how wide it is

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        replay = self._replay
        if replay is None:
            return []
        span_s = max(1e-9, replay.last_s - replay.first_s)
        part = min(1.0, max(0.0, (replay.now() - replay.first_s) / span_s))
        # No emoji: terminals do not agree on how wide those are.
        speed = f"► x{replay.speed:g}" if replay.speed else "|| paused"
        if part >= 1.0:
            speed = "■ end"
        left = words((f" {speed:<10}", colors.accent))
        here = time.strftime("%H:%M:%S", time.localtime(replay.now()))
        end = time.strftime("%H:%M:%S", time.localtime(replay.last_s))
        right = words((f" {here}", colors.strong), (f" of {end}", colors.dim))
        keys = words(("  space [ ] , . + -", colors.dim)) if width >= 110 else []
        ago = words((f"  {units.span(replay.last_s - replay.now())} left", colors.label))
        right += (ago if width >= 90 else []) + keys + words((" ", colors.dim))
        self._from = width_of(left)
        self._wide = max(4, width - self._from - width_of(right))
        filled, empty = bar(part, self._wide)
        return [left + words((filled, colors.good), (empty, colors.dim)) + right]

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and self._from <= offset.x < self._from + self._wide:
            self.post_message(self.Wanted((offset.x - self._from) / max(1, self._wide - 1)))
