"""What opens over another screen: end a job, check nodes, keys and marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from clusterctl.nodes import fold
from dashboards.model import units
from dashboards.operations.actions import Ending
from dashboards.operations.background import Job, Watch
from dashboards.tui.screens.base import Top, TopScreen, start_job
from dashboards.tui.widgets.panel import plain
from trainer.runlog.output import printable

MOST_LINES = 12
NOTHING_IS_SAVED = "SIGTERM, 10 s later SIGKILL. Nothing is saved first: clusterctl stop does that."
HELP = Path(__file__).parents[1] / "help.txt"


class Dialog(ModalScreen[None]):
    """A box of text with buttons; escape is always the harmless way out."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "leave"),
        ("left,h,shift+tab", "app.focus_previous"),
        ("right,l,tab", "app.focus_next"),
    ]
    HEADING: ClassVar[str] = ""

    def __init__(self, nodes: Sequence[str]) -> None:
        """`nodes` none: all of the hostfile."""
        super().__init__()
        self._where = nodes
        self._job: Job[Any] | None = None

    @property
    def top(self) -> Top:
        return cast("Top", self.app)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="dialog"):
            yield Static("", id="dialog-text", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("", id="go", variant="error", compact=True)

    def on_mount(self) -> None:
        where = fold(self._where) or "all nodes"
        self.query_one("#dialog").border_title = plain(f"{self.HEADING} {where}")
        self.query_one("#go", Button).display = False
        self.cancel.focus()
        self.begin()
        self.set_interval(0.25, self._tell)

    @property
    def cancel(self) -> Button:
        return self.query_one("#cancel", Button)

    def begin(self) -> None:
        raise NotImplementedError

    def take(self, job: Job[Any]) -> None:
        raise NotImplementedError

    def say(self, lines: Sequence[str]) -> None:
        text = printable("\n".join(lines), lines=True)
        self.query_one("#dialog-text", Static).update(text)

    def _tell(self) -> None:
        job = self._job
        if job is not None and job.is_running:
            self.say([f"{job.watch.line() or 'begins'}  {units.duration(job.seconds)}"])

    def start(self, doing: str, work: Callable[[Watch], object]) -> None:
        def start_work(watch: Watch) -> object:
            watch.say(doing)
            return work(watch)

        self._job = start_job(self, start_work, self.take)
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

    HEADING = "End processes on"
    _found: Ending | None = None
    _started = False

    def begin(self) -> None:
        run = self.top.state.run
        work = partial(self.top.actions.find, run.directory if run else None, self._where)
        self.start("searching for the run's processes;", work)

    def take(self, job: Job[Any]) -> None:
        if job.error:
            self.say([job.error])
        elif isinstance(job.value, Ending):
            self._show(job.value)
        elif job.value is not None:
            good, bad = job.value
            self.say([good, *bad])
        if self._started or job.error or not (self._found and self._found.is_something):
            self.cancel.label = "Close"
        self.cancel.focus()

    def _show(self, found: Ending) -> None:
        self._found = found
        lines = found.lines()
        more = len(lines) - MOST_LINES
        lines[MOST_LINES:] = [f"and {more} lines more"] if more > 0 else []
        words = found.pick.words()
        if not found.is_something:
            self.say([f"nothing found: {words}", *lines])
            return
        head = f"{words}: {found.count} processes on {fold(found.nodes) or 'no node'}"
        self.say([head, "", *lines, "", NOTHING_IS_SAVED])
        go = self.query_one("#go", Button)
        go.label = f"End {found.count} processes" if found.count else "End the run"
        go.display = True

    def go(self) -> None:
        found = self._found
        if found is None or self._started:
            return
        self._started = True
        self.query_one("#go", Button).display = False
        self.start(f"ending {found.count} processes;", partial(self.top.actions.end, found))
        self.cancel.label = "Leave it to work"
        self.cancel.focus()

    def action_leave(self) -> None:
        # What has started is not stopped half-way: half a job is worse than all or nothing.
        if self._started:
            self.dismiss()
        else:
            super().action_leave()


class PreflightDialog(Dialog):
    """All checks of some nodes; reads only."""

    HEADING = "Preflight of"

    def begin(self) -> None:
        self.start("asking;", partial(self.top.actions.preflight, self._where))

    def take(self, job: Job[Any]) -> None:
        self.say([job.error] if job.error else job.value or [])
        self.cancel.label = "Close"


class HelpScreen(ModalScreen[None]):
    """Any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,question_mark,enter,space", "dismiss"),
        ("q", "app.quit"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(HELP.read_text(encoding="utf-8").rstrip(), id="help-text")

    def on_mount(self) -> None:
        box = self.query_one("#help")
        box.border_title = "clusterctl top"
        box.border_subtitle = "esc closes"


class ActingScreen(TopScreen):
    def meant(self) -> Sequence[str] | None:
        """The nodes to act on, () for all; None when there are no nodes."""
        return ()

    def to_check(self) -> Sequence[str]:
        return self.meant() or ()

    def action_stacks(self) -> None:
        nodes = self.meant()
        if nodes is not None:
            self.top.to_collect = nodes
            self.app.switch_mode("stacks")

    def action_preflight(self) -> None:
        nodes = self.to_check()
        if nodes:
            self.app.push_screen(PreflightDialog(nodes))

    def action_kill(self) -> None:
        nodes = self.meant()
        if nodes is not None and self.top.readonly:
            why = "this view is read-only: --no-readonly allows it"
            if self.top.replay is not None:
                why = "this is a replay: it ends no processes"
            self.notify(why, severity="warning")
        elif nodes is not None:
            self.app.push_screen(KillDialog(nodes))
