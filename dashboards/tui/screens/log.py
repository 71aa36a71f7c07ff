"""What the ranks of a node print, and what its kernel says: the end of a log, followed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from dashboards.model.state import State
from dashboards.operations.actions import LogText
from dashboards.operations.background import Job, Watch
from dashboards.tui.screens.text import PageScreen

EVERY_S = 2.0
KERNEL = None  # the place of the kernel's log among the ranks
BAD = re.compile(r"error|exception|traceback|fatal|fail|xid|abort|killed|nan\b", re.IGNORECASE)
WARN = re.compile(r"warn|timeout|timed out|retry|slow", re.IGNORECASE)


class Read(Message):
    """A log was read, well or not."""

    def __init__(self, job: Job[LogText]) -> None:
        super().__init__()
        self.job = job


class LogScreen(PageScreen):
    """One log at a time; left and right go through the ranks, d is the kernel's."""

    KEYS = (
        ("esc", "back", "app.pop_screen"),
        ("←→", "rank", "screen.rank(1)"),
        ("d", "dmesg", "screen.kernel"),
        ("/", "search", "screen.search"),
        ("e", "copy", "screen.copy"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "rank(-1)", "rank before", show=False),
        Binding("right,l", "rank(1)", "next rank", show=False),
        Binding("d", "kernel", "the kernel's log"),
        Binding("slash", "search", "show only lines with"),
        Binding("escape", "leave", "back"),
    ]

    def __init__(self, node: str | None, rank: int | None) -> None:
        """`rank` None: the first of the node, or the kernel's log where it has none."""
        super().__init__()
        self._node = node
        self._rank = rank
        self._job: Job[LogText] | None = None
        self._log: LogText | None = None
        self._wanted = ""

    def body(self) -> Iterable[Widget]:
        yield from super().body()
        yield Input(placeholder="only lines with this text", id="filter", compact=True)

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
        if self._rank is None and ranks:
            self._rank = ranks[0]
        self.page.fill([("reading", "dim")])
        self.page.to_end(True)
        self._read()
        self.set_interval(EVERY_S, self._read)

    def on_unmount(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _read(self) -> None:
        """Ask for the end of the log, unless the last question is still open."""
        actions, run = self.top.actions, self.top.state.run
        if self._job is not None and not self._job.done and not self._job.cancelled:
            return
        if actions is None:
            self.page.fill([("there is nobody to ask here", "dim")])
            return
        rank, node = self._rank, self._node
        if rank is not None and run is not None:
            opened = run

            def work(watch: Watch) -> LogText:
                return actions.rank_log(opened, rank, watch)
        elif node is not None:

            def work(watch: Watch) -> LogText:
                return actions.kernel_log(node, watch)
        else:
            self.page.fill([("no run and no node", "dim")])
            return
        self._job = Job(work, lambda job: self.post_message(Read(job))).start()

    def on_read(self, event: Read) -> None:
        if event.job is not self._job:
            return
        log = event.job.value
        if log is None:
            self.page.fill([(event.job.error, "warn")])
        else:
            self._log = log
            self._fill()
        self.again()

    def _fill(self) -> None:
        if self._log is None:
            return
        # A progress bar is one line to a terminal, however often it was drawn.
        lines = [
            line.rpartition("\r")[2] for line in self._log.text.replace("\r\n", "\n").splitlines()
        ]
        if self._log.is_cut and lines:
            del lines[0]  # half of one
        wanted = self._wanted.lower()
        rows = [(line, ink(line)) for line in lines if not wanted or wanted in line.lower()]
        self.page.fill(rows or [("nothing" + (f" with {wanted!r}" if wanted else " yet"), "dim")])

    def prepare(self, state: State) -> None:
        what = "kernel" if self._rank is None else f"rank {self._rank}"
        note = " · ".join(
            part
            for part in (
                f"only {self._wanted!r}" if self._wanted else "",
                self.page.position(),
                "follows" if self.page.follows else "",
            )
            if part
        )
        where = self._log.where if self._log else self._node or ""
        self.page.title(f"{what}  {where}", note)

    def _turn(self, rank: int | None) -> None:
        if self._job is not None:
            self._job.cancel()
        self._rank, self._log, self._job = rank, None, None
        self.page.fill([("reading", "dim")])
        self.page.to_end(True)
        self._read()
        self.again()

    def action_rank(self, by: int) -> None:
        ranks = self._ranks()
        if not ranks:
            return
        at = ranks.index(self._rank) + by if self._rank in ranks else 0
        if 0 <= at < len(ranks):
            self._turn(ranks[at])

    def action_kernel(self) -> None:
        """The kernel's log of the node, and back to the ranks."""
        if self._rank is None:
            self.action_rank(0)
        elif self._node is not None:
            self._turn(KERNEL)

    def action_search(self) -> None:
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self._wanted
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._fill()
        self.again()

    def on_input_submitted(self) -> None:
        self.remove_class("-filtering")
        self.set_focus(None)

    def action_leave(self) -> None:
        """Escape: first the search, then the screen."""
        if self._wanted or self.has_class("-filtering"):
            self._wanted = ""
            self.on_input_submitted()
            self._fill()
            self.again()
        else:
            self.app.pop_screen()


def ink(line: str) -> str:
    """A style by what the line seems to say; the words stand there all the same."""
    return "bad" if BAD.search(line) else "warn" if WARN.search(line) else "text"
