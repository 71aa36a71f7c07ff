"""Keys and marks on one page."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

TEXT = """\
[b]Screens[/b]     1 cluster   2 run   enter one node   esc back
[b]Moving[/b]      arrows or h j k l, page up, page down, mouse
[b]Cluster[/b]     / filter   s sort: hostfile, value, state
            p metric: power, utilisation, memory, temperature
            (without GPUs: cpu, memory, load, network)
[b]Replay[/b]      space pause  + - speed  left right 2 %  home  end
[b]Anywhere[/b]    ctrl+p commands and themes   w screenshot (SVG)
            ? this page   q quit

[b]Marks[/b]       [b]![/b]  odd: five times below half of the fleet's median
               power, or above 87 °C
            [b]~[/b]  stale: no reading for three intervals
            [b]-[/b]  unknown: no answer, with the phase that failed
            [b]x[/b]  missing: a GPU that was there and is not now
[b]Run[/b]         stalled: no step for six usual ones and 30 s
            idle: how long ranks wait for the slowest
"""


class HelpScreen(ModalScreen[None]):
    """Any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter,space", "dismiss", "close", show=False)
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(TEXT, id="help-text")

    def on_mount(self) -> None:
        box = self.query_one("#help")
        box.border_title = "clusterctl top"
        box.border_subtitle = "esc closes"
