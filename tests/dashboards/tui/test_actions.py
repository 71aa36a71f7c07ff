"""What the capital letters do: jobs that are ended, nodes that are checked, and views that may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Static

from dashboards.feeds.replay import ReplayFeed
from dashboards.operations.actions import Ending
from dashboards.operations.background import Watch
from dashboards.operations.demo_actions import DemoActions
from dashboards.tui.app import TopApp
from dashboards.tui.screens.dialogs import KillDialog
from dashboards.tui.screens.node import NodeScreen
from dashboards.tui.screens.stacks import StacksScreen
from tests.dashboards.runs import write_run
from tests.dashboards.tui.test_app import grid, play, shown
from tests.dashboards.tui.test_screens import _quick, one_node, until  # noqa: F401 - a fixture


class Remembering(DemoActions):
    """Remembers what it was asked to end."""

    def __init__(self, nodes: Sequence[str]) -> None:
        super().__init__(nodes)
        self.ended: list[Ending] = []

    def end(self, ending: Ending, watch: Watch) -> tuple[str, list[str]]:
        self.ended.append(ending)
        return "gone: 16 processes on 2 nodes", ["still there: n1: pid 7"]


def dialog(app: TopApp) -> str:
    return str(app.screen.query_one("#dialog-text", Static).render())


@pytest.mark.long
def test_kill_names_what_it_ends_and_cancel_is_the_default() -> None:
    feed = one_node()
    actions = Remembering(list(feed.nodes))

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("K")
        assert isinstance(app.screen, KillDialog)
        await until(pilot, lambda: "16 processes on n[1-2]" in dialog(app))
        assert "ranks 0-15" in dialog(app)
        assert app.focused is app.screen.query_one("#cancel", Button)
        await pilot.press("enter")
        assert not isinstance(app.screen, KillDialog)
        assert actions.ended == []
        await pilot.press("K")
        await until(pilot, lambda: app.screen.query_one("#go", Button).display)
        await pilot.press("right", "enter")
        await until(pilot, lambda: "still there: n1" in dialog(app))
        assert [one.count for one in actions.ended] == [16]
        await pilot.press("enter")
        assert not isinstance(app.screen, KillDialog)

    play(TopApp(feed, actions=actions), story, (80, 24))


@pytest.mark.long
def test_kill_on_the_node_screen_means_that_node() -> None:
    feed = one_node()

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "right", "K")
        await until(pilot, lambda: "8 processes on n2" in dialog(app))
        await pilot.press("escape")
        assert isinstance(app.screen, NodeScreen)
        await pilot.press("P")
        await until(pilot, lambda: "GO: 87 checks" in dialog(app))

    play(TopApp(feed, actions=DemoActions(list(feed.nodes))), story)


@pytest.mark.long
def test_readonly_removes_kill_from_keys_and_palette() -> None:
    feed = one_node()

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        for screen in ("1", "2", "3"):
            await pilot.press(screen, "K")
            assert not isinstance(app.screen, KillDialog)
            titles = {command.title for command in app.get_system_commands(app.screen)}
            assert "Kill" not in titles
            assert "kill" not in shown(app, "#keys")

    play(TopApp(feed, actions=DemoActions(list(feed.nodes)), readonly=True), story)


@pytest.mark.long
@pytest.mark.parametrize(
    ("feed", "why"),
    [(ReplayFeed, "this is a replay"), (None, "this view is read-only: --no-readonly allows it")],
)
def test_readonly_view_says_why(feed: type[ReplayFeed] | None, why: str, tmp_path: Path) -> None:
    shown_feed = feed(write_run(tmp_path / "001-x"), clock=lambda: 0.0) if feed else one_node()

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "K")
        assert [note.message for note in app._notifications if why in note.message]

    play(TopApp(shown_feed, readonly=True), story)


@pytest.mark.long
def test_actions_mean_the_marked_nodes(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("j", "space", "space", "j", "e")
        assert app.clipboard == "ml-64-node-[002-003]"
        lines = shown(app, "#grid").splitlines()
        assert [line[1:5] for line in lines[1:5]] == ["001 ", "002*", "003*", "004 "]
        assert grid(app).border_subtitle == "2 marked*"
        await pilot.press("K")
        await until(pilot, lambda: "8 processes on ml-64-node-002" in dialog(app))
        assert "ml-64-node-003  banner" in dialog(app)
        await pilot.press("escape", "P")
        await until(pilot, lambda: "ssh.reachable  ml-64-node-003: no answer" in dialog(app))
        assert "GO: 87" not in dialog(app)
        await pilot.press("escape", "slash", "0", "0", "2", "enter")
        assert "2 marked*, 1 filtered out" in str(grid(app).border_subtitle)
        await pilot.press("asterisk", "S")
        screen = app.screen
        assert isinstance(screen, StacksScreen)
        await until(pilot, lambda: screen.listing.diagnosis)
        assert screen.listing.diagnosis is not None
        asked = screen.listing.diagnosis.snapshot.nodes
        assert [node.name[-3:] for node in asked] == ["003"]  # 002 was listed, so * unmarked it
        await pilot.press("1", "escape", "escape", "e")
        assert (app.clipboard, grid(app).border_subtitle) == ("ml-64-node-002", "")

    play(demo(), story)
