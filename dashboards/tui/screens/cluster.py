"""What all machines are doing: the grid of GPUs, or cards where there are none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from clusterctl.nodes import fold
from dashboards.model.state import State
from dashboards.model.table import METRICS, NODE_METRICS, ORDERS
from dashboards.tui.screens.base import Commands, FilterScreen, ListScreen, fit, following
from dashboards.tui.screens.dialogs import ActingScreen
from dashboards.tui.screens.text import LogScreen
from dashboards.tui.screens.usage import UsageScreen
from dashboards.tui.widgets.bars import RunStrip
from dashboards.tui.widgets.gpu_grid import GpuGrid
from dashboards.tui.widgets.history import FleetHistory, Selected
from dashboards.tui.widgets.node_cards import NodeCards
from dashboards.tui.widgets.run_panels import Events, LossCurve


class ClusterScreen(FilterScreen, ListScreen, ActingScreen):
    TAB = "1"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "move(0,-1)"),
        ("right,l", "move(0,1)"),
        Binding("slash", "filter", "filter", key_display="/"),
        ("s", "sort", "sort"),
        ("p", "metric", "metric"),
        ("o", "outliers", "odd"),
        ("enter", "enter", "node"),
        ("u", "usage"),
        ("space", "mark", "mark"),
        ("asterisk", "mark_all"),
        ("L", "log"),
        ("S", "stacks", "stacks"),
        ("P", "preflight", "preflight"),
        ("K", "kill", "kill…"),
        ("e", "copy"),
        ("escape", "leave"),
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
        yield self.filter_line("part of a name, or a mark: ! ~ - x")
        yield RunStrip(id="strip")

    @property
    def grid(self) -> GpuGrid:
        """The widget that shows the nodes now."""
        name = "#grid" if self.top.state.has_gpus else "#cards"
        return self.query_one(name, GpuGrid)

    movable = grid

    def prepare(self, state: State) -> None:
        if self._marked:
            self._marked.intersection_update(state.nodes)
        grid, has_gpus, height = self.query_one("#grid", GpuGrid), state.has_gpus, 0
        for one in (grid, self.query_one("#cards", GpuGrid)):  # by id: a query walks all widgets
            one.marked, one.wanted = self._marked, self.wanted
            one.set_class((one is grid) != has_gpus, "-off")
        if has_gpus and self.size.height >= 20:
            # The grid takes what it can use, the charts the rest: three lines are bars, a box has
            # two of border, and five lines are the least that a chart can be read in.
            free = self.size.height - 3 - (self.top.replay is not None)
            wanted = grid.rows_wanted(state, self.size.width - 2, free - 5 - 2) + 2
            height = max(5, min(20, free - wanted))
        fit(self.query_one("#below"), height)
        # Few machines without GPUs leave lines for the run.
        with_run = not has_gpus and state.run is not None and self.size.height >= 32
        self.query_one("#run-below").set_class(not with_run, "-off")
        self._point()

    def on_screen_resume(self) -> None:
        # Another screen may have selected another node.
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

    def on_panel_moved(self) -> None:
        self._point()
        self.query_one(Selected).again()

    def action_metric(self) -> None:
        metrics = METRICS if self.top.state.has_gpus else NODE_METRICS
        self.grid.metric = following(metrics, self.grid.metric)
        self.again()

    def action_sort(self) -> None:
        self.grid.order = following(ORDERS, self.grid.order)
        self.again()

    def action_leave(self) -> None:
        """Escape: first the filter, then the marks."""
        if not self.drop_filter():
            self._marked.clear()
        self.again()

    def action_enter(self) -> None:
        node = self.grid.selected()
        if node is not None:
            self.top.open_node(node.name, self.grid.cursor[1] if self.grid.cursor else 0)

    def action_outliers(self) -> None:
        self.grid.only_outliers = not self.grid.only_outliers
        self.again()

    def action_usage(self) -> None:
        self.app.push_screen(UsageScreen())

    def action_log(self) -> None:
        node = self.grid.selected()
        if node is not None:
            self.app.push_screen(LogScreen(node.name, None))

    def offers(self, action: str) -> bool:
        # In a replay the key pauses; nothing can be done to nodes of the past.
        return super().offers(action) and (action != "mark" or self.top.replay is None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        is_offered = action != "mark" or self.offers(action)
        return is_offered and super().check_action(action, parameters)

    def action_mark(self) -> None:
        """Mark the node under the cursor, or unmark it, and go on to the next."""
        node = self.grid.selected()
        if node is not None:
            self._marked ^= {node.name}
            self.grid.move(1)
            self.again()

    def action_mark_all(self) -> None:
        """All that are listed; none of them when all are marked."""
        listed = {node.name for node in self.grid.listed}
        self._marked = self._marked - listed if listed <= self._marked else self._marked | listed
        self.again()

    def meant(self) -> list[str]:
        """The marked ones, in the hostfile's order.

        Without marks all: a hang is seen among all ranks, and none runs without the others.
        """
        return [name for name in self.top.state.nodes if name in self._marked]

    def to_check(self) -> list[str]:
        """The marked nodes, else the one under the cursor."""
        node = self.grid.selected()
        return self.meant() or ([node.name] if node else [])

    def to_copy(self) -> str:
        return fold(self.to_check())

    def commands(self) -> Commands:
        count = len(self.meant())
        where = f"the {count} marked nodes" if count else "all nodes"
        return (
            ("Metric", "the next metric (p)", "metric"),
            ("Sort", "the next order (s)", "sort"),
            ("Filter", "by name or mark (/)", "filter"),
            ("Outliers", "who stands out of the fleet (o)", "outliers"),
            ("Mark", "or unmark all that are listed (*)", "mark_all"),
            ("Usage", "GPUs and energy by job, user, node (u)", "usage"),
            ("Dump stacks", f"of processes on {where} (S)", "stacks"),
            ("Preflight", f"all checks of {where if count else 'this node'} (P)", "preflight"),
            ("Kill", f"end the run on {where} (K)", "kill"),
        )
