"""Text over another screen: stacks in full, and the end of a log, followed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from dashboards.model.state import State
from dashboards.operations.actions import LogText
from dashboards.operations.background import Job
from dashboards.tui.screens.base import FilterScreen, ListScreen, start_job
from dashboards.tui.widgets.listing import Text

EVERY_S = 2.0
BAD = re.compile(r"error|exception|traceback|fatal|fail|xid|abort|killed|nan\b", re.IGNORECASE)
WARN = re.compile(r"warn|timeout|timed out|retry|slow", re.IGNORECASE)


class PageScreen(ListScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("b", "page(-1)"),
        ("f", "page(1)"),
        ("g,home", "to_end(False)"),
        ("G,end", "to_end(True)"),
        ("e", "copy"),
    ]

    def body(self) -> Iterable[Widget]:
        yield Text(id="text")

    @property
    def page(self) -> Text:
        return self.query_one(Text)

    movable = page

    def to_copy(self) -> str:
        return self.page.text()

    def on_panel_moved(self) -> None:
        self.again()

    def action_to_end(self, end: bool) -> None:
        self.page.to_end(end)


class TextScreen(PageScreen):
    """Lines with the name of a style in Palette each; escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back", key_display="esc"),
        ("e", "copy", "copy"),
    ]

    def __init__(self, heading: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._heading, self._lines = heading, rows

    def on_mount(self) -> None:
        self.page.fill(self._lines)

    def prepare(self, state: State) -> None:
        self.page.title(self._heading, self.page.position())


class LogScreen(FilterScreen, PageScreen):
    """One log at a time; left and right go through the ranks, d is the kernel's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", key_display="esc"),
        ("left,h", "rank(-1)"),
        Binding("right,l", "rank(1)", "rank", key_display="←→"),
        ("d", "kernel", "dmesg"),
        Binding("slash", "filter", "search", key_display="/"),
        ("e", "copy", "copy"),
    ]

    def __init__(self, node: str | None, rank: int | None) -> None:
        """`rank` None: the first of the node, or the kernel's log where it has none."""
        super().__init__()
        self._node = node
        self._rank = rank
        self._job: Job[LogText] | None = None
        self._log: LogText | None = None

    def body(self) -> Iterable[Widget]:
        yield from super().body()
        yield self.filter_line("only lines with this text")

    def _ranks(self) -> list[int]:
        run = self.top.state.run
        if run is None:
            return []
        if self._node is not None and run.planned:
            return list(run.ranks_of(self._node))
        return list(range(sum(run.ranks) or (run.last.world if run.last else 0)))

    def on_mount(self) -> None:
        super().on_mount()
        ranks = self._ranks()
        self._open(ranks[0] if self._rank is None and ranks else self._rank)
        self.set_interval(EVERY_S, self._read)

    def on_unmount(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _open(self, rank: int | None) -> None:
        if self._job is not None:
            self._job.cancel()
        self._rank, self._log, self._job = rank, None, None
        self.page.fill([("reading", "dim")])
        self.page.to_end(True)
        self._read()
        self.again()

    def _read(self) -> None:
        """Ask for the end of the log, unless the last question is still open."""
        actions, run, rank, node = self.top.actions, self.top.state.run, self._rank, self._node
        if self._job is not None and self._job.is_running:
            return
        if rank is not None and run is not None:
            self._job = start_job(self, partial(actions.rank_log, run, rank), self._take)
        elif node is not None:
            self._job = start_job(self, partial(actions.kernel_log, node), self._take)
        else:
            self.page.fill([("no run and no node", "dim")])

    def _take(self, job: Job[LogText]) -> None:
        if job is not self._job:
            return
        if job.value is None:
            self.page.fill([(job.error, "warn")])
            self.again()
        else:
            self._log = job.value
            self.filter()

    def filter(self) -> None:
        if self._log is not None:
            # A progress bar is one line to a terminal, however often it was drawn.
            lines = self._log.text.replace("\r\n", "\n").splitlines()[self._log.is_cut :]
            lines = [line.rpartition("\r")[2] for line in lines]
            wanted = self.wanted.lower()
            rows = [(line, ink(line)) for line in lines if wanted in line.lower()]
            nothing = f"nothing with {wanted!r}" if wanted else "nothing yet"
            self.page.fill(rows or [(nothing, "dim")])
        self.again()

    def prepare(self, state: State) -> None:
        name = "kernel" if self._rank is None else f"rank {self._rank}"
        where = self._log.where if self._log else self._node or ""
        only = self.wanted and f"only {self.wanted!r}"
        notes = (only, self.page.position(), "follows" * self.page.follows)
        self.page.title(f"{name}  {where}", " · ".join(filter(None, notes)))

    def action_rank(self, by: int) -> None:
        ranks = self._ranks()
        if not ranks:
            return
        at = ranks.index(self._rank) + by if self._rank in ranks else 0
        if 0 <= at < len(ranks):
            self._open(ranks[at])

    def action_kernel(self) -> None:
        """The kernel's log of the node, and back to the ranks."""
        if self._rank is None:
            self.action_rank(0)
        elif self._node is not None:
            self._open(None)

    def action_leave(self) -> None:
        """Escape: first the search, then the screen."""
        if self.drop_filter():
            self.filter()
        else:
            self.app.pop_screen()


def ink(line: str) -> str:
    """A style by the words in the line."""
    return "bad" if BAD.search(line) else "warn" if WARN.search(line) else "text"
