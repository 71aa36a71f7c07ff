"""The verdict over a job's stacks, and the classes that its processes form."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from clusterctl.stacks.report import Class, classes, header, hidden_line, is_dull, permission_lines
from dashboards.model import units
from dashboards.model.fleet import short_names
from dashboards.model.state import State
from dashboards.operations.background import Job
from dashboards.tui.widgets.listing import Listing
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, fitted, width_of, words

if TYPE_CHECKING:
    from clusterctl.stacks.diagnose import Diagnosis

MOVING_KINDS = ("moving",)
UNSURE_KINDS = ("busy", "no-answer", "unknown")
WHAT_IT_DOES = (
    " looks at every process of the run on all nodes, twice, 2 s apart,",
    " and says whom the others wait for. It stops nothing and leaves nothing there.",
)


class VerdictPanel(Panel):
    """What it means, why, and what to do; before that what is being done."""

    job: Job[Diagnosis] | None = None
    diagnosis: Diagnosis | None = None
    why_not = ""  # why there is nothing to look at

    def lines_wanted(self, width: int) -> int:
        seen = self.diagnosis
        if seen is None or (self.job and not self.job.done):
            return 3
        return 1 + sum(len(wrapped(text, width)) for text, _ in self._texts(seen))

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        job, seen = self.job, self.diagnosis
        if job is not None and not job.done and not job.cancelled:
            self.title("stacks", "esc cancels")
            dots = "·" * (1 + int(job.seconds) % 3)
            progress = job.watch.line() or "begins"
            return [
                words((f" looking at every process, twice {dots}", colors.accent)),
                words((f" {job.seconds:.0f} s  {progress}", colors.text)),
            ]
        if job is not None and (job.cancelled or job.error):
            self.title("stacks")
            reason = wrapped(job.error or "cancelled", width)
            lines = [words((f" {line}", colors.warn)) for line in reason]
            return [*lines, words((" enter looks again", colors.label))]
        if seen is None:
            self.title("stacks")
            if self.why_not:
                return [words((f" {self.why_not}", colors.dim))]
            return [
                words((" enter", colors.accent), (WHAT_IT_DOES[0], colors.text)),
                words((WHAT_IT_DOES[1], colors.text)),
            ]
        taken_s = seen.snapshot.taken_s
        self.title(
            f"stacks of {clock(taken_s)}", f"{units.age(max(0.0, state.now_s - taken_s))} ago"
        )
        lines = [words((f" {header(seen.snapshot)}", colors.label))]
        for text, style in self._texts(seen):
            lines += [words((f" {line}", getattr(colors, style))) for line in wrapped(text, width)]
        return lines

    def _texts(self, seen: Diagnosis) -> list[tuple[str, str]]:
        """(text, name of a style in Palette), in the order of weight."""
        verdict, style = seen.verdict, "bad"
        if verdict.kind in MOVING_KINDS:
            style = "good"
        elif verdict.kind in UNSURE_KINDS:
            style = "warn"
        return [
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

    def take(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        self.choose()

    def choose(self) -> None:
        """List again, after a new look or with other ones hidden."""
        if self.diagnosis is None:
            return
        found = classes(self.diagnosis.snapshot, self.diagnosis.verdict)
        self.listed = [one for one in found if self.everything or not is_dull(one)]
        dull = [one for one in found if one not in self.listed]
        self._hidden = hidden_line(dull, self.diagnosis.snapshot).replace("(--all)", "(x shows)")
        self.at = 0

    def heading(self, state: State, width: int, colors: Palette) -> list[Line]:
        self.title("classes" if self.listed else "", self._hidden)
        return []

    def rows(self, state: State, width: int, colors: Palette) -> list[Line]:
        _, short = short_names(state.nodes)
        names = [_who(one, short) for one in self.listed]
        wide = min(40 if width >= 100 else 26, max(map(len, names), default=0))
        pairs = zip(self.listed, names, strict=True)
        return [self._row(one, who, wide, width, colors) for one, who in pairs]

    def _row(self, one: Class, who: str, wide: int, width: int, colors: Palette) -> Line:
        proc = one.first
        who = who if len(who) <= wide else who[: wide - 1] + "…"
        style = colors.bad if one.suspect else colors.text
        doing = str(proc.progress)
        if proc.progress != "moving" and proc.stood_s >= 1:
            doing += f" {proc.stood_s:.0f} s"
        doing = f"{doing:<11}" if width < 100 else f"{proc.kind + ' ' + doing:<24}"
        site = proc.where() if proc.stack.frames else proc.error or "no Python stack"
        line = words(
            (f"{'!' if one.suspect else ' '}{len(one.procs):>5,} ", style),
            (f"{who:<{wide}}  ", style),
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


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, width - 2), subsequent_indent="  ") or [""]
