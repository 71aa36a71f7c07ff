"""One machine: its GPUs with all figures, who uses them, network, disks, clock and alerts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from dashboards.model.fleet import METRICS
from dashboards.model.state import State
from dashboards.tui.screens.base import TopScreen
from dashboards.tui.screens.dialogs import PreflightDialog
from dashboards.tui.screens.log import LogScreen
from dashboards.tui.widgets.node_facts import NodeDisks, NodeFacts, NodeLinks, NodeProcesses
from dashboards.tui.widgets.node_panels import NodeChart, NodeGpus, NodeHead, NodePanel


class NodeScreen(TopScreen):
    """The second screen; enter on the cluster leads here, too."""

    RUN_ABOVE = True
    TAB = "2"
    KEYS = (
        ("←→", "node", "screen.node(1)"),
        ("p", "metric", "screen.metric"),
        ("L", "log", "screen.log"),
        ("S", "stacks", "screen.stacks"),
        ("P", "preflight", "screen.preflight"),
        ("K", "kill…", "screen.kill"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "gpu(-1)", "GPU above", show=False),
        Binding("down,j", "gpu(1)", "GPU below", show=False),
        Binding("left,h", "node(-1)", "node before", show=False),
        Binding("right,l", "node(1)", "next node", show=False),
        Binding("p", "metric", "change the metric"),
        Binding("L", "log", "logs of its ranks"),
        Binding("S", "stacks", "stacks of its processes"),
        Binding("P", "preflight", "check it"),
        Binding("K", "kill", "end the run's processes here"),
        Binding("e", "copy", "copy its name"),
        Binding("escape", "app.switch_mode('cluster')", "back"),
    ]

    def body(self) -> Iterable[Widget]:
        yield NodeHead(id="node-head")
        yield NodeGpus(id="node-gpus")
        yield NodeFacts(id="node-facts")
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
        room = self.size.height - 4 - (self.top.replay is not None)
        height = seen + 3 if seen else 3
        sample = node.sample if node else None
        # A machine without GPUs has room for other things.
        has_gpus = bool(seen) or sample is None or sample.gpus is None
        gpus.set_class(not has_gpus, "-off")
        self.query_one(NodeProcesses).set_class(not has_gpus, "-off")
        height = height if has_gpus else 0
        # Boxes for network, disks and processes where both ways leave room, else lines.
        boxes = 0
        if sample is not None and self.size.width >= 100:
            links, found = len(sample.links or ()), len(sample.processes or ())
            boxes = 3 + max(links, found if found else 0, 1)
            disks = 2 + max(1, len(sample.disks or ()))
            if room - height - boxes - disks < 8:
                boxes = 0
        self.query_one("#node-more").set_class(not boxes, "-off")
        self.query_one("#node-disks").set_class(not boxes, "-off")
        self._height("#node-more", boxes)
        if boxes:
            self._height("#node-disks", disks)
        facts = self.query_one(NodeFacts)
        facts.with_boxes = bool(boxes)
        lines = facts.lines_wanted(state)
        facts.set_class(not lines, "-off")
        self._height("#node-facts", lines)
        self._height("#node-gpus", min(height, max(3, room - lines)))

    def _height(self, name: str, rows: int) -> None:
        widget = self.query_one(name)
        if widget.styles.height is None or widget.styles.height.value != rows:
            widget.styles.height = rows

    def to_copy(self) -> str:
        return self.top.node() or ""

    def on_node_gpus_moved(self) -> None:
        self._select(self.gpus.gpu)

    def _select(self, gpu: int) -> None:
        name = self.top.node()
        if name is not None:
            self.top.selected = (name, gpu)
            self.again()

    def action_gpu(self, by: int) -> None:
        self.gpus.move(by)

    def action_node(self, by: int) -> None:
        names = list(self.top.state.nodes)
        name = self.top.node()
        if name is not None:
            self.top.selected = (names[(names.index(name) + by) % len(names)], self.gpus.gpu)
            self.again()

    def action_metric(self) -> None:
        gpus = self.gpus
        gpus.metric = METRICS[(METRICS.index(gpus.metric) + 1) % len(METRICS)]
        self.again()

    def action_log(self) -> None:
        """The rank on the GPU under the cursor, where that is known."""
        run, name = self.top.state.run, self.top.node()
        ranks = list(run.ranks_of(name)) if run and name else []
        gpu = self.gpus.gpu
        self.app.push_screen(LogScreen(name, ranks[gpu] if gpu < len(ranks) else None))

    def action_stacks(self) -> None:
        name = self.top.node()
        if name is not None:
            self.top.look_at_stacks([name])

    def action_preflight(self) -> None:
        name = self.top.node()
        if name is not None and self.top.may_act():
            self.app.push_screen(PreflightDialog([name]))

    def action_kill(self) -> None:
        name = self.top.node()
        if name is not None:
            self.top.ask_to_kill([name])

    def commands(self) -> Iterable[SystemCommand]:
        name = self.top.node()
        if name is None or self.top.actions is None:
            return
        yield SystemCommand("Log", f"of the ranks on {name} (L)", self.action_log)
        yield SystemCommand("Preflight", f"all checks of {name} (P)", self.action_preflight)
        yield SystemCommand("Stacks of this node", f"of {name} only (S)", self.action_stacks)
        if not self.top.readonly:
            yield SystemCommand("Kill", f"the run's processes on {name} (K)", self.action_kill)
