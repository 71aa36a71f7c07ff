"""One machine: its GPUs with all figures, who uses them, network, disks, clock and alerts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from dashboards.model.state import State
from dashboards.model.table import METRICS
from dashboards.tui.screens.base import BACK, Commands, fit, following
from dashboards.tui.screens.dialogs import ActingScreen
from dashboards.tui.screens.text import LogScreen
from dashboards.tui.widgets.node_details import NodeDetails, NodeDisks, NodeLinks, NodeProcesses
from dashboards.tui.widgets.node_panels import NodeChart, NodeGpus, NodeHead, NodePanel


class NodeScreen(ActingScreen):
    RUN_ABOVE = True
    TAB = "2"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "gpu(-1)"),
        ("down,j", "gpu(1)"),
        ("left,h", "node(-1)"),
        Binding("right,l", "node(1)", "node", key_display="←→"),
        ("p", "metric", "metric"),
        ("L", "log", "log"),
        ("S", "stacks", "stacks"),
        ("P", "preflight", "preflight"),
        ("K", "kill", "kill…"),
        ("e", "copy"),
        BACK,
    ]

    def body(self) -> Iterable[Widget]:
        yield NodeHead(id="node-head")
        yield NodeGpus(id="node-gpus")
        yield NodeDetails(id="node-facts")
        with Horizontal(id="node-more"):
            yield NodeProcesses(id="node-processes")
            yield NodeLinks(id="node-links")
        yield NodeDisks(id="node-disks")
        yield NodeChart(id="node-chart")

    @property
    def gpus(self) -> NodeGpus:
        return self.query_one(NodeGpus)

    def prepare(self, state: State) -> None:
        name = self.top.node() or ""
        for panel in self.query(NodePanel):
            panel.node = name
        gpus, chart = self.gpus, self.query_one(NodeChart)
        node = state.nodes.get(name)
        seen = node.gpus_seen if node else 0
        wanted = self.top.selected[1] if self.top.selected and self.top.selected[0] == name else 0
        gpus.gpu = chart.gpu = max(0, min(wanted, seen - 1))
        chart.metric = gpus.metric
        free = self.size.height - 4 - (self.top.replay is not None)
        sample = gpus.sample(state)
        # A machine without GPUs leaves its lines to other things.
        has_gpus = bool(seen) or sample is None or sample.gpus is None
        self.query_one(NodeProcesses).set_class(not has_gpus, "-off")
        height = seen + 3 if has_gpus and seen else 3 * has_gpus
        # Boxes for network, disks and processes where the width and height suffice, else lines.
        boxes = disks = 0
        if sample is not None and self.size.width >= 100:
            boxes = 3 + max(len(sample.links or ()), len(sample.processes or ()), 1)
            disks = 2 + max(1, len(sample.disks or ()))
            if free - height - boxes - disks < 8:
                boxes = disks = 0
        fit(self.query_one("#node-more"), boxes)
        fit(self.query_one("#node-disks"), disks)
        facts = self.query_one(NodeDetails)
        facts.with_boxes = bool(boxes)
        lines = facts.lines_wanted(state)
        fit(facts, lines)
        fit(gpus, min(height, max(3, free - lines)))

    def to_copy(self) -> str:
        return self.top.node() or ""

    def on_panel_moved(self) -> None:
        self._select(self.top.node(), self.gpus.gpu)

    def _select(self, name: str | None, gpu: int) -> None:
        if name is not None:
            self.top.selected = (name, gpu)
            self.again()

    def action_gpu(self, by: int) -> None:
        self.gpus.move(by)

    def action_node(self, by: int) -> None:
        names, name = list(self.top.state.nodes), self.top.node()
        if name is not None:
            self._select(names[(names.index(name) + by) % len(names)], self.gpus.gpu)

    def action_metric(self) -> None:
        self.gpus.metric = following(METRICS, self.gpus.metric)
        self.again()

    def action_log(self) -> None:
        """The rank on the GPU under the cursor, where that is known."""
        run, name = self.top.state.run, self.top.node()
        ranks = list(run.ranks_of(name)) if run and name else []
        gpu = self.gpus.gpu
        self.app.push_screen(LogScreen(name, ranks[gpu] if gpu < len(ranks) else None))

    def meant(self) -> list[str] | None:
        name = self.top.node()
        return None if name is None else [name]

    def commands(self) -> Commands:
        name = self.top.node()
        if name is None:
            return ()
        return (
            ("Log", f"of the ranks on {name} (L)", "log"),
            ("Preflight", f"all checks of {name} (P)", "preflight"),
            ("Stacks of this node", f"of {name} only (S)", "stacks"),
            ("Kill", f"the run's processes on {name} (K)", "kill"),
        )
