"""Who uses the GPUs, by job, by user or by node: what they hold now, energy and idle time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from clusterctl.nodes import fold
from clusterctl.report_lines import cut
from dashboards.model import units
from dashboards.model.state import State
from dashboards.model.usage import WAYS, Usage, gpu_count, usage
from dashboards.tui.screens.base import Commands, ListScreen, following
from dashboards.tui.widgets.listing import Listing
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, words


def _energy(row: Usage) -> str:
    return units.number(row.energy_kwh) + ("~" if row.totals.unknown_s else " ")


# (title, cells, fewest columns of the panel, text of a row)
_COLUMNS: tuple[tuple[str, int, int, Callable[[Usage], str]], ...] = (
    ("nodes", 5, 0, lambda row: str(len(row.nodes))),
    ("GPUs", 6, 0, lambda row: gpu_count(row.gpus)),
    ("util", 5, 0, lambda row: units.percent(row.util)),
    ("memory", 9, 105, lambda row: units.size(row.memory_bytes)),
    ("power", 8, 0, lambda row: units.power(row.power_w)),
    ("kWh", 9, 0, _energy),
    ("idle", 5, 0, lambda row: gpu_count(row.idle)),
    ("idle h", 7, 0, lambda row: f"{row.totals.idle_s / 3600:.1f}"),
    ("unknown h", 9, 105, lambda row: f"{row.totals.unknown_s / 3600:.1f}"),
)


class UsageList(Listing[Usage]):
    way = WAYS[0]

    def heading(self, state: State, width: int, colors: Palette) -> list[Line]:
        self.title(f"GPUs by {self.way}", "since the watch began; ~ some energy is unknown")
        self.listed = usage(state, self.way)
        text = "  " + self._names(self.way, "user", "job", "node", width)
        for title, cells, fewest, _ in _COLUMNS:
            text += f"{title:>{cells}} " if width >= fewest else ""
        return [words((text, colors.dim))] if self.listed else []

    def rows(self, state: State, width: int, colors: Palette) -> list[Line]:
        return [self._row(row, width + 2, colors) for row in self.listed]

    def empty(self, colors: Palette) -> list[Line]:
        return [words((" no node has shown a GPU", colors.text))]

    def _row(self, row: Usage, width: int, colors: Palette) -> Line:
        style = colors.label if row.user in ("-", "?") and self.way != "node" else colors.text
        cells = [(self._names(self.way, row.user, row.job, row.node, width), style)]
        for title, room, fewest, read in _COLUMNS:
            if width >= fewest:
                is_bad = title == "idle" and row.idle > 0
                cells.append((f"{read(row):>{room}} ", colors.warn if is_bad else style))
        return words(*cells)

    def _names(self, way: str, user: str, job: str, node: str, width: int) -> str:
        room = max(
            20, width - 4 - sum(cells + 1 for _, cells, least, _ in _COLUMNS if width >= least)
        )
        if way == "job":
            return f"{cut(user, 8):<9}{cut(job, room - 10):<{room - 9}}"
        return f"{cut(node if way == 'node' else user, room - 1):<{room}}"


class UsageScreen(ListScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back", key_display="esc"),
        ("g", "group", "by job, user, node"),
        ("e", "copy", "copy nodes"),
    ]

    def body(self) -> Iterable[Widget]:
        yield UsageList(id="usage")

    @property
    def listing(self) -> UsageList:
        return self.query_one(UsageList)

    def action_group(self) -> None:
        self.listing.way = following(WAYS, self.listing.way)
        self.again()

    def to_copy(self) -> str:
        """The nodes of the row under the cursor, for -w."""
        row = self.listing.chosen()
        return fold([name for name in self.top.state.nodes if name in row.nodes]) if row else ""

    def commands(self) -> Commands:
        return (("Group", "by job, by user or by node (g)", "group"),)
