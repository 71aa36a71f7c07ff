"""Keys and marks on one page."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

TEXT = """\
[b]Screens[/b]   1 cluster  2 node  3 run  4 alerts  5 stacks   esc back
[b]Moving[/b]    arrows or h j k l, page up and down, enter in, mouse
[b]Cluster[/b]   / filter   p metric   s sort: hostfile, value, state, outliers
          o who is out of the fleet's range   enter the node
          space mark a node   * all listed   esc drop filter, then marks
          S stacks   P preflight   K kill   e copy: of marked nodes
[b]Node[/b]      left right other nodes   up down GPUs   L logs   P preflight
[b]Run[/b]       L log of the slowest rank   S stacks
[b]Alerts[/b]    a acknowledge   m mute for an hour   enter go there
          x those that are over
[b]Stacks[/b]    enter look, then the full stack   S again   x idle ones, too
          d save as text and page
[b]Logs[/b]      left right ranks   d the kernel's   / only lines with   G end
[b]Replay[/b]    space pause   + - speed   [ ] 2 %   , . one reading   home end
[b]Anywhere[/b]  ctrl+p commands and themes   e copy   w picture (SVG)
          K end processes: asks, Cancel is the default   q quit

[b]Marks[/b]     [b]![/b] odd: alerts say why   [b]x[/b] missing: a GPU that was there
          [b]~[/b] stale: no reading for three intervals, with its age
          [b]-[/b] unknown: no answer, with the phase that failed
          [b]*[/b] marked by you
"""


class HelpScreen(ModalScreen[None]):
    """Any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,question_mark,enter,space", "dismiss"),
        ("q", "app.quit"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(TEXT, id="help-text")

    def on_mount(self) -> None:
        box = self.query_one("#help")
        box.border_title = "clusterctl top"
        box.border_subtitle = "esc closes"
