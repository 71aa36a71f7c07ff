"""Node, alerts, stacks, logs, dialogs and the replay bar, through their keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.style import Style
from textual.pilot import Pilot

from dashboards.feeds.replay import ReplayFeed
from dashboards.model.samples import (
    Disk,
    EventSample,
    Gpu,
    Link,
    NodeDown,
    NodeSample,
    Process,
    RunOpened,
    RunRead,
    Tick,
    Xid,
)
from dashboards.model.state import RunState
from dashboards.operations import demo_actions
from dashboards.operations.actions import Actions
from dashboards.operations.background import Watch
from dashboards.operations.demo_actions import DemoActions
from dashboards.tui.app import TopApp
from dashboards.tui.screens.alerts import AlertList, AlertsScreen
from dashboards.tui.screens.dialogs import HELP
from dashboards.tui.screens.node import NodeScreen
from dashboards.tui.screens.run import RunScreen
from dashboards.tui.screens.stacks import StacksScreen
from dashboards.tui.screens.text import LogScreen, TextScreen, ink
from dashboards.tui.widgets.bars import unheard
from dashboards.tui.widgets.node_details import disks_line
from dashboards.tui.widgets.node_panels import NodePanel
from dashboards.tui.widgets.palette import _few_colors
from dashboards.tui.widgets.panel import Panel, safe, words
from tests.dashboards.conftest import NOW
from tests.dashboards.runs import FixedFeed, write_run
from tests.dashboards.tui.test_app import grid, play, shown
from trainer.runlog.telemetry import Event


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
        await pilot.pause()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_actions, "STEP_S", 0.0)


def one_node() -> FixedFeed:
    """A node with everything that can be wrong with it."""
    gpus = tuple(
        Gpu(
            index=i,
            power_w=300.0,
            temperature_c=50.0,
            memory_used_bytes=1.0,
            memory_total_bytes=2.0,
            ecc_errors=2 if i == 1 else 0,
            nvlinks=(17, 18) if i == 0 else (18, 18),
            throttle="hw slowdown" if i == 1 else "",
        )
        for i in range(2)
    )
    sample = NodeSample(
        "n1",
        NOW,
        cpu=0.5,
        cpus=8,
        gpus=gpus,
        processes=(Process(4711, "me", "python", 1, 2.0**30, "run-1", 13, 60.0),),
        links=(
            Link("mlx5_0/1", "ib", "Active", 400.0, 2e10, 1e10, 0.0, 0),
            Link("mlx5_1/1", "ib", "Down", None, None, None, 12.0, 3),
        ),
        disks=(Disk("/", 50.0, 100.0), Disk("/data", 97.0, 100.0), Disk("/dead")),
        clock_offset_s=2.51,
        clock_bound_s=0.0004,
        up_s=86400.0 * 12,
        driver="565.57",
        xids=(Xid(NOW - 60, 1, 79, "GPU has fallen off the bus"),),
    )
    return FixedFeed(["n1", "n2"], [sample, Tick(NOW)], NOW)


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_node_shows_all_that_is_known_of_it(size: tuple[int, int]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        head, gpus = shown(app, "#node-head"), shown(app, "#node-gpus")
        assert "up 12 d 00 h" in head
        assert "clock +2.51 s ±0.4 ms !" in head
        assert "python 4711" in gpus or size[0] < 100
        below = "".join(shown(app, name) for name in ("#node-facts", "#node-links", "#node-disks"))
        assert "mlx5_1/1" in below
        assert "97%" in below
        assert "Xid 79 GPU 1 1 min 00 s ago" in below
        if size[0] >= 160:
            assert "17/18!" in gpus
            assert "2!" in gpus
            assert "hw slowdown" in gpus
            assert " 13 " in shown(app, "#node-processes")
            assert "no answer" in shown(app, "#node-disks")
        await pilot.press("right")
        assert "n2" in shown(app, "#node-head")
        await pilot.press("escape")
        assert grid(app).cursor == ("n2", 0)

    play(TopApp(one_node()), story, size)


NODE_PANELS = (
    "#node-head", "#node-gpus", "#node-facts", "#node-links", "#node-disks", "#node-processes", "#node-chart",
)  # fmt: skip


def node_text(app: TopApp) -> str:
    """All that the node screen shows of its node."""
    panels = [app.screen.query_one(name, Panel) for name in NODE_PANELS]
    assert {panel.node for panel in panels if isinstance(panel, NodePanel)} == {app.node()}
    return "\n".join(shown(app, f"#{panel.id}") for panel in panels if panel.display)


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_nothing_is_said_of_a_node_that_never_answered(size: tuple[int, int]) -> None:
    refused = NodeDown("n1", NOW, "tcp", "connection refused")
    feed = FixedFeed(["n1", "n2"], [refused, Tick(NOW)], NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        assert "not known: tcp: connection refused" in shown(app, "#node-gpus")
        assert "none" not in node_text(app)
        await pilot.press("right")
        assert "not known: no reading yet" in shown(app, "#node-gpus")
        assert "none" not in node_text(app)

    play(TopApp(feed), story, size)


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_old_readings_of_a_node_that_fell_silent_are_not_shown_as_its_own(
    size: tuple[int, int],
) -> None:
    feed = one_node()
    feed.samples[1:] = [NodeDown("n1", NOW, "tcp", "no route"), Tick(NOW)]

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        text = node_text(app)
        assert "tcp: no route" in text
        for old in ("Active", "1/2 up", "50%", "12 d", "4711", "300 W", "2.51 s"):
            assert old not in text

    play(TopApp(feed), story, size)


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_what_a_node_could_not_read_is_said(size: tuple[int, int]) -> None:
    gpu = Gpu(index=0, power_w=300.0)
    feed = FixedFeed(["n1"], [NodeSample("n1", NOW, cpu=0.5, gpus=(gpu,)), Tick(NOW)], NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        text = node_text(app)
        assert "clock -" in text
        if size[0] < 100:
            assert "not known: network, disks, processes" in text
        else:
            assert text.count("could not find out") == 3

    play(TopApp(feed), story, size)


@pytest.mark.long
def test_node_of_a_run_that_is_not_watched_is_not_ok() -> None:
    opened = RunOpened("outputs/001", "001", NOW, ("n1",), (8,))

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        assert "not watched" in shown(app, "#node-head").splitlines()[0]
        assert "not known" in shown(app, "#node-gpus")

    play(TopApp(FixedFeed([], [opened, Tick(NOW)], NOW)), story, (80, 24))


@pytest.mark.long
def test_run_that_cannot_be_read_says_so_in_place_of_its_state() -> None:
    run = [RunOpened("outputs/001", "001", NOW), RunRead(NOW, "telemetry.jsonl: Stale file handle")]

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert " 001  - telemetry.jsonl: Stale file handle" in shown(app, "#head")

    play(TopApp(FixedFeed([], [*run, Tick(NOW)], NOW)), story, (80, 24))


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_run_counts_every_node_that_it_has_no_line_for(size: tuple[int, int]) -> None:
    names = [f"n{number:02d}" for number in range(60)]
    down = [NodeDown(name, NOW, "tcp", "connection refused") for name in names[:40]]
    lost = EventSample(Event("lost", data={"node": "n41"}), NOW, "journal")
    good = [NodeSample(name, NOW, cpu=0.5) for name in names[41:50]]
    run = [RunOpened("outputs/001", "001", NOW, tuple(names), (1,) * 60), lost]
    feed = FixedFeed(names[:50], [*run, *down, *good, Tick(NOW)], NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        *lines, last = (line for line in shown(app, "#nodes").splitlines() if line.strip())
        assert all("- tcp" in line for line in lines)
        assert f" -{41 - len(lines)} !1 more  8 ok" in last  # n40 is waited for
        assert "10 n" in last  # not watched; the smallest terminal cuts it, with a sign

    play(TopApp(feed), story, size)


@pytest.mark.long
def test_one_node_is_no_nodes() -> None:
    gpu = Gpu(index=0, power_w=300.0)
    run = RunOpened("outputs/001", "001", NOW, ("n1",), (1,))
    feed = FixedFeed(["n1"], [run, NodeSample("n1", NOW, gpus=(gpu,)), Tick(NOW)], NOW)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert " 1 node  1/1 GPU " in shown(app, "#top")
        assert "of 1 node " in str(app.screen.query_one("#fleet", Panel).border_title)
        await pilot.press("3")
        assert app.screen.query_one("#nodes", Panel)._titles[0] == "1 node"
        await pilot.press("2")
        assert app.screen.query_one("#node-gpus", Panel)._titles[0] == "1 GPU"

    play(TopApp(feed), story)


@pytest.mark.long
def test_cursor_is_the_same_on_cluster_and_node(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("j", "l", "l", "enter")
        assert "GPU 2 power" in str(app.screen.query_one("#node-chart").border_title)
        await pilot.press("j", "left", "1")
        assert grid(app).cursor == ("ml-64-node-001", 3)

    play(demo(), story)


@pytest.mark.long
def test_alert_is_acknowledged_muted_and_opened(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        before = len(unheard(app.state))
        assert before >= 2
        await pilot.press("4")
        listing = app.screen.query_one(AlertList)
        names = [alert.id for alert in listing.listed]
        await pilot.press(*["j"] * names.index("gpu.throttle"))
        assert "hw thermal: 345 MHz" in shown(app, "#alert")
        assert "clusterctl" in app.screen.to_copy()  # type: ignore[attr-defined]
        await pilot.press("a")
        assert len(unheard(app.state)) == before - 1
        await pilot.press("a")
        assert len(unheard(app.state)) == before
        await pilot.press("m")
        assert len(unheard(app.state)) == before - 1
        assert f"{before - 1} alert" in shown(app, "#top")
        await pilot.press("enter")
        assert isinstance(app.screen, NodeScreen)
        assert app.selected == ("ml-64-node-004", 3)

    play(demo(), story)


@pytest.mark.long
def test_no_alerts_is_said() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("4", "j", "a", "m", "enter", "e")
        assert isinstance(app.screen, AlertsScreen)
        assert "nothing is wrong" in shown(app, "#alerts")

    play(TopApp(FixedFeed([], [], NOW)), story, (80, 24))


@pytest.mark.long
def test_stacks_name_the_suspect_and_open_in_full(
    demo: Callable[[], TopApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("5")
        screen = app.screen
        assert isinstance(screen, StacksScreen)
        await pilot.press("enter")
        await until(pilot, lambda: screen.listing.diagnosis is not None)
        assert "HANG: rank 27 waits for data" in shown(app, "#verdict")
        assert "004 rank 27 loader 2" in shown(app, "#classes")
        assert "ranks 0-15,24-26,28-191" in shown(app, "#classes")
        # What the other screens show: node 003 does not answer, and the run goes on.
        assert "1 node silent" in shown(app, "#verdict")
        assert "simulated" in shown(app, "#verdict")
        assert app.state.run is not None
        assert app.state.run.last is not None
        assert f"step {app.state.run.last.step + 1}, phase" in shown(app, "#verdict")
        assert len(screen.listing.listed) == 3
        await pilot.press("x")
        assert len(screen.listing.listed) > 3  # idle loaders, too
        await pilot.press("d")
        (page,) = tmp_path.glob("dumps/*/index.html")
        assert "rank 27" in page.read_text()
        await pilot.press("enter")
        assert isinstance(app.screen, TextScreen)
        assert "decode_clip (trainer/data/video/clip.py:88)" in shown(app, "#text")
        await pilot.press("escape", "escape")
        assert not isinstance(app.screen, StacksScreen)

    play(demo(), story)


@pytest.mark.long
def test_look_at_stacks_can_be_cancelled() -> None:
    class Slow(DemoActions):
        def diagnose(self, run: RunState | None, nodes: Sequence[str], watch: Watch):  # type: ignore[no-untyped-def]
            while True:
                watch.say("1/24 nodes")
                time.sleep(0.01)

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("5", "enter")
        screen = app.screen
        assert isinstance(screen, StacksScreen)
        job = screen.panel.job
        assert job is not None
        await until(pilot, lambda: "1/24 nodes" in job.watch.line())
        screen.again()
        assert "1/24 nodes" in shown(app, "#verdict")
        await pilot.press("escape")
        assert "cancelled" in shown(app, "#verdict")
        await until(pilot, lambda: job.done)
        assert isinstance(app.screen, StacksScreen)

    feed = one_node()
    play(TopApp(feed, actions=Slow(list(feed.nodes))), story)


@pytest.mark.long
def test_stacks_of_a_replay_say_why_there_are_none() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("5", "enter")
        await until(pilot, lambda: "no nodes to ask" in shown(app, "#verdict"))

    play(TopApp(one_node(), actions=Actions()), story, (80, 24))


@pytest.mark.long
def test_usage_lists_who_holds_gpus_by_job_user_and_node(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("u")
        heading, first = (line.split() for line in shown(app, "#usage").splitlines()[:2])
        assert heading[:6] == ["user", "job", "nodes", "GPUs", "util", "memory"]
        assert first[:3] == ["▸", "trainer", "015-STDiT3-XL-2"]
        await pilot.press("e")
        assert app.clipboard.startswith("ml-64-node-")
        await pilot.press("g")
        assert "GPUs by user" in str(app.screen.query_one("#usage").border_title)
        await pilot.press("g", "j", "e")
        assert app.clipboard == "ml-64-node-002"
        await pilot.press("escape")
        assert grid(app)

    play(demo(), story)


@pytest.mark.long
def test_log_of_the_rank_under_the_cursor_is_followed_and_searched(
    demo: Callable[[], TopApp],
) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("j", "j", "j", "l", "l", "l", "enter", "L")
        screen = app.screen
        assert isinstance(screen, LogScreen)
        await until(pilot, lambda: "step 2820 loss" in shown(app, "#text"))
        assert "ranks/27.log" in str(screen.page.border_title)
        assert "follows" in str(screen.page.border_subtitle)
        await pilot.press("slash", "s", "l", "o", "w", "e", "r", "enter")
        text = shown(app, "#text")
        assert "warning: this rank was" in text
        assert "step 2820 loss" not in text
        await pilot.press("escape", "g")
        assert "rank 27: NCCL version" in shown(app, "#text")
        await pilot.press("right")
        await until(pilot, lambda: "ranks/28.log" in str(screen.page.border_title))
        await pilot.press("d")
        await until(pilot, lambda: "Xid" in shown(app, "#text"))
        await pilot.press("escape")
        assert isinstance(app.screen, NodeScreen)

    play(demo(), story)


@pytest.mark.long
def test_long_lines_of_a_log_are_shown_to_their_end(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x")
    (run_dir / "ranks").mkdir()
    (run_dir / "ranks" / "0.log").write_text(f"short\n{'word ' * 60}end\n{'語' * 100}終\nlast\n")

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "L")
        await until(pilot, lambda: "last" in shown(app, "#text"))
        lines = [line.rstrip() for line in shown(app, "#text").splitlines() if line.strip()]
        assert (len(lines), lines[0], lines[-1]) == (10, " short", " last")
        assert lines[5].endswith("end")
        assert lines[8].endswith("終")
        assert not any("…" in line for line in lines)
        await pilot.resize_terminal(200, 24)
        assert len(shown(app, "#text").split("\n")[0]) > 190
        assert "last" in shown(app, "#text").splitlines()[5]

    play(TopApp(ReplayFeed(run_dir, clock=lambda: 0.0), first="run"), story, (80, 24))


@pytest.mark.long
@pytest.mark.parametrize("size", [(60, 16), (80, 24)])
def test_help_is_shown_whole(demo: Callable[[], TopApp], size: tuple[int, int]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        box, text = app.screen.query_one("#help"), app.screen.query_one("#help-text")
        assert text.region.width <= box.content_size.width
        if size == (80, 24):
            lines = HELP.read_text().splitlines()
            assert text.region.height == len(lines) <= box.content_size.height

    play(demo(), story, size)


@pytest.mark.long
def test_log_that_cannot_be_read_is_a_sentence() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("L")
        await until(pilot, lambda: "no nodes to ask" in shown(app, "#text"))

    play(TopApp(one_node(), actions=Actions()), story, (80, 24))


def test_disks_in_trouble_come_first_and_those_without_room_are_counted() -> None:
    disks = tuple(Disk(f"/d{number}", 10.0, 100.0) for number in range(9))
    sample = NodeSample("n", NOW, disks=(*disks, Disk("/full", 97.0, 100.0), Disk("/dead"), Disk("/shut", error="Permission denied")))  # fmt: skip
    text = "".join(piece for piece, _, _ in disks_line(sample, 70, _few_colors(plain=True)))
    assert text == " disk  /full 97%!  /dead no answer  /shut Permission denied  /d0 10%  +8"


def test_what_logs_hold_cannot_move_the_terminal() -> None:
    line = words(("  1%|█  \x1b[31m", Style()), ("red\x1b]0;\x07", Style(bold=True)))
    assert [text for text, _, _ in safe(line)] == ["  1%|█  ", r"red\x1b]0;\x07"]
    assert [ink(line) for line in ("CUDA error: x", "UserWarning: y", "step 3")] == ["bad", "warn", "text"]  # fmt: skip


@pytest.mark.long
def test_outliers_stand_out_and_sort_first(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("o")
        assert "outliers: not" in str(grid(app).border_subtitle)
        await pilot.press("s", "s", "s")
        assert grid(app).order == "outliers"
        assert grid(app).listed[0].name == "ml-64-node-004"
        await pilot.press("o")
        assert "outliers: not" not in str(grid(app).border_subtitle)

    play(demo(), story)


@pytest.mark.long
def test_replay_keys_work_on_every_screen_and_the_bar_can_be_clicked(tmp_path: Path) -> None:
    now = [0.0]
    feed = ReplayFeed(write_run(tmp_path / "001-x", steps=300), clock=lambda: now[0])

    def step(app: TopApp) -> int:
        run = app.state.run
        return run.last.step if run is not None and run.last is not None else 0

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert "► x10" in shown(app, "#replay")
        await pilot.press("4", "end")
        assert step(app) == 300
        assert "end" in shown(app, "#replay")
        await pilot.press("home", "space", *["right_square_bracket"] * 5)
        assert 0 < step(app) < 30
        assert "|| paused" in shown(app, "#replay")
        await pilot.press("comma", "full_stop", *["left_square_bracket"] * 5)
        assert step(app) == 0
        await pilot.press("1", "space")  # where it marks nodes of a live view
        assert "|| paused" not in shown(app, "#replay")
        assert "mark" not in shown(app, "#keys")
        await pilot.press("space")
        await pilot.click("#replay", offset=(40, 0))
        assert 100 < step(app) < 250
        await pilot.press("3")
        assert isinstance(app.screen, RunScreen)
        await pilot.press("plus")
        now[0] += 1
        app.tick()

    play(TopApp(feed, first="run"), story, (80, 24))


@pytest.mark.long
def test_live_views_have_no_replay_bar(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("space", "left_square_bracket", "plus")
        assert not app.screen.query_one("#replay").display

    play(demo(), story)


@pytest.mark.long
def test_copy_goes_to_the_clipboard(demo: Callable[[], TopApp]) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("j", "e")
        assert app.clipboard == "ml-64-node-002"
        await pilot.press("3", "e")
        assert app.clipboard == "outputs/015-STDiT3-XL-2"

    play(demo(), story)
