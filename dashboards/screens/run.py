"""What the training is doing: loss, time, throughput, and what happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from dashboards.feeds import ReplayFeed
from dashboards.screens.base import TopScreen
from dashboards.state import State
from dashboards.widgets.run_panels import (
    Events,
    LossCurve,
    Phases,
    RunFigures,
    RunHead,
    RunNodes,
    StepCurve,
)


class RunScreen(TopScreen):
    """One run, as its directory tells it."""

    KEYS = (
        ("1", "Cluster", "app.switch_mode('cluster')"),
        ("2", "Run", "app.switch_mode('run')"),
        ("?", "help", "app.help"),
        ("q", "quit", "app.quit"),
        ("w", "screenshot", "app.picture"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause a replay"),
        Binding("plus", "faster(2.0)", "replay faster"),
        Binding("minus", "faster(0.5)", "replay slower"),
        Binding("left,h", "seek(-0.02)", "replay: back", show=False),
        Binding("right,l", "seek(0.02)", "replay: forth", show=False),
        Binding("end", "seek(1.0)", "replay: to the end", show=False),
        Binding("home", "seek(-1.0)", "replay: to the beginning", show=False),
    ]

    def body(self) -> Iterable[Widget]:
        yield RunHead(id="head")
        with Horizontal(id="curves"):
            yield LossCurve(id="loss")
            yield StepCurve(id="steps")
        with Horizontal(id="middle"):
            yield Phases(id="phases")
            yield RunFigures(id="figures")
        with Horizontal(id="lower"):
            yield Events(id="events")
            yield RunNodes(id="nodes")

    def prepare(self, state: State) -> None:
        """On the smallest terminals the curves need the room of the events."""
        self.query_one("#lower").set_class(self.size.height < 20, "-off")

    @property
    def _replay(self) -> ReplayFeed | None:
        feed = self.top.feed
        return feed if isinstance(feed, ReplayFeed) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of a replay do nothing where there is none."""
        return action not in ("pause", "faster", "seek") or self._replay is not None

    def action_pause(self) -> None:
        if self._replay:
            self._replay.pause()
            self.top.tick()

    def action_faster(self, factor: float) -> None:
        if self._replay:
            self._replay.faster(factor)
            self.notify(f"replay x{self._replay.speed:g}", timeout=2)

    def action_seek(self, part: float) -> None:
        if self._replay:
            self._replay.seek(part * (self._replay.last_s - self._replay.first_s))
            self.top.tick()
