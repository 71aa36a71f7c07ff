"""The app through its keys; what is asserted is state, the pictures are test_snapshots' matter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dashboards.feeds.replay import ReplayFeed
from dashboards.feeds.run_dir import opened
from dashboards.model.samples import Gpu, NodeDown, NodeSample, StepSample, Tick
from dashboards.simulation.cluster import DemoFeed
from dashboards.tui.app import TopApp
from dashboards.tui.screens.cluster import ClusterScreen
from dashboards.tui.screens.dialogs import HelpScreen
from dashboards.tui.screens.node import NodeScreen
from dashboards.tui.screens.run import RunScreen
from dashboards.tui.widgets.gpu_grid import GpuGrid, lay_out
from dashboards.tui.widgets.node_cards import NodeCards, lay_out_cards
from dashboards.tui.widgets.panel import Panel
from tests.dashboards.conftest import NOW
from tests.dashboards.driving import quiet, steady
from tests.dashboards.runs import FixedFeed, cpu_cluster, record, write_run

Story = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def play(app: TopApp, story: Story, size: tuple[int, int] = (120, 40)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await quiet(pilot)
            await story(app, steady(pilot))

    asyncio.run(run())


def shown(app: TopApp, name: str) -> str:
    """The text that a panel shows."""
    panel = app.screen.query_one(name, Panel)
    return "\n".join(strip.text for strip in panel._strips)


def grid(app: TopApp) -> GpuGrid:
    assert isinstance(app.screen, ClusterScreen)
    return app.screen.grid


@pytest.mark.long
def test_arrows_and_letters_move_through_nodes_and_gpus(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert grid(app).cursor == ("ml-64-node-001", 0)
        await pilot.press("down", "j", "j", "right", "l", "l")
        assert grid(app).cursor == ("ml-64-node-004", 3)
        assert "179 W, the others" in shown(app, "#selected") or "W, the others" in shown(app, "#selected")  # fmt: skip
        await pilot.press("k", "up", "h", "left")
        assert grid(app).cursor == ("ml-64-node-002", 1)
        await pilot.press("pagedown", "pagedown")
        assert grid(app).cursor == ("ml-64-node-024", 1)

    play(demo(), story)


@pytest.mark.long
def test_edge_of_a_node_leads_into_the_next_column(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*["l"] * 8)
        assert grid(app).cursor == ("ml-64-node-013", 0)
        await pilot.press("h")
        assert grid(app).cursor == ("ml-64-node-001", 7)

    play(demo(), story, (80, 24))


@pytest.mark.long
def test_metric_goes_round_and_charts_follow(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        seen = []
        for _ in range(5):
            seen.append(grid(app).metric.key)
            assert app.screen.query_one("#fleet").metric is grid(app).metric  # type: ignore[attr-defined]
            await pilot.press("p")
        assert seen == ["power", "util", "memory", "temperature", "clock"]
        assert grid(app).metric.key == "power"

    play(demo(), story)


@pytest.mark.long
def test_sort_by_state_brings_trouble_to_the_top(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("s", "s")
        names = [node.name[-3:] for node in grid(app).listed[:5]]
        assert names == ["008", "004", "003", "017", "001"]
        assert grid(app).border_subtitle == "order: state"

    play(demo(), story)


@pytest.mark.long
def test_filter_takes_names_and_marks_and_escape_drops_it(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "0", "1", "7", "comma", "x")
        assert [node.name[-3:] for node in grid(app).listed] == ["008", "017"]
        await pilot.press("enter", "j")  # the keys work again, the filter stays
        assert grid(app).cursor == ("ml-64-node-017", 0)
        await pilot.press("slash", "escape")
        assert len(grid(app).listed) == 24

    play(demo(), story)


@pytest.mark.long
def test_filter_that_matches_nothing_says_so(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "q", "q", "enter", "j", "enter")
        assert "no node has this name or mark" in shown(app, "#grid")
        assert isinstance(app.screen, ClusterScreen)

    play(demo(), story)


@pytest.mark.long
def test_enter_opens_the_node_and_escape_comes_back(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("j", "j", "j", "enter")
        assert isinstance(app.screen, NodeScreen)
        assert " 345" in shown(app, "#node-gpus")
        await pilot.press("p", "escape")
        assert isinstance(app.screen, ClusterScreen)

    play(demo(), story)


@pytest.mark.long
def test_screens_help_and_quit(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert isinstance(app.screen, RunScreen)
        assert " ? help  q quit " in shown(app, "#keys")
        assert "rank 27 (004/3)" in shown(app, "#figures")
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape", "1")
        assert isinstance(app.screen, ClusterScreen)
        await pilot.press("q")
        assert app._exit

    play(demo(), story)


@pytest.mark.long
def test_mouse_selects_and_double_click_opens(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.click("#grid", offset=(6 + 3 * 6, 2 + 3))
        assert grid(app).cursor == ("ml-64-node-004", 3)
        await pilot.click("#grid", offset=(6, 2 + 4), times=2)
        assert isinstance(app.screen, NodeScreen)

    play(demo(), story)


@pytest.mark.long
def test_keys_below_can_be_clicked(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.click("#keys", offset=(20, 0))
        assert isinstance(app.screen, RunScreen)

    play(demo(), story)


@pytest.mark.long
def test_screenshot_is_written_here(
    demo: Callable[[], TopApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("w")
        (picture,) = tmp_path.glob("clusterctl-*.svg")
        assert "<svg" in picture.read_text()

    play(demo(), story)


@pytest.mark.long
def test_palette_offers_what_the_keys_do(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Cluster", "Run", "Alerts", "Stacks", "Metric", "Sort", "Filter", "Picture", "Theme", "Quit"} <= titles  # fmt: skip
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert len(app.screen_stack) == 2

    play(demo(), story)


@pytest.mark.long
def test_every_line_is_exactly_as_wide_as_its_place(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        for size in ((60, 16), (81, 25), (120, 40), (200, 50)):
            await pilot.resize_terminal(*size)
            for key in ("enter", "3", "4", "5", "1", "escape"):
                await pilot.press(key)
                await pilot.pause()
                check(app)

    def check(app: TopApp) -> None:
        for panel in app.screen.query(Panel):
            if panel.display and panel.content_size.area:
                widths = {strip.cell_length for strip in panel._strips}
                assert widths == {panel.content_size.width}, panel
                assert len(panel._strips) == panel.content_size.height
                assert all(s.style is not None for strip in panel._strips for s in strip)

    play(demo(), story)


@pytest.mark.long
def test_below_the_smallest_size_one_line_says_so(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        seen = [widget.id for widget in app.screen.children if widget.display]
        assert seen == ["too-small"]
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "too-small" not in [w.id for w in app.screen.children if w.display]
        assert "ml-64" in str(grid(app).border_title)

    play(demo(), story, (59, 15))


@pytest.mark.long
def test_machines_without_gpus_get_cards_and_their_own_metrics() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert isinstance(grid(app), NodeCards)
        assert "demo-1" in shown(app, "#cards")
        seen = []
        for _ in range(4):
            seen.append(grid(app).metric.key)
            await pilot.press("p")
        assert seen == ["cpu", "memory", "load", "network"]
        await pilot.press("down", "enter")
        assert "cpu" in shown(app, "#node-head")

    play(TopApp(cpu_cluster(NOW)), story, (80, 24))


@pytest.mark.long
def test_click_on_any_line_of_a_card_selects_its_node() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        cards = grid(app)
        for name, number in (("demo-1", 1), ("demo-0", 0)):
            for line in (0, cards._shape.tall - 1):
                x, y = cards.gutter.left + 3, cards.gutter.top + number * cards._shape.tall + line
                await pilot.click("#cards", offset=(x, y))
                assert cards.cursor == (name, 0)

    play(TopApp(cpu_cluster(NOW)), story, (80, 40))


@pytest.mark.long
def test_click_on_a_line_selects_its_node_where_there_is_no_room_for_cards() -> None:
    names = [f"node-{number:02d}" for number in range(40)]

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.click("#cards", offset=(4, 1))
        assert grid(app).cursor == ("node-00", 0)
        await pilot.click("#cards", offset=(4, 4))
        assert grid(app).cursor == ("node-03", 0)

    play(TopApp(FixedFeed(names, [NodeSample(name, NOW, cpu=0.5) for name in names], NOW)), story)


def test_state_changes_while_it_runs_reach_the_screen() -> None:
    feed = FixedFeed(["a", "b"], [NodeSample("a", 100.0, cpu=0.5, cpus=2)], 100.0)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert "waiting" in shown(app, "#cards")
        feed.samples = [NodeDown("b", 101.0, "auth", "permission denied for root")]
        feed.now_s = 110.0
        app.tick()
        text = shown(app, "#cards")
        assert "auth" in text
        assert "permission denied for root" in text
        assert "~ 10 s" in text

    play(TopApp(feed), story, (80, 24))


@pytest.mark.long
def test_app_without_nodes_and_without_run_says_what_to_do() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert "no nodes are watched" in shown(app, "#cards")
        await pilot.press("enter", "j", "3")
        assert "no run is watched" in shown(app, "#head")

    play(TopApp(FixedFeed([], [], NOW)), story, (80, 24))


@pytest.mark.long
def test_replay_keys_pause_and_seek(tmp_path: Path) -> None:
    now = [0.0]
    feed = ReplayFeed(write_run(tmp_path / "001-x", steps=300), clock=lambda: now[0])

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("end")
        assert app.state.run is not None
        assert app.state.run.last is not None
        assert app.state.run.last.step == 300
        await pilot.press("left", "space", "plus", "minus")
        assert app.state.run.last.step < 300
        before = app.state.run.last.step
        now[0] += 100
        app.tick()
        assert app.state.run.last.step == before
        await pilot.press("home")
        assert app.state.run.last is None

    play(TopApp(feed, first="run"), story, (80, 24))


@pytest.mark.long
def test_feed_is_closed_when_the_app_ends() -> None:
    feed = cpu_cluster(NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("q")

    play(TopApp(feed), story, (80, 24))
    assert feed.closed


@pytest.mark.parametrize("nodes", [1, 2, 24, 100, 1000])
@pytest.mark.parametrize("gpus", [1, 4, 8, 16])
@pytest.mark.parametrize("width", [58, 78, 118, 198])
def test_grid_never_lays_out_more_than_there_is_room_for(nodes: int, gpus: int, width: int) -> None:
    shape = lay_out(nodes, gpus, 3, width, 13)
    assert shape.columns * shape.block <= width
    assert shape.columns * shape.rows >= nodes
    assert gpus * shape.cell + 3 + 2 <= shape.block


@pytest.mark.long
def test_numbers_of_three_digits_neither_touch_nor_hide_a_mark() -> None:
    names = [f"n{number:02d}" for number in range(24)]
    odd = Gpu(3, util=1.0, power_w=1000.0, temperature_c=101.0)
    gpus = [tuple(Gpu(i, util=1.0, power_w=1000.0) for i in range(8)) for _ in names]
    gpus[0] = (*gpus[0][:3], odd, *gpus[0][4:])
    nodes = [NodeSample(name, NOW, gpus=own) for name, own in zip(names, gpus, strict=True)]
    nodes[1] = replace(nodes[1], at_s=NOW - 10)  # stale
    feed = FixedFeed(names, [*nodes, Tick(NOW)], NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert ("n00", 3) in app.state.odd
        for title in ("power x10 W", "utilisation %, ++ is 100"):
            lines = shown(app, "#grid").splitlines()
            assert title in str(grid(app).border_title)
            assert "++ ++ ++ ++!++ ++ ++ ++ " in lines[1]
            assert "++~" * 8 in lines[2]
            await pilot.press("p")
        await pilot.press("p", "p", "p", "p")
        await pilot.resize_terminal(200, 50)
        assert "100 !" in shown(app, "#grid")

    play(TopApp(feed), story, (80, 24))


def test_twenty_four_nodes_of_eight_gpus_fit_on_the_smallest_terminal() -> None:
    shape = lay_out(24, 8, 3, 78, 13)
    assert (shape.columns, shape.rows, shape.cell) == (2, 12, 3)


@pytest.mark.parametrize(("nodes", "cards"), [(2, True), (6, True), (24, False)])
def test_cards_give_way_to_lines_when_there_are_many(nodes: int, cards: bool) -> None:
    assert (lay_out_cards(nodes, 78, 20) is not None) == cards


@pytest.mark.long
def test_steps_of_weeks_are_read_in_parts_between_which_keys_come_in() -> None:
    feed = FixedFeed((), [opened(Path("001-x"), NOW)], NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        feed.samples = [StepSample(record(number, total=9999), NOW) for number in range(1, 2001)]
        app._begin_round()
        assert app.state.run is not None
        assert app.state.run.last is None  # it has only begun
        app._begin_round()  # the next round waits for this one
        await app.workers.wait_for_complete()
        assert app.state.run.last.step == 2000

    play(TopApp(feed), story)


@pytest.mark.long
def test_a_round_of_many_nodes_in_parts_ends_as_one_at_once(monkeypatch):
    monkeypatch.setattr("dashboards.tui.app.MANY_NODES", 5)
    feeds = [DemoFeed(clock=lambda: NOW, nodes=12, gpus=1) for _ in range(2)]
    apps = [TopApp(feed) for feed in feeds]
    apps[1]._begin_round = apps[1].tick  # type: ignore[method-assign]

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        app._begin_round()
        await app.workers.wait_for_complete()
        assert app.state.now_s == NOW

    for app in apps:
        play(app, story)
    in_parts, at_once = (app.state for app in apps)
    assert in_parts.nodes == at_once.nodes
    assert all(node.sample is not None or node.down for node in in_parts.nodes.values())
    assert in_parts.alerts.active == at_once.alerts.active
