"""Which rank hangs and where: dumps all processes of the run and shows the classes they form."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from clusterctl.stacks.files import process_text
from clusterctl.stacks.report import Class
from dashboards.model.state import State
from dashboards.operations.background import Job
from dashboards.tui.screens.base import Commands, ListScreen, fit, start_job
from dashboards.tui.screens.text import TextScreen
from dashboards.tui.widgets.stacks_panels import ClassList, VerdictPanel

if TYPE_CHECKING:
    from clusterctl.stacks.diagnose import Diagnosis


class StacksScreen(ListScreen):
    RUN_ABOVE = True
    TAB = "5"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter", "enter", "stack"),
        ("S,r", "look", "look"),
        ("x", "everything"),
        ("d", "save", "save"),
        ("e", "copy", "copy"),
        ("escape", "leave"),
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

    movable = listing

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
        fit(panel, 5 if listing.diagnosis is None else height)

    def look(self, nodes: Sequence[str] = ()) -> None:
        """Begin a look, at all nodes or at these; the one that goes on is given up."""
        actions, run = self.top.actions, self.top.state.run
        if actions is None:
            return
        if self.panel.job is not None:
            self.panel.job.cancel()
        work = partial(actions.diagnose, run.directory if run else None, nodes)
        self.panel.job = start_job(self, work, self._take)
        self.again()

    def _take(self, job: Job[Diagnosis]) -> None:
        if job is not self.panel.job:
            return  # an older one
        if job.value is not None:
            self.panel.diagnosis = job.value
            self.listing.take(job.value)
            self.panel.job = None
        self.again()

    def on_panel_opened(self) -> None:
        self.action_enter()

    def action_enter(self) -> None:
        one = self.listing.chosen()
        if one is None or self.panel.job is not None:
            self.action_look()
        else:
            self.app.push_screen(TextScreen(one.who(), full_stacks(one)))

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
        reasons = [f"because {text}" for text in seen.verdict.evidence]
        places = [f"{one.who()}: {one.first.where()}" for one in self.listing.listed]
        return "\n".join([seen.verdict.headline, *reasons, *places])

    def commands(self) -> Commands:
        if self.top.actions is not None:
            yield "Look at stacks", "of all processes, now (S)", self.action_look
            yield "Save stacks", "a text for each, and index.html (d)", self.action_save


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
