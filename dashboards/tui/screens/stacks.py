"""Which rank hangs and where: dumps all processes of the run and shows the classes they form."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from clusterctl.stacks.classes import Class
from clusterctl.stacks.files import process_text
from dashboards.model.state import State
from dashboards.operations.background import Job
from dashboards.tui.screens.base import MOVING, TopScreen
from dashboards.tui.screens.text import TextScreen
from dashboards.tui.widgets.stacks_panels import ClassList, VerdictPanel

if TYPE_CHECKING:
    from clusterctl.stacks.diagnose import Diagnosis


class Looked(Message):
    """The look is over, well or not."""

    def __init__(self, job: Job[Diagnosis]) -> None:
        super().__init__()
        self.job = job


class StacksScreen(TopScreen):
    """The fifth screen."""

    RUN_ABOVE = True
    TAB = "5"
    KEYS = (
        ("enter", "stack", "screen.enter"),
        ("S", "look", "screen.look"),
        ("d", "save", "screen.save"),
        ("e", "copy", "screen.copy"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVING,
        Binding("enter", "enter", "look, or the full stack"),
        Binding("S,r", "look", "look at all processes"),
        Binding("x", "everything", "show or hide idle classes"),
        Binding("d", "save", "save all stacks"),
        Binding("e", "copy", "copy the verdict"),
        Binding("escape", "leave", "cancel, or back"),
    ]

    def body(self) -> Iterable[Widget]:
        yield VerdictPanel(id="verdict")
        yield ClassList(id="classes")

    @property
    def panel(self) -> VerdictPanel:
        return self.query_one(VerdictPanel)

    @property
    def listing(self) -> ClassList:
        return self.query_one(ClassList)

    @property
    def is_looking(self) -> bool:
        job = self.panel.job
        return job is not None and not job.done and not job.cancelled

    def prepare(self, state: State) -> None:
        panel, listing = self.panel, self.listing
        if self.top.actions is None:
            panel.why_not = "a replay has no nodes to ask: stacks are those of running processes"
        listing.set_class(listing.diagnosis is None, "-off")
        wanted = panel.lines_wanted(self.size.width - 2) + 2
        height = max(4, min(wanted, (self.size.height - 2) * 2 // 3))
        if listing.diagnosis is None:
            height = 5
        if panel.styles.height is None or panel.styles.height.value != height:
            panel.styles.height = height

    def look(self, nodes: Sequence[str] = ()) -> None:
        """Begin a look, at all nodes or at these; the one that goes on is given up."""
        actions = self.top.actions
        if actions is None:
            return
        if self.panel.job is not None:
            self.panel.job.cancel()
        run = self.top.state.run
        directory = run.directory if run else None
        self.panel.job = Job(
            lambda watch: actions.diagnose(directory, nodes, watch),
            lambda job: self.post_message(Looked(job)),
        ).start()
        self.again()

    def on_looked(self, event: Looked) -> None:
        if event.job is not self.panel.job:
            return  # an older one
        if event.job.value is not None:
            self.panel.diagnosis = event.job.value
            self.listing.take(event.job.value)
            self.panel.job = None
        self.again()

    def action_move(self, rows: int) -> None:
        self.listing.move(rows)

    def action_page(self, pages: int) -> None:
        self.listing.page(pages)

    def on_listing_opened(self) -> None:
        self.action_enter()

    def action_enter(self) -> None:
        one = self.listing.chosen()
        if self.is_looking:
            return
        if one is None or self.panel.job is not None:
            self.action_look()
            return
        self.app.push_screen(TextScreen(f"{one.who()}", full_stacks(one)))

    def action_look(self) -> None:
        if not self.is_looking:
            self.look()

    def action_everything(self) -> None:
        self.listing.everything = not self.listing.everything
        self.listing.choose()
        self.again()

    def action_save(self) -> None:
        """All stacks as `dump-stacks --out` writes them, into a folder here."""
        seen = self.listing.diagnosis
        if seen is None or self.top.is_web:
            return
        folder = Path(time.strftime("dumps/%Y%m%d-%H%M%S", time.localtime(seen.snapshot.taken_s)))
        try:
            seen.write(folder)
        except OSError as error:
            self.notify(f"not saved: {error}", severity="error")
        else:
            self.notify(f"written: {folder}/index.html", timeout=5)

    def action_leave(self) -> None:
        if self.is_looking and self.panel.job is not None:
            self.panel.job.cancel()
            if self.panel.diagnosis is not None:
                self.panel.job = None
            self.again()
        else:
            self.app.switch_mode("cluster")

    def to_copy(self) -> str:
        seen = self.listing.diagnosis
        if seen is None:
            return ""
        lines = [seen.verdict.headline, *(f"because {text}" for text in seen.verdict.evidence)]
        return "\n".join(
            [*lines, *(f"{one.who()}: {one.first.where()}" for one in self.listing.listed)]
        )

    def commands(self) -> Iterable[SystemCommand]:
        if self.top.actions is not None:
            yield SystemCommand("Look at stacks", "of all processes, now (S)", self.action_look)
            yield SystemCommand(
                "Save stacks", "a text for each, and index.html (d)", self.action_save
            )


def full_stacks(one: Class) -> list[tuple[str, str]]:
    """The first process with all threads; of the others who they are."""
    lines = [(line, _ink(line)) for line in process_text(one.first).splitlines()]
    others = one.procs[1:]
    if others:
        lines += [("", ""), (f"and {len(others):,} more in the same place:", "label")]
        lines += [(f"  {proc.label}  pid {proc.pid}  {proc.node}", "text") for proc in others]
    return lines


def _ink(line: str) -> str:
    if line.startswith("Thread"):
        return "accent"
    return "text" if line.startswith("    ") else "label"
