"""What the training is doing: loss, time, throughput, and what happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from dashboards.model.run_progress import figures
from dashboards.model.state import State
from dashboards.tui.screens.base import BACK, Commands, TopScreen
from dashboards.tui.screens.text import LogScreen
from dashboards.tui.widgets.run_figures import Phases, RunFigures
from dashboards.tui.widgets.run_panels import Events, LossCurve, RunHead, RunNodes, StepCurve


class RunScreen(TopScreen):
    """One run, as its directory tells it."""

    TAB = "3"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "app.scrub(-0.02)"),
        ("right,l", "app.scrub(0.02)"),
        ("L", "log", "log"),
        ("S", "stacks", "stacks"),
        ("K", "kill", "kill…"),
        ("e", "copy"),
        BACK,
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
        """On the smallest terminals the curves need the lines of the events."""
        self.query_one("#lower").set_class(self.size.height < 20, "-off")

    def to_copy(self) -> str:
        run = self.top.state.run
        return run.directory if run else ""

    def action_log(self) -> None:
        """Of the slowest rank."""
        run = self.top.state.run
        if run is None:
            return
        rank = figures(run, self.top.state.now_s).slowest_rank or 0
        place = run.place_of(rank)
        self.app.push_screen(LogScreen(place[0] if place else None, rank))

    def action_stacks(self) -> None:
        self.top.look_at_stacks()

    def action_kill(self) -> None:
        self.top.ask_to_kill()

    def commands(self) -> Commands:
        yield "Log", "of the slowest rank (L)", self.action_log
        if self.top.actions is not None:
            yield "Look at stacks", "of all processes, now (S)", self.action_stacks
            if not self.top.readonly:
                yield "Kill", "end the run on all nodes (K)", self.action_kill
