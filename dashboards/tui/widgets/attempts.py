"""The attempts of a run on the run screen: lines among its figures, and a panel of their own."""

from __future__ import annotations

from collections.abc import Iterator

from rich.style import Style

from checks.units import counted
from clusterctl.nodes import fold
from clusterctl.runs.attempts import DONE, RUNNING, Attempt
from clusterctl.runs.journal import USER_STOP
from dashboards.model import units
from dashboards.model.run_progress import Figures, accounted
from dashboards.model.state import State
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, words

WELL = (RUNNING, DONE, USER_STOP)  # how an attempt may end without anything being wrong
Pair = tuple[str, str, Style]


def attempt_pairs(now: Figures, colors: Palette) -> list[Pair]:
    """(name, text, style) for the panel of figures; none of one attempt without a launcher."""
    if now.attempt is None or (now.spares is None and not now.restarts):
        return []
    mark, style = ("! ", colors.warn) if now.restarts else ("", colors.text)
    pairs = [("attempt", f"{mark}{now.attempt}, {counted(now.restarts, 'restart')}", style)]
    if now.spares is not None:
        out = f", out: {fold(now.excluded)}" if now.excluded else ""
        pairs.append(("spares", f"{now.spares} left{out}", colors.text))
    lost_s = sum(seconds for _, seconds in now.lost_s)
    lost = f", lost {units.duration(lost_s)}" if now.lost_s else ""
    pairs.append(("effective", f"{units.percent(now.ettr)}{lost}", colors.text))
    if now.lost_s:
        causes = (f"{cause} {units.duration(seconds)}" for cause, seconds in now.lost_s)
        pairs.append(("lost by", ", ".join(causes), colors.text))
    return pairs


class Attempts(Panel):
    """A line for each attempt, the newest first."""

    def looks_at(self, state: State) -> object:
        return (state.run.steps, state.run.journal) if state.run else None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterator[Line]:
        known = accounted(state.run) if state.run else None
        attempts = known.attempts if known else ()
        self.title("attempts", counted(known.restarts, "restart") if known else "")
        for attempt in reversed(attempts):
            is_bad = attempt.ending not in WELL
            style = colors.bad if is_bad else colors.good
            ending = attempt.ending or "goes on"
            if attempt.node is not None:
                ending += f" on {attempt.node}"
            yield words(
                (f" {attempt.number:>3} ", colors.text),
                (f"{clock(attempt.began_s)} ", colors.dim),
                (f"{steps_of(attempt):<16} ", colors.label),
                ("! " if is_bad else "  ", colors.bad),
                (ending, style),
                (f"  {fold(attempt.nodes)}" if attempt.nodes else "", colors.dim),
            )


def steps_of(attempt: Attempt) -> str:
    """Of its steps: `1 to 150`."""
    if attempt.first is None or attempt.last is None:
        return "no step"
    return f"{attempt.first:,} to {attempt.last:,}"
