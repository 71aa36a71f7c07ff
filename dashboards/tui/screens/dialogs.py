"""Things that are asked for over another screen: end a job, check a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from clusterctl.nodes import fold
from clusterctl.printable import printable
from dashboards.operations.actions import Ending
from dashboards.operations.background import Job, Watch
from dashboards.tui.screens.app_interface import Top
from dashboards.tui.widgets.panel import plain

MOST_LINES = 12


class Over(Message):
    """A job of a dialog has ended."""

    def __init__(self, job: Job[Any]) -> None:
        super().__init__()
        self.job = job


class Dialog(ModalScreen[None]):
    """A box of text with buttons; escape is always the harmless way out."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close", show=False),
        Binding("left,h,shift+tab", "app.focus_previous", show=False),
        Binding("right,l,tab", "app.focus_next", show=False),
    ]
    HEADING: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self._job: Job[Any] | None = None

    @property
    def top(self) -> Top:
        return cast("Top", self.app)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="dialog"):
            yield Static("", id="dialog-text", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("", id="go", variant="error", compact=True, disabled=True)

    def on_mount(self) -> None:
        self.head(self.HEADING)
        self.query_one("#go", Button).display = False
        self.query_one("#cancel", Button).focus()
        self.begin()
        self.set_interval(0.25, self._tell)

    def begin(self) -> None:
        raise NotImplementedError

    def head(self, text: str) -> None:
        self.query_one("#dialog").border_title = plain(text)

    def say(self, lines: Sequence[str]) -> None:
        text = printable("\n".join(lines), lines=True)
        self.query_one("#dialog-text", Static).update(text)

    def _tell(self) -> None:
        job = self._job
        if job is not None and not job.done and not job.cancelled:
            self.say([f"{job.watch.line() or 'begins'}  {job.seconds:.0f} s"])

    def _start(self, work: Any) -> None:
        self._job = Job(work, lambda job: self.post_message(Over(job))).start()
        self._tell()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "cancel":
            self.action_leave()
        else:
            self.go()

    def go(self) -> None:
        """The button that does it was pressed."""

    def action_leave(self) -> None:
        if self._job is not None:
            self._job.cancel()
        self.dismiss()


class KillDialog(Dialog):
    """Finds the processes, names them, and ends them only when the other button is chosen."""

    HEADING = "End processes"

    def __init__(self, nodes: Sequence[str]) -> None:
        """`nodes` none: all of the hostfile."""
        super().__init__()
        self._where = nodes
        self._ending: Ending | None = None
        self._begun = False

    def begin(self) -> None:
        actions, run = self.top.actions, self.top.state.run
        assert actions is not None
        where = fold(self._where) or "all nodes"
        self.head(f"{self.HEADING} on {where}")
        directory = run.directory if run else None
        nodes = self._where

        def work(watch: Watch) -> Ending:
            watch.say("looking for the run's processes;")
            return actions.find(directory, nodes, watch)

        self._start(work)

    def on_over(self, event: Over) -> None:
        job = event.job
        if job is not self._job:
            return
        if job.error:
            self.say([job.error])
        elif isinstance(job.value, Ending):
            self._found(job.value)
        elif job.value is not None:
            good, bad = job.value
            self.say([good, *bad])
        cancel = self.query_one("#cancel", Button)
        if self._begun or job.error or not (self._ending and self._ending.count):
            cancel.label = "Close"
        cancel.focus()

    def _found(self, ending: Ending) -> None:
        self._ending = ending
        lines = ending.lines()
        more = len(lines) - MOST_LINES
        shown = lines[:MOST_LINES] + ([f"and {more} lines more"] if more > 0 else [])
        if not ending.count:
            self.say([f"nothing found: {ending.pick.words()}", *shown])
            return
        self.say(
            [
                f"{ending.pick.words()}: {ending.count} processes on {fold(ending.nodes)}",
                "",
                *shown,
                "",
                "SIGTERM, 10 s later SIGKILL. Nothing is saved first: clusterctl stop does that.",
            ]
        )
        go = self.query_one("#go", Button)
        go.label = f"End {ending.count} processes"
        go.display, go.disabled = True, False

    def go(self) -> None:
        actions, ending = self.top.actions, self._ending
        if actions is None or ending is None or self._begun:
            return
        self._begun = True
        self.query_one("#go", Button).display = False

        def work(watch: Watch) -> tuple[str, list[str]]:
            watch.say(f"ending {ending.count} processes;")
            return actions.end(ending, watch)

        self._start(work)
        cancel = self.query_one("#cancel", Button)
        cancel.label = "Leave it to work"
        cancel.focus()

    def action_leave(self) -> None:
        # What has begun is not stopped half-way: half a job is worse than all or nothing.
        if self._begun:
            self.dismiss()
        else:
            super().action_leave()


class PreflightDialog(Dialog):
    """All checks of some nodes; reads only."""

    HEADING = "Preflight"

    def __init__(self, nodes: Sequence[str]) -> None:
        super().__init__()
        self._where = nodes

    def begin(self) -> None:
        actions = self.top.actions
        assert actions is not None
        nodes = self._where
        self.head(f"Preflight of {fold(nodes)}")

        def work(watch: Watch) -> list[str]:
            watch.say("asking;")
            return actions.preflight(nodes, watch)

        self._start(work)

    def on_over(self, event: Over) -> None:
        if event.job is self._job:
            self.say([event.job.error] if event.job.error else event.job.value or [])
            self.query_one("#cancel", Button).label = "Close"
