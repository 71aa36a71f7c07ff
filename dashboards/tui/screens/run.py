"""What the training is doing: loss, time, throughput, and what happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from dashboards.model.run_progress import accounted, figures
from dashboards.model.state import State
from dashboards.tui.screens.base import BACK, Commands
from dashboards.tui.screens.dialogs import ActingScreen
from dashboards.tui.screens.text import LogScreen
from dashboards.tui.widgets import run_panels
from dashboards.tui.widgets.attempts import Attempts
from trainer.runlog.slow_ranks import slow_ranks


class RunScreen(ActingScreen):
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
        yield run_panels.RunHead(id="head")
        with Horizontal(id="curves"):
            yield run_panels.LossCurve(id="loss")
            yield run_panels.StepCurve(id="steps")
        with Horizontal(id="middle"):
            yield run_panels.Phases(id="phases")
            yield run_panels.RunFigures(id="figures")
        with Horizontal(id="lower"):
            yield run_panels.Events(id="events")
            yield Attempts(id="attempts")
            yield run_panels.RunNodes(id="nodes")

    def prepare(self, state: State) -> None:
        """On the smallest terminals the curves need the lines of the events."""
        self.query_one("#lower").set_class(self.size.height < 20, "-off")
        # With one attempt, the figures say all; on small terminals they are all there is room for.
        is_wide = self.size.width >= 140
        known = accounted(state.run) if state.run and is_wide else None
        has_several = known is not None and len(known.attempts) > 1
        self.query_one("#attempts").set_class(not has_several, "-off")

    def to_copy(self) -> str:
        run = self.top.state.run
        return run.directory if run else ""

    def action_log(self) -> None:
        run = self.top.state.run
        if run is None:
            return
        told = slow_ranks(run.slow) if run.slow is not None else ()
        rank = next((one.rank for one in told if one.rank is not None), None)
        if rank is None:
            rank = figures(run, self.top.state.now_s).slowest_rank or 0
        place = run.place_of(rank)
        self.app.push_screen(LogScreen(place[0] if place else None, rank))

    def commands(self) -> Commands:
        return (
            ("Log", "of the slowest rank (L)", "log"),
            ("Dump stacks", "of all processes, now (S)", "stacks"),
            ("Kill", "end the run on all nodes (K)", "kill"),
        )
