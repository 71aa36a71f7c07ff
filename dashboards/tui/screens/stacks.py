"""Which rank hangs and where: dumps all processes of the run and shows the classes they form."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from textual.binding import BindingType
from textual.widget import Widget

from clusterctl.report_lines import cut, wrapped
from clusterctl.stacks.files import process_text
from clusterctl.stacks.report import Class, classes, header, hidden_line, is_quiet, permission_lines
from dashboards.model import units
from dashboards.model.state import State
from dashboards.model.table import short_names
from dashboards.operations.background import Job
from dashboards.tui.screens.base import Commands, ListScreen, fit, start_job
from dashboards.tui.screens.text import TextScreen
from dashboards.tui.widgets.listing import Listing
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, fitted, width_of, words

if TYPE_CHECKING:
    from clusterctl.stacks.diagnose import Diagnosis


STYLES = {"moving": "good", "busy": "warn", "no-answer": "warn", "unknown": "warn"}
WHAT_IT_DOES = (
    " collects the stacks of all processes of the run, twice, 2 s apart,",
    " and says whom the others wait for. It stops nothing and leaves nothing there.",
)


class VerdictPanel(Panel):
    """What it means, why, and what to do; before that what is being done."""

    job: Job[Diagnosis] | None = None
    diagnosis: Diagnosis | None = None

    @property
    def is_collecting(self) -> bool:
        return self.job is not None and self.job.is_running

    def lines_wanted(self, width: int) -> int:
        seen = self.diagnosis
        if seen is None or self.is_collecting:
            return 3
        return sum(len(_pieces(text, width)) for text, _ in self._texts(seen))

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        job, seen = self.job, self.diagnosis
        if job is not None and self.is_collecting:
            self.title("stacks", "esc cancels")
            dots = "·" * (1 + int(job.seconds) % 3)
            progress = f" {units.duration(job.seconds)}  {job.watch.line() or 'begins'}"
            head = words((f" collecting the stacks of all processes, twice {dots}", colors.accent))
            return [head, words((progress, colors.text))]
        if job is not None and (job.cancelled or job.error):
            self.title("stacks")
            lines = _lines(job.error or "cancelled", width, colors.warn)
            return [*lines, words((" enter collects again", colors.label))]
        if seen is None:
            self.title("stacks")
            head = words((" enter", colors.accent), (WHAT_IT_DOES[0], colors.text))
            return [head, words((WHAT_IT_DOES[1], colors.text))]
        taken_s = seen.snapshot.taken_s
        ago = units.ago(state.now_s - taken_s)
        self.title(f"stacks of {clock(taken_s)}", ago)
        return [
            line
            for text, style in self._texts(seen)
            for line in _lines(text, width, getattr(colors, style))
        ]

    def _texts(self, seen: Diagnosis) -> list[tuple[str, str]]:
        """(text, name of a style in Palette), in the order of weight."""
        verdict = seen.verdict
        style = STYLES.get(verdict.kind, "bad")
        return [
            (header(seen.snapshot), "label"),
            (f"{verdict.headline} ({verdict.confidence} confidence)", style),
            *((f"because {text}", "text") for text in verdict.evidence[:3]),
            *((f"{clue.source}: {clue.text}", "warn") for clue in seen.clues[:2]),
            *((f"next: {text}", "accent") for text in verdict.next_steps[:2]),
            *((text, "warn") for text in permission_lines(seen.snapshot)),
        ]


class ClassList(Listing[Class]):
    """Processes in the same place of the code, a line for each class."""

    diagnosis: Diagnosis | None = None
    everything = False  # idle classes too
    _hidden = ""

    def choose(self) -> None:
        """List again, after a new collection or with other ones hidden."""
        if self.diagnosis is None:
            return
        found = classes(self.diagnosis.snapshot, self.diagnosis.verdict)
        self.listed = [one for one in found if self.everything or not is_quiet(one)]
        quiet = [one for one in found if one not in self.listed]
        self._hidden = hidden_line(quiet, self.diagnosis.snapshot).replace("(--all)", "(x shows)")
        self.at = 0

    def heading(self, state: State, width: int, colors: Palette) -> list[Line]:
        self.title("classes" if self.listed else "", self._hidden)
        return []

    def rows(self, state: State, width: int, colors: Palette) -> list[Line]:
        _, short = short_names(state.nodes)
        names = [_who(one, short) for one in self.listed]
        wide = min(40 if width >= 100 else 26, max(map(len, names), default=0))
        names = [cut(who, wide) for who in names]
        pairs = zip(self.listed, names, strict=True)
        return [self._row(one, f"{who:<{wide}}", width, colors) for one, who in pairs]

    def _row(self, one: Class, who: str, width: int, colors: Palette) -> Line:
        proc = one.first
        style = colors.bad if one.suspect else colors.text
        doing = str(proc.progress)
        if proc.progress != "moving" and proc.stood_s >= 1:
            doing += f" {units.duration(proc.stood_s)}"
        doing = f"{doing:<17}" if width < 100 else f"{proc.kind + ' ' + doing:<30}"
        site = proc.where() if proc.stack.frames else proc.error or "no Python stack"
        line = words(
            (f"{'!' if one.suspect else ' '}{len(one.procs):>5,} ", style),
            (f"{who}  ", style),
            (f"{doing} ", colors.warn if one.suspect else colors.label),
        )
        room = width - width_of(line)
        end = "  <- suspect" if one.suspect and room > 50 else ""
        line += fitted(words((site, style)), room - len(end), colors.text)
        return line + words((end, colors.bad))


def _who(one: Class, short: Mapping[str, str]) -> str:
    """`ranks 0-26,28-191`, `004 rank 27 loader 2`: the beginning of all names is left out."""
    if len(one.procs) == 1:
        return f"{short.get(one.first.node, one.first.node)} {one.first.label}"
    return one.who()


def _lines(text: str, width: int, style: Style) -> list[Line]:
    return [words((f" {line}", style)) for line in _pieces(text, width)]


class StacksScreen(ListScreen):
    RUN_ABOVE = True
    TAB = "5"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter", "enter", "stack"),
        ("S,r", "collect", "dump"),
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

    def prepare(self, state: State) -> None:
        panel, listing = self.panel, self.listing
        listing.set_class(listing.diagnosis is None, "-off")
        wanted = panel.lines_wanted(self.size.width - 2) + 2
        height = max(4, min(wanted, (self.size.height - 2) * 2 // 3))
        fit(panel, 5 if listing.diagnosis is None else height)

    def on_screen_resume(self) -> None:
        nodes, self.top.to_collect = self.top.to_collect, None
        if nodes is not None:
            self.collect(nodes)

    def collect(self, nodes: Sequence[str] = ()) -> None:
        """Collect stacks of all nodes or these; a collection under way is cancelled."""
        if self.panel.job is not None:
            self.panel.job.cancel()
        work = partial(self.top.actions.diagnose, self.top.state.run, nodes)
        self.panel.job = start_job(self, work, self._take)
        self.again()

    def _take(self, job: Job[Diagnosis]) -> None:
        if job is not self.panel.job:
            return  # an older one
        if job.value is not None:
            self.panel.diagnosis = self.listing.diagnosis = job.value
            self.listing.choose()
            self.panel.job = None
        self.again()

    def action_enter(self) -> None:
        one = self.listing.chosen()
        if one is None or self.panel.job is not None:
            self.action_collect()
        else:
            self.app.push_screen(TextScreen(one.who(), full_stacks(one)))

    def action_collect(self) -> None:
        if not self.panel.is_collecting:
            self.collect()

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
        job = self.panel.job
        if job is not None and self.panel.is_collecting:
            job.cancel()
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
        return (
            ("Dump stacks", "of all processes, now (S)", "collect"),
            ("Save stacks", "a text for each, and index.html (d)", "save"),
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


def _pieces(text: str, width: int) -> list[str]:
    return wrapped(text, max(20, width - 2), indent="  ")
