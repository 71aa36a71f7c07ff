"""What all machines are doing: the grid of GPUs, or cards where there are none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input

from clusterctl.nodes import fold
from dashboards.model.fleet import ORDERS
from dashboards.model.state import State
from dashboards.tui.screens.base import MOVING, TopScreen
from dashboards.tui.screens.dialogs import PreflightDialog
from dashboards.tui.screens.log import LogScreen
from dashboards.tui.widgets.bars import RunStrip
from dashboards.tui.widgets.gpu_grid import GpuGrid
from dashboards.tui.widgets.history import FleetHistory, Selected, metrics_of
from dashboards.tui.widgets.node_cards import NodeCards
from dashboards.tui.widgets.run_panels import Events, LossCurve

MARK = "screen.mark"


class ClusterScreen(TopScreen):
    """Rows are nodes, cells are GPUs."""

    TAB = "1"
    KEYS = (
        ("/", "filter", "screen.filter"),
        ("s", "sort", "screen.sort"),
        ("p", "metric", "screen.metric"),
        ("o", "odd", "screen.outliers"),
        ("enter", "node", "screen.enter"),
        ("space", "mark", MARK),
        ("S", "stacks", "screen.stacks"),
        ("P", "preflight", "screen.preflight"),
        ("K", "kill…", "screen.kill"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVING,
        Binding("left,h", "move(0,-1)", "left", show=False),
        Binding("right,l", "move(0,1)", "right", show=False),
        Binding("enter", "enter", "look at the node"),
        Binding("slash", "filter", "filter nodes"),
        Binding("s", "sort", "change the order"),
        Binding("p", "metric", "change the metric"),
        Binding("o", "outliers", "who stands out of the fleet"),
        Binding("space", "mark", "mark the node"),
        Binding("asterisk", "mark_all", "mark all that are listed"),
        Binding("L", "log", "logs of the node"),
        Binding("S", "stacks", "stacks of all processes, or of the marked nodes"),
        Binding("P", "preflight", "check the marked nodes, or this one"),
        Binding("K", "kill", "end the run on all nodes, or on the marked ones"),
        Binding("e", "copy", "copy the names of the marked nodes, or of this one"),
        Binding("escape", "leave", "drop the filter, then the marks"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._marked: set[str] = set()

    def body(self) -> Iterable[Widget]:
        yield GpuGrid(id="grid")
        yield NodeCards(id="cards")
        with Horizontal(id="below"):
            yield FleetHistory(id="fleet")
            yield Selected(id="selected")
        with Horizontal(id="run-below"):
            yield LossCurve(id="loss")
            yield Events(id="events")
        yield Input(placeholder="part of a name, or a mark: ! ~ - x", id="filter", compact=True)
        yield RunStrip(id="strip")

    @property
    def grid(self) -> GpuGrid:
        """The widget that shows the nodes now."""
        name = "#grid" if self.top.state.has_gpus else "#cards"
        return self.query_one(name, GpuGrid)

    def prepare(self, state: State) -> None:
        grid, cards = self.query_one("#grid", GpuGrid), self.query_one("#cards", NodeCards)
        grid.marked = cards.marked = self._marked
        if self._marked:
            self._marked.intersection_update(state.nodes)
        grid.set_class(not state.has_gpus, "-off")
        cards.set_class(state.has_gpus, "-off")
        below = self.query_one("#below")
        with_charts = state.has_gpus and self.size.height >= 20
        below.set_class(not with_charts, "-off")
        if with_charts:
            # The grid takes what it can use, the charts the rest: three lines are bars, a box has
            # two of border, and five lines are the least that a chart can be read in.
            room = self.size.height - 3 - (self.top.replay is not None)
            wanted = grid.rows_wanted(state, self.size.width - 2, room - 5 - 2) + 2
            height = max(5, min(20, room - wanted))
            if below.styles.height is None or below.styles.height.value != height:
                below.styles.height = height
        # Few machines without GPUs leave room for what they work on.
        with_run = not state.has_gpus and state.run is not None and self.size.height >= 32
        self.query_one("#run-below").set_class(not with_run, "-off")
        self._point()

    def on_screen_resume(self) -> None:
        # Another screen may have gone on to another node.
        if self.top.selected is not None:
            for grid in self.query(GpuGrid):
                grid.cursor = self.top.selected
        super().on_screen_resume()

    def _point(self) -> None:
        """Charts follow the grid's metric and cursor."""
        grid = self.grid
        self.query_one(FleetHistory).metric = grid.metric
        selected = self.query_one(Selected)
        selected.metric, selected.cursor = grid.metric, grid.cursor
        if grid.cursor is not None:
            self.top.selected = grid.cursor

    def on_gpu_grid_moved(self) -> None:
        self._point()
        self.query_one(Selected).again()

    def on_gpu_grid_opened(self) -> None:
        self.action_enter()

    def action_move(self, nodes: int, gpus: int = 0) -> None:
        self.grid.move(nodes, gpus)

    def action_page(self, pages: int) -> None:
        self.grid.page(pages)

    def action_metric(self) -> None:
        metrics = metrics_of(self.top.state)
        grid = self.grid
        at = metrics.index(grid.metric) if grid.metric in metrics else -1
        grid.metric = metrics[(at + 1) % len(metrics)]
        self.again()

    def action_sort(self) -> None:
        grid = self.grid
        grid.order = ORDERS[(ORDERS.index(grid.order) + 1) % len(ORDERS)]
        self.again()

    def action_filter(self) -> None:
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self.grid.wanted
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.grid.wanted = event.value
        self.again()

    def on_input_submitted(self) -> None:
        self._end_filter()

    def action_leave(self) -> None:
        """Escape: first the filter, then the marks."""
        if not self.grid.wanted and not self.has_class("-filtering"):
            self._marked.clear()
        self.grid.wanted = ""
        self._end_filter()
        self.again()

    def _end_filter(self) -> None:
        self.remove_class("-filtering")
        self.set_focus(None)

    def action_enter(self) -> None:
        node = self.grid.selected()
        if node is not None:
            self.top.open_node(node.name, self.grid.cursor[1] if self.grid.cursor else 0)

    def action_outliers(self) -> None:
        self.grid.only_outliers = not self.grid.only_outliers
        self.again()

    def action_log(self) -> None:
        node = self.grid.selected()
        if node is not None:
            self.app.push_screen(LogScreen(node.name, None))

    def offers(self, action: str) -> bool:
        # There the key pauses; nothing can be done to nodes of the past.
        return super().offers(action) and (action != MARK or self.top.replay is None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "mark" and not self.offers(MARK):
            return False
        return super().check_action(action, parameters)

    def action_mark(self) -> None:
        self.grid.mark()

    def action_mark_all(self) -> None:
        self.grid.mark_all()

    def _marked_nodes(self) -> list[str]:
        """In the hostfile's order."""
        return [name for name in self.top.state.nodes if name in self._marked]

    def _meant(self) -> list[str]:
        """The marked nodes, else the one under the cursor."""
        node = self.grid.selected()
        return self._marked_nodes() or ([node.name] if node else [])

    def action_stacks(self) -> None:
        """Without marks of all nodes: who hangs is seen among all ranks, not among eight."""
        self.top.look_at_stacks(self._marked_nodes())

    def action_preflight(self) -> None:
        nodes = self._meant()
        if nodes and self.top.may_act():
            self.app.push_screen(PreflightDialog(nodes))

    def action_kill(self) -> None:
        """Without marks on all nodes: no rank goes on without the others."""
        self.top.ask_to_kill(self._marked_nodes())

    def to_copy(self) -> str:
        return fold(self._meant())

    def commands(self) -> Iterable[SystemCommand]:
        yield SystemCommand("Metric", "the next metric (p)", self.action_metric)
        yield SystemCommand("Sort", "the next order (s)", self.action_sort)
        yield SystemCommand("Filter", "by name or mark (/)", self.action_filter)
        yield SystemCommand("Outliers", "who stands out of the fleet (o)", self.action_outliers)
        yield SystemCommand("Mark", "or unmark all that are listed (*)", self.action_mark_all)
        if self.top.actions is not None:
            count = len(self._marked_nodes())
            where = f"the {count} marked nodes" if count else "all nodes"
            yield SystemCommand(
                "Look at stacks", f"of processes on {where} (S)", self.action_stacks
            )
            checked = where if count else "this node"
            yield SystemCommand("Preflight", f"all checks of {checked} (P)", self.action_preflight)
            if not self.top.readonly:
                yield SystemCommand("Kill", f"end the run on {where} (K)", self.action_kill)
